"""Judge an ended cell: cluster state, notes, and causes of death.

A rank that died during a cell either crashed, or was killed because it did not follow an interrupt.
"""

from __future__ import annotations

import signal
from collections.abc import Collection

from mhnb.core.guard.host_data import compare_host_data, format_host_data
from mhnb.core.guard.launches import IN_SYNC_NOTE, TAINTED_NOTE, judge_state
from mhnb.core.hints import find_hint
from mhnb.core.messages import RankExited
from mhnb.core.state.cell import Cell
from mhnb.core.state.interrupt import KILLED_AFTER_INTERRUPT
from mhnb.core.state.rank_registry import describe_exit
from mhnb.errors import OrderMismatch
from mhnb.types import ClusterState, Outcome, RankError

_MAX_NOTES = 3

STILL_WAITING_NOTE = "a collective of an earlier cell may still be waiting"
"""Why the cluster is tainted after a cell in which a rank refused a launch for that reason."""

_Judgement = tuple[ClusterState, tuple[str, ...]]


def judge_cell(cell: Cell, lost_ranks: Collection[int], *, recorded: bool, disconnected_in: int) -> _Judgement:
    """Judge a cell by outcomes, launches, and arrays made of host data.

    Args:
        lost_ranks: ranks that are lost, in the order in which they were lost.
        recorded: whether there is a record of launches and arrays to judge by.
        disconnected_in: the cell in which the connections between the ranks were closed; 0 for none.

    >>> from mhnb.core.state.events import CellRequest
    >>> judge_cell(Cell(1, CellRequest("x = 1"), seq=1, ranks=(), now=0.0), (), recorded=True, disconnected_in=0)
    ('clean', ())
    """
    if not lost_ranks and cell.is_uneventful():
        return "clean", ()
    parts = cell.parts.items()
    launches = {rank: part.launches for rank, part in parts}
    state, notes = judge_state(
        {rank: part.outcome for rank, part in parts},
        launches if recorded else None,
        cell.abandoned_launches(),
        lost_ranks,
        cell_name=cell.name,
        source=cell.request.numbered_source,
    )
    if notes == (IN_SYNC_NOTE,) and not cell.can_leave_differences():
        notes = ()
    notes = (*cell.disconnect_notes(), *notes)
    if state == "clean" and disconnected_in and cell.has_failed_collective():
        return "tainted", (
            f"the connections between the ranks were closed in {cell.name_earlier(disconnected_in)}",
            *notes,
            TAINTED_NOTE,
        )
    if state == "clean" and cell.has_hit_abandoned_collective():
        # Without this, a replay, which has no abandoned collective, would take this error for the cell's own.
        return "tainted", (
            STILL_WAITING_NOTE,
            *notes,
            TAINTED_NOTE,
        )
    return _judge_host_data(cell, state, notes) if recorded and state in ("clean", "tainted") else (state, notes)


def _judge_host_data(cell: Cell, state: ClusterState, notes: tuple[str, ...]) -> _Judgement:
    found = compare_host_data({rank: part.report.host_arrays for rank, part in cell.parts.items()})
    if not found:
        return state, notes
    texts = [format_host_data(difference, cell.request.numbered_source) for difference in found[:_MAX_NOTES]]
    if len(found) > _MAX_NOTES:
        texts.append(f"{len(found) - _MAX_NOTES} more lines made arrays that differ")
    # Arrays that were in no launch do no harm: the guard builds no program from different shapes, and launches none on
    # different values.
    refused = cell.guard == "lockstep" and any(
        part.error and part.error.ename == OrderMismatch.__name__ for part in cell.parts.values()
    )
    if state == "clean" and not (refused and not any(difference.was_launched for difference in found)):
        return "tainted", (*texts, *notes, TAINTED_NOTE)
    return state, (*notes, *texts)


# -- classify a rank's death


def classify_death(exited: RankExited, *, is_killed: bool) -> tuple[Outcome, RankError]:
    """Return the outcome and the error of the rank that died first.

    Args:
        is_killed: whether the interrupt had escalated to the kill by then.

    >>> classify_death(RankExited(1, None, 9, []), is_killed=True)[1].evalue
    'rank 1 did not stop after the interrupt and was killed'
    """
    is_slow = is_killed and exited.signum == signal.SIGKILL
    reason = KILLED_AFTER_INTERRUPT if is_slow else describe_exit(exited)
    # An abort in native code raises no exception: the process's last output is the only information about it.
    aborted = exited.signum == signal.SIGABRT
    hint = find_hint("RankDied", "\n".join(exited.last_lines)) if aborted else None
    return "killed" if is_slow else "died", RankError("RankDied", f"rank {exited.rank} {reason}", hint=hint)
