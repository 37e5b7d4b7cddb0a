"""The verdict on a cell in which a rank was interrupted: by its outcome, the guard, and where the interrupt came."""

from __future__ import annotations

from itertools import product

import pytest

from mhnb.core.messages import CellEnded, RunCell
from mhnb.core.state.cell import Cell
from mhnb.core.state.events import CellRequest
from mhnb.core.state.verdict import judge_cell
from mhnb.errors import OrderMismatch
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.guard.launch_recorder import LaunchRecorder
from mhnb.types import ClusterState, Outcome
from tests.unit.rank.guard.test_launch_recorder import FakeArray, FakeJax

RANKS = (0, 1)
OUTCOMES: tuple[Outcome, ...] = ("ok", "error", "interrupted", "killed")
"""Of the interrupted rank: its code may handle the interrupt, raise something else for it, or not end."""
PLACES = ("Python", "collective", "callback")
GUARDS = ("lockstep", "parity", "off", "unavailable")


class DirectJax(FakeJax):
    """JAX whose own dispatch makes the launches if it may, as under parity and off."""

    def select_dispatch(self, guard: str, *, is_direct: bool) -> bool:
        del guard
        return is_direct


def interrupt_rank(recorder: LaunchRecorder, guard: str, place: str, outcome: Outcome) -> CellEnded:
    """Run a cell on rank 0 that is interrupted there, and return its reply."""
    interrupts = recorder.gate._interrupts
    recorder.is_available = guard != "unavailable"
    recorder.begin_cell(RunCell(1, 1, "", "lockstep" if guard == "unavailable" else guard))
    interrupts.reset(1)
    is_recorded = guard in ("lockstep", "parity")
    if place != "Python" and is_recorded:
        # The other rank does not come, so no output gets ready.
        recorder.record_launch("a", "jit(f)", RANKS, 1, [FakeArray()])
    interrupts.record_raised()
    report, notes = recorder.close_cell(1, outcome)
    return CellEnded(0, 1, outcome, [], 0.1, report, notes)


def judge(guard: str, reply: CellEnded) -> ClusterState:
    """Judge the cell, which the other rank has finished."""
    is_recorded = guard in ("lockstep", "parity")
    cell = Cell(1, CellRequest("f(x)", guard="off" if guard == "off" else "lockstep"), seq=1, ranks=RANKS, now=0.0)
    cell.end_rank(reply)
    cell.end_rank(CellEnded(1, 1, "ok", [], 0.1))
    return judge_cell(cell, (), recorded=is_recorded, disconnected_in=0)[0]


@pytest.mark.parametrize(("outcome", "guard", "place"), list(product(OUTCOMES, GUARDS, PLACES)))
def test_verdict_on_a_cell_with_an_interrupted_rank(outcome: Outcome, guard: str, place: str) -> None:
    """A collective that may still wait taints, and so does an interrupt without a record; a killed rank is dead.

    After a taint the rank refuses launches with other ranks, whatever the next cell's guard: two collectives never pair up.
    """
    recorder = LaunchRecorder(DirectJax(), interrupts=InterruptDelivery(), process_count=2)
    reply = interrupt_rank(recorder, guard, place, outcome)
    may_wait = place != "Python" or guard in ("off", "unavailable")
    assert judge(guard, reply) == ("dead" if outcome == "killed" else "tainted" if may_wait else "clean")
    recorder.begin_cell(RunCell(1, 2, "", "lockstep"))
    if may_wait:
        with pytest.raises(OrderMismatch, match=r"this rank may still be waiting in .* of cell 1\. .* could join it"):
            recorder.abandoned.check("jit(g)", RANKS)
    else:
        recorder.abandoned.check("jit(g)", RANKS)


@pytest.mark.parametrize("guard", ["off", "unavailable"])
def test_cell_without_an_interrupt_needs_no_record(guard: str) -> None:
    """A cell that is not interrupted taints nothing because it has no record, and neither does the cell after an interrupted one."""
    recorder = LaunchRecorder(DirectJax(), interrupts=InterruptDelivery(), process_count=2)
    interrupt_rank(recorder, guard, "Python", "interrupted")
    recorder.begin_cell(RunCell(1, 2, "", "off"))
    recorder.gate._interrupts.reset(2)
    assert not recorder.close_cell(2, "ok")[0].may_have_abandoned


def test_single_rank_abandons_nothing() -> None:
    """A cluster of one rank has no collective with others: an interrupt under off leaves nothing waiting."""
    recorder = LaunchRecorder(DirectJax(), interrupts=InterruptDelivery(), process_count=1)
    assert not interrupt_rank(recorder, "off", "Python", "interrupted").launches.may_have_abandoned
