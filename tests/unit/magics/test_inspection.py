"""The commands that report what has happened: their texts, from values."""

from __future__ import annotations

from mhnb.core.journal import CellRecord, Record, StartRecord
from mhnb.magics.inspection import build_history
from mhnb.view.print_text import print_text


def test_history_has_a_line_per_cell() -> None:
    """Each cell has its numbers, its end, its time and its first line; other records are left out."""
    records: list[Record] = [
        StartRecord(1, "2 hosts x 1 device"),
        CellRecord(1, 1, "x = 1\ny = 2", outcomes={0: "ok", 1: "ok"}, wall_s=0.5, execution_count=7),
        CellRecord(1, 2, "1 / 0", outcomes={0: "error", 1: "skipped"}, errors={0: "ZeroDivisionError"}, wall_s=2.0),
        CellRecord(1, 3, "f()", how="timeout", outcomes={0: "interrupted"}, state="tainted", wall_s=30.0),
        CellRecord(1, 4, "g()", outcomes={0: "died"}, state="dead", replayed=True, wall_s=1.0),
    ]
    lines = print_text(build_history(records, 1)).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["1", "In", "[7]", "ok", "0.50", "s", "x", "=", "1"],
        ["2", "ZeroDivisionError", "2.0", "s", "1", "/", "0"],
        ["3", "timeout", "·", "tainted", "30", "s", "f()"],
        ["4", "died", "·", "dead", "·", "replayed", "1.0", "s", "g()"],
    ]


def test_history_names_an_earlier_generation() -> None:
    """A cell from before a restart has its generation, and a long first line is shortened."""
    records = [CellRecord(1, 1, "x" * 90), CellRecord(2, 1, "y")]
    text = print_text(build_history(records, 2))
    assert "1 (generation 1)" in text
    assert f"{'x' * 59}…" in text


def test_history_without_cells() -> None:
    """Before the first cell there is nothing to list."""
    assert print_text(build_history([], 1)) == "mhjax · no cell has run on the ranks yet"
