"""The flight recorder and stragglers, on real ranks: what is recorded, compared, quoted and kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.flight import RECORD, RING_START, FlightEvent, FlightReport
from mhnb.core.output.results import CellResult
from mhnb.system.run_dir import make_run_dir as make_real_run_dir
from tests.integration.ranks.conftest import once_all_have_printed, wait_for_exit
from tests.support.source import ROOT

SETUP = """
import os, signal, threading, time
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = Mesh(np.array(jax.devices()), ('x',))
rows, whole = NamedSharding(mesh, P('x')), NamedSharding(mesh, P())
x = jax.make_array_from_callback((8,), rows, lambda i: np.arange(8, dtype=np.float32)[i])
@partial(jax.jit, out_shardings=whole)
def add(a): return a.sum()
@partial(jax.jit, out_shardings=whole)
def top(a): return a.max()
float(add(x)), float(top(x))
"""
LATE_STEPS = """
for step in range(20):
    if rank == 2: time.sleep(0.05)
    add(x).block_until_ready()
"""

SUBSET = """
part = Mesh(np.array([d for d in jax.devices() if d.process_index in (1, 3)]), ('x',))
if rank in (1, 3):
    y = jax.make_array_from_callback((4,), NamedSharding(part, P('x')), lambda i: np.arange(4, dtype=np.float32)[i])
    low = jax.jit(lambda a: a.min(), out_shardings=NamedSharding(part, P()))
    for step in range(20):
        if rank == 3: time.sleep(0.05)
        low(y).block_until_ready()
"""


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with a global array and two collectives."""
    cluster.run(SETUP).check()
    return cluster


@pytest.fixture
def own(fresh: Callable[..., Cluster]) -> Cluster:
    """A cluster of two ranks for one test, with a global array and two collectives."""
    cluster = fresh(2, 2, name="flown")
    cluster.run(SETUP.replace("(8,)", "(4,)").replace("arange(8", "arange(4")).check()
    return cluster


def events_of(report: FlightReport, rank: int, result: CellResult) -> list[FlightEvent]:
    """Return what a rank recorded in a cell."""
    return [event for event in report.flights[rank].events if event.cell == result.seq]


def cells_with_differences(report: FlightReport) -> set[int]:
    """Return the cells in which ranks differed; other tests on the same cluster may have some."""
    return {divergence.cell for divergence in report.divergences}


def test_every_step_of_a_cell_is_recorded(ready: Cluster) -> None:
    """Beginning, compilation, proposal, agreement, launch and end, with line, program, number and participants."""
    result = ready.run(
        "y = 1\nfloat(add(x))\nfloat(add(x))\nfloat(jax.jit(lambda a: a.min(), out_shardings=whole)(x))"
    ).check()
    report = ready.flight()
    assert cells_with_differences(report).isdisjoint({result.seq})
    for rank in range(4):
        events = events_of(report, rank, result)
        kinds = [event.kind for event in events]
        assert (kinds[0], kinds[-1]) == ("cell", "end")
        assert (events[0].program, events[-1].program) == ("lockstep", "ok")
        steps = [
            (e.kind, e.line, e.launch, e.participants) for e in events if e.kind in ("proposal", "agreement", "launch")
        ]
        assert steps == [
            (kind, 1 + number, number, "0-3") for number in (1, 2, 3) for kind in ("proposal", "agreement", "launch")
        ]  # fmt: skip
        assert [e.line for e in events if e.kind == "compilation"][-1:] == [4]
        assert all(e.program.startswith("jit(") for e in events if e.kind == "launch")
        times = [event.time_ns for event in events]
        assert times == sorted(times)


def test_launches_of_some_ranks_are_recorded_and_measured(ready: Cluster) -> None:
    """A program of ranks that are not next to each other, rank 0 not among them, has its own numbers and its own stragglers."""
    result = ready.run(SUBSET).check()
    assert any(note.startswith("rank 3 came last at ") for note in result.notes), result.notes
    events = events_of(ready.flight(), 3, result)
    launches = [event for event in events if event.kind == "launch"]
    assert [(event.launch, event.participants) for event in launches] == [(n, "1,3") for n in range(1, 21)]
    assert cells_with_differences(ready.flight()).isdisjoint({result.seq})


def test_programs_of_one_rank_are_no_launches(ready: Cluster) -> None:
    """A program on the devices of one rank alone needs no other rank: only its compilation is recorded, and nothing is compared."""
    result = ready.run("if rank == 1: float(jnp.ones(3).sum())").check()
    report = ready.flight()
    assert {event.kind for event in events_of(report, 1, result)} == {"cell", "compilation", "end"}
    assert cells_with_differences(report).isdisjoint({result.seq})


def test_without_a_guard_only_cells_and_compilations_are_recorded(ready: Cluster) -> None:
    """Under --guard off launches are not seen; the report names the cell."""
    result = ready.run("float(jax.jit(lambda a: a.max() + 1, out_shardings=whole)(x))", guard="off").check()
    report = ready.flight()
    assert {event.kind for event in events_of(report, 0, result)} == {"cell", "compilation", "end"}
    assert result.seq in report.unguarded_cells
    ready.accept()


def test_parity_records_launches_without_agreements(ready: Cluster) -> None:
    """Under parity there is no proposal, and the launches are compared all the same."""
    result = ready.run("float(add(x))", guard="parity").check()
    assert {event.kind for event in events_of(ready.flight(), 0, result)} == {"cell", "launch", "end"}


def test_first_difference_is_found(own: Cluster) -> None:
    """The program that one rank proposed where the other proposed another is the first difference, with both lines."""
    result = own.run("float(add(x))\nif rank: float(top(x))\nelse: float(add(x))")
    assert {rank.error.ename for rank in result if rank.error} == {"OrderMismatch"}
    own.run("float(add(x))")
    found = own.flight().divergence
    assert found is not None
    assert (found.cell, found.launch) == (result.seq, 2)
    assert [(side.ranks, side.event and side.event.line) for side in found.sides] == [((0,), 3), ((1,), 2)]


def test_rank_that_did_not_come_is_found(own: Cluster) -> None:
    """The rank that ended the cell instead is one side of the difference."""
    result = own.run("if rank == 0: float(add(x))")
    found = own.flight().divergence
    assert found is not None
    assert found.cell == result.seq
    assert [(side.ranks, side.event is None) for side in found.sides] == [((0,), False), ((1,), True)]
    assert found.sides[1].last is not None
    assert found.sides[1].last.kind == "end"


def test_same_program_on_different_lines_is_no_difference(ready: Cluster) -> None:
    """A cell whose ranks take different branches to the same launch is clean, and so is its report."""
    result = ready.run("if rank: float(add(x))\nelse:\n    float(add(x))").check()
    assert result.state == "clean"
    assert cells_with_differences(ready.flight()).isdisjoint({result.seq})


def test_refused_arrays_are_a_difference(own: Cluster) -> None:
    """The same program on arrays with different histories is refused on both ranks: that is the first difference."""
    result = own.run("x = x + rank\nfloat(add(x))")
    assert {rank.error.ename for rank in result if rank.error} == {"OrderMismatch"}, result
    found = own.flight().divergence
    assert found is not None
    assert (found.cell, found.sides[0].ranks) == (result.seq, (0, 1))


@pytest.mark.test_all
def test_interrupt_is_recorded(own: Cluster) -> None:
    """An interrupt that a rank's code received is an event of the cell."""
    code = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)"
    result = own.run(code, on_snapshot=once_all_have_printed(own.interrupt))
    events = events_of(own.flight(), 1, result)
    assert [(event.kind, event.line) for event in events][-2:] == [("interrupt", 3), ("end", None)]
    assert events[-1].program == "interrupted"


def test_death_quotes_the_last_event(own: Cluster) -> None:
    """The card of a rank that was killed says what it did last, and its recording is still there."""
    result = own.run("float(add(x))\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nfloat(add(x))")
    assert result.state == "dead"
    assert "last event: launched jit(add) f32[4] → f32[], line 1 of cell 2 · log " in own.reason, own.reason
    events = events_of(own.flight(), 1, result)
    assert [event.kind for event in events] == ["cell", "proposal", "agreement", "launch"]


@pytest.mark.test_all
def test_shell_reads_a_running_and_a_dead_cluster(own: Cluster, tmp_path: Path) -> None:
    """`mhnb flight NAME` shows the same of a running cluster, of one whose processes were killed, and of one that was stopped."""
    own.run("float(add(x))").check()
    pids = [own.supervisor_pid, *(rank.pid for rank in own.ranks if rank.pid)]
    running = run_shell("flown")
    assert running[0].startswith("flown.")
    assert "the ranks launched the same programs, as far as they are recorded" in running
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert wait_for_exit(pids) == []
    assert run_shell("flown")[1:] == running[1:]
    own.stop()
    assert run_shell("flown")[1:] == running[1:]
    assert run_shell("flown", "--rank", "1")[0].startswith("rank 1 · ")
    file = tmp_path / "events.json"
    assert run_shell("flown", "--json", str(file))[0].startswith(f"wrote {file}: 2 ranks, ")
    assert [len(rank["events"]) > 5 for rank in json.loads(file.read_text())["ranks"]] == [True, True]


def run_shell(*words: str) -> list[str]:
    """Run `mhnb flight`; return its lines."""
    command = [sys.executable, "-m", "mhnb", "flight", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.test_all
def test_torn_recording_is_read(own: Cluster) -> None:
    """A rank that was killed in the middle of a write has all events but that one."""
    own.run("float(add(x))").check()
    before = own.flight().flights[1]
    path = own.log_dir.parent / "flight" / "rank1.events"
    with path.open("r+b") as file:
        file.seek(RING_START + len(before.events) * RECORD.size - 8)
        file.write(bytes(8))
    torn = own.flight().flights[1]
    assert torn.is_torn
    assert torn.events == before.events[:-1]


@pytest.mark.test_all
def test_rank_without_a_recorder_runs(fresh: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file cannot be made, the ranks start all the same, and the report says why there are no events."""

    def make_run_dir(*arguments: Any, **options: Any) -> Path:
        made = make_real_run_dir(*arguments, **options)
        (made / "flight").write_text("a file where the folder should be")
        return made

    monkeypatch.setattr("mhnb.cluster.generation.make_run_dir", make_run_dir)
    cluster = fresh(2, 1, name="full")
    cluster.run("1 + 1").check()
    assert all("Not a directory" in flight.problem for flight in cluster.flight().flights), cluster.flight().flights


# -- stragglers


def test_late_rank_is_named_on_its_cell(ready: Cluster) -> None:
    """50 ms more on one rank in each of 20 steps: the cell's notes name it, with the share of the time."""
    result = ready.run(LATE_STEPS).check()
    assert any(
        note.startswith("rank 2 came last at ") and note.endswith(" · %mhjax flight") for note in result.notes
    ), result.notes
    stragglers = ready.stragglers()
    assert stragglers is not None
    assert (stragglers.named, stragglers.ranks[0].rank, stragglers.agreement_count) == ((2,), 2, 20)
    assert stragglers.ranks[0].waited_s > 0.5
    assert stragglers.clock_error_s == 0
    every = ready.flight().stragglers
    assert every is not None
    assert every.agreement_count > 20


def test_no_rank_is_named_without_a_delay(ready: Cluster) -> None:
    """Without a delay the cell has no note, and the table is there all the same."""
    result = ready.run(LATE_STEPS.replace("rank == 2", "True")).check()
    assert not any("came last" in note for note in result.notes)
    stragglers = ready.stragglers()
    assert stragglers is not None
    assert stragglers.named == ()


def test_cell_without_a_launch_keeps_the_table(ready: Cluster) -> None:
    """A cell without launches of several ranks does not replace the last table."""
    ready.run(LATE_STEPS).check()
    ready.run("1 + 1").check()
    stragglers = ready.stragglers()
    assert stragglers is not None
    assert stragglers.agreement_count == 20


def test_hang_report_quotes_what_a_missing_rank_did_last(ready: Cluster) -> None:
    """While ranks wait for one that sleeps, the report has that rank's last event."""
    cell = ready.submit("float(add(x))\nif rank == 1: time.sleep(60)\nfloat(top(x))")
    report = None
    while report is None or 1 not in report.last_events or report.absent != (1,):
        report = ready.where()
    ready.interrupt()
    ready.follow(cell)
    assert (report.last_events[1].kind, report.last_events[1].line) == ("launch", 1)
    assert set(report.last_events) == {1}
