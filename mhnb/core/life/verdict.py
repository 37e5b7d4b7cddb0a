"""Judge a cell that has ended on every rank: the cluster state that it leaves, and the notes for the user."""

from __future__ import annotations

from collections.abc import Collection

from mhnb.core.guard.host_data import compare_host_data, format_host_data
from mhnb.core.guard.rules import TAINTED, judge_state
from mhnb.core.life.cell import Cell
from mhnb.errors import OrderMismatch
from mhnb.values import ClusterState

__all__ = ["judge_cell"]

_SHOWN = 3

_Verdict = tuple[ClusterState, tuple[str, ...]]


def judge_cell(cell: Cell, lost_ranks: Collection[int], *, recorded: bool, freed_in: int) -> _Verdict:
    """Judge by outcomes, launches, and the arrays that were made of host data.

    Args:
        lost_ranks: ranks that are lost, in the order in which they were lost.
        recorded: whether there is a record of launches and arrays to judge by.
        freed_in: the cell in which the connections between the ranks were closed; 0 for none.

    >>> from mhnb.core.life.events import CellRequest
    >>> judge_cell(Cell(1, CellRequest("x = 1"), seq=1, ranks=(), now=0.0), (), recorded=True, freed_in=0)
    ('clean', ())
    """
    if not lost_ranks and cell.is_uneventful():
        return "clean", ()
    parts, source = cell.parts.items(), cell.request.source
    launches = {rank: part.launches for rank, part in parts}
    state, notes = judge_state(
        {rank: part.outcome for rank, part in parts},
        launches if recorded else None,
        cell.left(),
        lost_ranks,
        seq=cell.seq,
        source=source,
    )
    notes = (*cell.freed_notes(), *notes)
    if state == "clean" and freed_in and cell.broke_off():
        return "tainted", (f"connections between the ranks were closed in cell {freed_in}", *notes, TAINTED)
    if state == "clean" and cell.met_left():
        # Without this, a replay, which has no abandoned collective, would take this error for the cell's own.
        return "tainted", ("a collective of an earlier cell was left, and still runs or waits", *notes, TAINTED)
    return _judge_made(cell, state, notes) if recorded and state in ("clean", "tainted") else (state, notes)


def _judge_made(cell: Cell, state: ClusterState, notes: tuple[str, ...]) -> _Verdict:
    found = compare_host_data({rank: part.made for rank, part in cell.parts.items()})
    if not found:
        return state, notes
    told = [format_host_data(difference, cell.request.source) for difference in found[:_SHOWN]]
    if len(found) > _SHOWN:
        told.append(f"{len(found) - _SHOWN} more lines made arrays that differ")
    # Arrays that were in no launch do no harm: the guard builds no program from different shapes, and launches none on
    # different values.
    refused = cell.guard == "lockstep" and any(
        part.error and part.error.ename == OrderMismatch.__name__ for part in cell.parts.values()
    )
    if state == "clean" and not (refused and not any(difference.launched for difference in found)):
        return "tainted", (*told, *notes, TAINTED)
    return state, (*notes, *told)
