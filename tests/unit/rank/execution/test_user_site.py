"""Find where in the user's own code an error outside a running cell was raised."""

from __future__ import annotations

import linecache
from collections.abc import Iterator

import pytest

from mhnb.rank.execution.tracebacks import find_user_location

LIBRARY = "def apply(f):\n    return f()\ndef fail():\n    raise ValueError"
CELL = "def step():\n    return apply(fail)"


@pytest.fixture
def namespace() -> Iterator[dict[str, object]]:
    """A third-party library and a cell that calls it; the source of both can be read."""
    scope: dict[str, object] = {"__name__": "flax"}
    for file, source in (("/site/flax.py", LIBRARY), ("<cell 12>", CELL)):
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
        exec(compile(source, file, "exec"), scope)
    yield scope
    for file in ("/site/flax.py", "<cell 12>"):
        del linecache.cache[file]


@pytest.mark.parametrize(
    ("call", "place", "code"),
    [
        ("step()", "cell 12, line 2", "return apply(fail)"),
        ("fail()", "flax.py, line 4", "raise ValueError"),
        ("1 / 0", "", ""),
    ],
)
def test_innermost_cell_line_is_reported(namespace: dict[str, object], call: str, place: str, code: str) -> None:
    """The innermost line of a cell is reported, else that of a readable file; typed expressions have no line."""
    with pytest.raises((ValueError, ZeroDivisionError)) as caught:
        eval(compile(call, "<this call>", "eval"), namespace)  # noqa: S307 - as on a rank
    # The test's own frames are not the user's.
    error = caught.value.with_traceback(caught.tb.tb_next)
    assert find_user_location(error)[:2] == (place, code)
