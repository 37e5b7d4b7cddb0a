"""Interface between the cell runner and the launch recorder; it knows neither JAX nor the agreement between the ranks."""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple, Protocol

from mhnb.core.explain.where import PendingLaunch
from mhnb.core.guard.host_data import HostDataRow
from mhnb.core.guard.provenance import InputRow
from mhnb.core.wire.protocol import LaunchRow
from mhnb.rank.guard.mismatches import Mismatches
from mhnb.values import Outcome

__all__ = ["LaunchLog", "LaunchReport", "find_plain_values"]


_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))
_LONGEST_VALUE, _MOST_NAMES = 40, 20


def find_plain_values(frame: FrameType) -> dict[str, str]:
    """Return the plain values that a frame's current call uses, by name, as Python writes them."""
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
        # Types are compared exactly, so that no user code runs.
        if type(value) in _PLAIN_TYPES and len(text := repr(value)) <= _LONGEST_VALUE and len(found) < _MOST_NAMES:
            found[name] = text
    return found


class LaunchReport(NamedTuple):
    """Report on a cell's launches at the end of the cell; the fields are those of `CellEnded`."""

    rows: list[LaunchRow]
    abandoned: int
    running_launches: int
    failed_callbacks: int
    host_arrays: list[HostDataRow]
    interrupted_before: int | None
    notes: list[str]
    ignored_refusals: list[list[Any]]
    refused_inputs: list[InputRow]
    abandoned_launch: list[Any]
    pending_launch: list[Any]


class LaunchLog(Protocol):
    """Record of the launches of a cell."""

    is_cell_file: Callable[[str], bool]
    mismatches: Mismatches

    def begin_cell(self, seq: int, source: str, guard: str, cell_ranks: Sequence[int] | None) -> None:
        """Start a new cell, to which launches belong from now on."""

    def notify_cell_ended(self, seq: int, outcome: Outcome) -> None:
        """Notify the other ranks that this rank is done with a cell that it did not run."""

    def is_interrupt_for_cell(self) -> bool:
        """Return whether an interrupt is meant for the running cell."""

    def can_interrupt_be_late(self) -> bool:
        """Return whether an interrupt that comes now may be meant for the previous cell."""

    def is_stop_requested(self) -> bool:
        """Return whether the ranks were asked to stop the running cell."""

    def defer_interrupt(self) -> bool:
        """Defer an interrupt while a launch is under way; return False if none is."""

    def set_interrupt_hooks(self, make_interrupt: Callable[[], BaseException], is_handling: Callable[[], bool]) -> None:
        """Set the functions that make the exception before a launch, and that check whether the code handles one already."""

    def mark_unsynchronized(self) -> None:
        """Record that the code gets an interrupt by a signal, on which the ranks have not agreed."""

    def agreed_stop_number(self) -> int | None:
        """Return the number of the launch before which all its participants stopped together; None if they did not."""

    def wait_all(self, limit_s: float | None = None) -> None:
        """Wait until all launches have finished, at most `limit_s`; raise the error of a failed launch."""

    def close_cell(self, seq: int, outcome: Outcome) -> LaunchReport:
        """Return the report on the cell's launches, and notify the other ranks that this rank is done with the cell."""

    def release_finished(self) -> None:
        """Release the launches that have ended; called from time to time, from any thread."""

    def sample_launches(self) -> tuple[dict[tuple[int, ...], int], PendingLaunch | None]:
        """Return launch counts by participants, and the oldest launch that has not finished; may be called from any thread."""

    def list_awaited(self) -> list[int] | None:
        """Return the ranks that this one may wait for while it is blocked in C; None unless JAX launches directly."""
