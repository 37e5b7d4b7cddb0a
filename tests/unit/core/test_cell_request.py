"""Auto mode: where a notebook cell runs."""

from __future__ import annotations

import pytest

from mhnb.core.cell_request import route_cell
from mhnb.errors import InvalidRequest


@pytest.mark.parametrize(
    ("source", "route"),
    [
        ("x = 1", "ranks"),
        ("%%time\nx = 1", "ranks"),
        ("%%bash\nls", "ranks"),
        ("!ls", "ranks"),
        ("# only a comment", "here"),
        ("", "here"),
        ("%mhjax status", "here"),
        ("# why\n%load_ext mhnb\n%mhjax start -n 2", "here"),
        ("%load_ext autoreload", "ranks"),
        ("%load_ext autoreload\n%autoreload 2\nimport helpers", "ranks"),
        ("%load_ext", "ranks"),
        ("%%mhjax --ranks 0\nx", "here"),
        ("%%local\nx = 1", "local"),
        ("\n%%local  \nx = 1", "local"),
        ("print('%mhjax status')", "ranks"),
        ("x = %mhjax pull x", "here"),
        ("# two\nx, y = %mhjax pull x y --each\n%mhjax status", "here"),
        ('d["x"] = %mhjax pull x', "here"),
        ("x: int = %mhjax pull x", "here"),
        ("x = [" + "1, " * 50_000 + "]", "ranks"),
        ("text = '= %mhjax'", "ranks"),
        ("print('= %mhjax status')", "ranks"),
        ("y = a %mhjax", "ranks"),
        ("left = %time 1", "ranks"),
    ],
)
def test_cell_is_routed(source: str, route: str) -> None:
    """A cell runs on the ranks unless it has a command of mhnb or is marked as local."""
    assert route_cell(source) == route


def test_a_mixed_cell_is_refused() -> None:
    """One part of the cell belongs to the notebook and the other to the ranks, so nothing runs."""
    for line in ("%mhjax pull x", "x = %mhjax pull x"):
        with pytest.raises(InvalidRequest, match="separate cell"):
            route_cell(f"{line}\nprint(x)")
