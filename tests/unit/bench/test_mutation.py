"""The faults that measure how much the tests catch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.mutation import Fault, apply, find_faults


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("f(a < 2, b)", ["pass", "f(b, a < 2)", "f(a <= 2, b)", "f(a < 3, b)"]),
        ("x = y is None", ["x = y is not None"]),
        ("x: int = 0.5", ["x: int = 5.0"]),
        ("x = f(a, a)", []),
        ("x = 0.0", ["x = 1.0"]),
        ("assert x == 1", []),
        ("'a text'", []),
        ("x = f'{y == 1}'", []),
        ("s = 'ä', 1", ["s = 'ä', 2"]),
    ],
)
def test_each_place_gives_one_fault(line: str, changed: list[str]) -> None:
    """Comparisons, bounds, calls, arguments and constants are changed; texts, annotations and assertions are not."""
    assert [fault.new for fault in find_faults("a.py", line)] == changed


def test_fault_is_made_where_its_line_is_now(tmp_path: Path) -> None:
    """A line that has moved is found, and one that is there twice is not guessed."""
    fault = Fault("a.py", 1, "bound", "x = 1", "x = 2")
    path = tmp_path / "a.py"
    path.write_text("y = 0\nx = 1\n")
    apply(fault, tmp_path)
    assert path.read_text() == "y = 0\nx = 2\n"
    path.write_text("y = 0\nx = 1\nx = 1\n")
    with pytest.raises(LookupError, match="2 times"):
        apply(fault, tmp_path)
