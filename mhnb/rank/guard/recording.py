"""What is asked of the record of a cell's launches by who runs the cells; it knows neither JAX nor the ranks' agreement."""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple, Protocol

from mhnb.core.explain.stacks import Flight
from mhnb.core.guard.host_data import HostDataRow
from mhnb.core.guard.provenance import InputRow
from mhnb.core.wire.protocol import LaunchRow
from mhnb.rank.guard.mismatches import Mismatches
from mhnb.values import Outcome

__all__ = ["CellLaunches", "Launches", "plain_names"]


_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LONGEST_VALUE, _MOST_NAMES = 40, 20


def plain_names(frame: FrameType) -> dict[str, str]:
    """Return the names of plain values in the call that a frame is at, and those values as Python writes them."""
    code = frame.f_code
    positions = list(code.co_positions())
    begin, end = (positions[frame.f_lasti // 2][:2]) if frame.f_lasti >= 0 else (None, None)
    if begin is None or end is None:
        return {}
    names = {
        step.argval
        for step in dis.get_instructions(code)
        if step.opname.startswith("LOAD_")
        and type(step.argval) is str
        and step.positions is not None
        and begin <= (step.positions.lineno or 0) <= end
    }
    found: dict[str, str] = {}
    for name in sorted(names):
        value = frame.f_locals.get(name, frame.f_globals.get(name, ...))
        # Types are compared exactly, so that no code of the user's runs.
        if type(value) in _PLAIN and len(text := repr(value)) <= _LONGEST_VALUE and len(found) < _MOST_NAMES:
            found[name] = text
    return found


class CellLaunches(NamedTuple):
    """What a cell's launches come to at its end; the fields are those of `CellEnded`."""

    rows: list[LaunchRow]
    abandoned: int
    running: int
    failed: int
    made: list[HostDataRow]
    stopped_before: int | None
    notes: list[str]
    caught: list[list[Any]]
    taken: list[InputRow]
    left: list[Any]
    came_to: list[Any]


class Launches(Protocol):
    """The record of what a cell launched."""

    is_cell_file: Callable[[str], bool]
    mismatches: Mismatches

    def begin_cell(self, seq: int, source: str, guard: str, chosen: Sequence[int] | None) -> None:
        """From now on launches belong to a new cell."""

    def leave_cell(self, seq: int, outcome: Outcome) -> None:
        """Tell the other ranks that this one is done with a cell that it did not run."""

    def takes_interrupt(self) -> bool:
        """Whether an interrupt is meant for the cell that runs."""

    def may_be_late(self) -> bool:
        """Whether an interrupt that comes now may be meant for the cell before."""

    def is_asked_to_stop(self) -> bool:
        """Whether the ranks were asked to stop the cell that runs."""

    def defer_interrupt(self) -> bool:
        """Put an interrupt off while a launch is under way; false where none is."""

    def use_interrupt(self, make: Callable[[], BaseException], handles: Callable[[], bool]) -> None:
        """Have what stops the code before a launch made here; and ask here whether the code handles it already."""

    def note_lone_interrupt(self) -> None:
        """The code gets an interrupt by a signal, which the ranks have not agreed on."""

    def agreed_stop(self) -> int | None:
        """Give which launch it was that all who take part in it stopped before together; None where they did not."""

    def wait(self, limit_s: float | None = None) -> None:
        """Wait until what was launched has finished, at most `limit_s`; raise what a launch failed with."""

    def close_cell(self, seq: int, outcome: Outcome) -> CellLaunches:
        """Hand out what the cell's launches came to, and tell the other ranks that this one is done with it."""

    def sweep(self) -> None:
        """Let go of what has ended; from any thread, from time to time."""

    def look(self) -> tuple[dict[tuple[int, ...], int], Flight | None]:
        """Count launches by participants, and give the oldest that has not finished; from any thread."""

    def list_awaited(self) -> list[int] | None:
        """List the ranks that this one may wait for while it is blocked in C; None where launches do not go directly."""
