"""How launches without a collective are told: in full where their output is held, once where nobody holds it."""

from __future__ import annotations

from mhnb.core.guard.rules import FREE_PREFIX
from mhnb.core.wire.protocol import LaunchRow
from mhnb.rank.guard.outcomes import FreeOutputs


class _Array:
    def __init__(self, *, deleted: bool = False) -> None:
        self.deleted = deleted

    def is_deleted(self) -> bool:
        return self.deleted


def _row(name: str, line: int | None = 1, count: int = 1) -> LaunchRow:
    return [FREE_PREFIX + name, name, (0, 1), line, count]


def test_what_is_held_is_told_in_full() -> None:
    """A loop that another one interleaves is several rows; each counts."""
    free, held, row = FreeOutputs(), _Array(), _row("f", count=3)
    rows = [row, _row("g", 2, count=0), _row("f", count=2)]
    free.note(row, [held])
    assert free.settle(rows) == rows


def test_what_nobody_holds_is_told_once() -> None:
    """Let go of, or donated: how often it ran is nobody's business."""
    free = FreeOutputs()
    free.note(_row("f"), [_Array()])
    donated = _Array(deleted=True)
    free.note(_row("g"), [donated])
    assert free.settle([_row("f", count=70), _row("g", count=3), _row("f", count=9)]) == [
        _row("f", count=0),
        _row("g", count=0),
    ]


def test_the_last_launch_of_a_line_decides() -> None:
    """What an earlier one made may be held for a while."""
    free, held = FreeOutputs(), _Array()
    free.note(_row("f"), [held])
    free.note(_row("f"), [_Array()])
    free.note(_row("f", 2), [held])
    assert free.settle([_row("f", count=2), _row("f", 2, count=4)]) == [_row("f", count=0), _row("f", 2, count=4)]


def test_collectives_are_told_as_they_are() -> None:
    """Their number is agreed on."""
    rows: list[LaunchRow] = [["a1", "f", (0, 1), 1, 5], ["a1", "f", (0, 1), 1, 2]]
    assert FreeOutputs().settle(rows) == rows


def test_each_cell_begins_anew() -> None:
    """An array of the last cell says nothing of this one's."""
    free, held = FreeOutputs(), _Array()
    free.note(_row("f"), [held])
    free.settle([_row("f", count=2)])
    assert free.settle([_row("f", count=2)]) == [_row("f", count=0)]
