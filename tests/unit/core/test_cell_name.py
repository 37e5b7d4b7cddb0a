"""One number for a cell: which cell an argument names, and names in messages of a cluster and its journal."""

from __future__ import annotations

import pytest

from mhnb.core.cell_name import CellPlace, find_cell, join_cell_arguments, parse_cell_argument
from mhnb.core.guard.launch_report import LaunchPlace, LaunchReport, LaunchRow
from mhnb.core.journal import (
    CellRecord,
    PushRecord,
    ReplayRecord,
    StartRecord,
    forget_other_kernels,
    format_record,
    parse_record,
)
from mhnb.core.messages import CellEnded, RankReady, RankSpawned, RunCell
from mhnb.core.output.events import ErrorRaised
from mhnb.core.replay import (
    ReplayPlan,
    ReplayReport,
    ReplayStep,
    find_replay_end,
    format_recovery_before,
    format_report,
    format_step,
    format_stop,
    plan_replay,
)
from mhnb.core.state.events import CellRequest, CellSubmitted, FinishCell, SendToRank
from mhnb.core.state.machine import ClusterStateMachine
from mhnb.core.state.rank_registry import RankRegistry
from mhnb.errors import InvalidRequest

GUARD = {"guard": {"available": True, "reason": ""}}
SHOWN = [CellRecord(1, seq, "f()", execution_count=count) for seq, count in ((1, 3), (2, 5), (3, None), (4, 9))]


@pytest.mark.parametrize(
    ("text", "seq"),
    [
        ("In[5]", 2),
        ("In [5]", 2),
        ("in[5]", 2),
        ("5", 2),
        ("cell 2", 2),
        ("cell2", 2),
        ("2", 2),
        ("3", 1),
        ("cell 3", 3),
        ("In[2]", None),
        ("7", None),
        ("cell 5", None),
    ],
)
def test_a_bare_number_is_the_one_that_the_user_sees(text: str, seq: int | None) -> None:
    """It is mhnb's own where the notebook shows it beside none of these cells."""
    argument = parse_cell_argument(text)
    assert argument is not None
    assert find_cell(argument, {cell.seq: cell.execution_count for cell in SHOWN}) == seq


@pytest.mark.parametrize("text", ["", "x", "In", "In[]", "[5]", "-1", "1.5", "In[5", "off"])
def test_other_words_are_no_cells(text: str) -> None:
    """A command says what it expected."""
    assert parse_cell_argument(text) is None


def test_a_cell_with_a_blank_is_one_word() -> None:
    """It may be copied from the notebook."""
    assert join_cell_arguments("panel In [7] --view grid") == "panel In[7] --view grid"
    assert join_cell_arguments("panel Train [7]") == "panel Train [7]"


def test_where_a_replay_ends_is_told_where_two_cells_have_the_number() -> None:
    """An error names what was given, and the cells that there are."""
    find = lambda text: find_replay_end(SHOWN, 1, parse_cell_argument(text))  # type: ignore[arg-type] # noqa: E731
    assert find("5") == (2, "")
    assert find("In[9]") == (4, "")
    assert find("3") == (1, "--to 3 is In [3], which is cell 1 of the cluster; cell 3 is another")
    with pytest.raises(
        InvalidRequest, match=r"--to In \[4\]: unknown cell; the journal has In \[3,5,9\] and cell 3 of generation 1"
    ):
        find("In[4]")


def test_a_replay_names_cells_as_the_notebook_does() -> None:
    """Its progress, its summary and its commands."""
    plan = ReplayPlan((1,), (*SHOWN, PushRecord(1, ("x",), None)))
    assert format_step(ReplayStep("In [5]", 1, plan)) == "mhjax · replaying In [5] of In [9]"
    assert "replayed In [3,5,9] and cell 3 and 1 push" in format_report(ReplayReport(plan, 5, 0.1), "0.1 s")
    stopped = format_stop(ReplayReport(plan, 2, 0.1, stop="no"), "tainted")
    assert "In [3,5] gave the same result as before; In [9] was not run" in stopped
    assert stopped.endswith("%mhjax restart --replay --to In[5]")
    assert [format_recovery_before(SHOWN, 1, seq).rpartition(" ")[2] for seq in (2, 3, 4)] == [
        "In[3]",
        "In[5]",
        "cell3",
    ]


def test_the_journal_keeps_the_number_with_its_kernel() -> None:
    """A replay by the same kernel names cells by it, one by another kernel does not; both keep the lines."""
    record = CellRecord(1, 12, "f()", execution_count=7, first_line=2, kernel="a")
    assert parse_record(format_record(record)) == record
    assert forget_other_kernels(record, "a").name == "In [7]"  # type: ignore[union-attr]
    of_other = forget_other_kernels(record, "b")
    assert isinstance(of_other, CellRecord)
    assert (of_other.name, of_other.place) == ("cell 12", CellPlace(None, 2))
    start = StartRecord(1, "2 x 1")
    assert plan_replay([start, record, ReplayRecord(1, 0, None, complete=True)], 1).steps == (record,)


def run_cells(machine: ClusterStateMachine) -> None:
    """Make two ranks ready."""
    for rank in (0, 1):
        machine.handle(RankSpawned(rank, 100 + rank), 0.1)
        machine.handle(RankReady(rank, GUARD), 0.1)


def new_machine() -> ClusterStateMachine:
    """Return the state machine of two ranks that are ready, of a kernel named `a`."""
    machine = ClusterStateMachine(
        RankRegistry(["host0", "host1"], ["log0", "log1"]), generation=1, now=0.0, start_timeout_s=60.0, kernel="a"
    )
    run_cells(machine)
    return machine


def test_the_cluster_names_cells_as_the_notebook_does() -> None:
    """A note on the next cell names the cell that it is about; ranks learn number, lines and kernel; the record has them."""
    machine = new_machine()
    request = CellRequest("x = f()", place=CellPlace(7, 2))
    sent = machine.handle(CellSubmitted(1, request), 1.0)
    assert sent[0] == SendToRank(0, RunCell(1, 1, "x = f()", "parity", None, 7, 2, "a"))
    raised = ErrorRaised("ValueError", "no", [], 2, "x = f()", 0.1)
    machine.handle(CellEnded(0, 1, "error", [raised], 0.1), 1.1)
    (finished,) = machine.handle(CellEnded(1, 1, "ok", [], 0.1), 1.2)
    assert isinstance(finished, FinishCell)
    assert finished.record is not None
    assert (finished.result.name, finished.record.place, finished.record.kernel) == ("In [7]", CellPlace(7, 2), "a")
    # Of code that is no cell, mhnb's own number is the name.
    machine.handle(CellSubmitted(2, CellRequest("g()")), 2.0)
    lines = LaunchReport([LaunchRow("f1", "jit(f)", (0, 1), 2, 1)])
    machine.handle(CellEnded(0, 2, "ok", [], 0.1, lines), 2.1)
    (finished,) = machine.handle(CellEnded(1, 2, "ok", [], 0.1), 2.2)
    assert isinstance(finished, FinishCell)
    assert finished.result.notes[0].startswith("launch 1 of cell 2 differs")
    assert str(finished.result.carried) == "In [7] finished on rank 1 only: variables may differ"


def test_a_launch_of_an_earlier_cell_is_named_by_that_cell() -> None:
    """What was left behind there is what the user has to look at."""
    machine = new_machine()
    machine.handle(CellSubmitted(1, CellRequest("f()", place=CellPlace(7, 2))), 1.0)
    for rank in (0, 1):
        machine.handle(CellEnded(rank, 1, "ok", [], 0.1), 1.1)
    machine.handle(CellSubmitted(2, CellRequest("g()", place=CellPlace(8, 2))), 2.0)
    left = LaunchReport(abandoned_count=1, abandoned_launch=LaunchPlace("jit(f) f32[]", 3, 1))
    machine.handle(CellEnded(0, 2, "interrupted", [], 0.1, left), 2.1)
    (finished,) = machine.handle(CellEnded(1, 2, "interrupted", [], 0.1), 2.2)
    assert isinstance(finished, FinishCell)
    assert finished.result.notes[0] == "rank 0 abandoned jit(f) of In [7] before it completed"
