"""Traced cells on real ranks: one timeline of all of them, and the outcome as without a trace."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.cluster.sharding import request_launched
from mhnb.core.output.results import CellResult
from mhnb.core.trace import STATES, TraceReport
from mhnb.errors import InvalidRequest
from mhnb.system.trace import read_summaries
from tests.support.trace_notes import notes_on_losses

SHARD_MAP = """
from functools import partial
@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=P('x'), out_specs=P())
def total(a):
    return jax.lax.psum(a.sum(), 'x')
total(x).block_until_ready()
"""
SETUP = """
import os, signal, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = Mesh(np.array(jax.devices()), ('x',))
rows, whole = NamedSharding(mesh, P('x')), NamedSharding(mesh, P())
data = np.ones((256, 256), np.float32)
x = jax.make_array_from_callback(data.shape, rows, lambda i: data[i])
@jax.jit
def step(a):
    return jax.lax.with_sharding_constraint((a @ a.T).sum(0), whole)
step(x).block_until_ready()
"""
# On a busy machine the ranks wait for each other for 0.7 s too.
LATE = """
time.sleep(0.02)
for i in range(3):
    if rank == 1: time.sleep(0.8)
    step(x).block_until_ready()
"""


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with a global array and a program that communicates."""
    cluster.run(SETUP).check()
    return cluster


def read_events(report: TraceReport | None) -> list[dict[str, Any]]:
    """Return the events of a timeline."""
    assert report is not None
    with gzip.open(report.path, "rt") as file:
        return list(json.load(file)["traceEvents"])


@pytest.mark.other_python
def test_timeline_has_all_ranks_their_lines_and_collectives(ready: Cluster) -> None:
    """Lines, agreements, operations and collectives of each rank, on one clock; the others wait for the late rank."""
    report = ready.run(LATE, trace=True).check().trace
    assert report is not None
    assert notes_on_losses(report) == []
    assert [row.rank for row in report.ranks] == list(range(ready.process_count))
    for row in report.ranks:
        assert sum(row.seconds(state) for state in STATES) == pytest.approx(row.wall_s)
        assert row.compute_s > 0
    waits = {row.rank: row.waiting_s for row in report.ranks}
    assert min(wait for rank, wait in waits.items() if rank != 1) > waits[1]
    events = read_events(report)
    for rank in range(ready.process_count):
        own = [event for event in events if event["pid"] == rank + 1]
        tracks = {event["args"]["name"] for event in own if event["name"] == "thread_name"}
        assert {"cell", "lines of the cell", "agreement on launches", "device 0", "device 1 collectives"} <= tracks
        lines = [event["args"]["line"] for event in own if event["name"].startswith("line ")]
        assert [line for line in lines if line != 2] == [1, 3, 4, 3, 4, 3, 4]
        cell = next(event for event in own if event["name"] == report.cell_name)
        operations = [event for event in own if event.get("args", {}).get("program") == "jit_step"]
        assert operations
        assert all(cell["ts"] <= event["ts"] <= cell["ts"] + cell["dur"] for event in operations)
    seen = {(row.label.partition(" ")[0], row.place, row.count) for row in report.collectives}
    reports = request_launched(ready, report.seq, range(4), {rank.rank: rank.host for rank in ready.ranks})
    named = {(row.op, str(row.source), 3 * (row.count or 0)) for program in reports for row in program.rows}
    assert seen == named
    assert all(row.label.endswith(" over x") for row in report.collectives)


def test_files_are_those_that_xprof_reads(ready: Cluster, tmp_path: Path) -> None:
    """A folder of the user's has the timelines of several cells, and the ranks' profiles where XProf looks for them."""
    folder = tmp_path / "new" / "traces"
    first = ready.run("step(x).block_until_ready()", trace=folder, ranks="0-3").check().trace
    again = ready.run("step(x).block_until_ready()", trace=str(folder)).check().trace
    assert first is not None
    assert again is not None
    assert Path(first.path).parent == folder == Path(again.path).parent
    assert first.path != again.path
    run = folder / "plugins" / "profile" / f"cell{first.seq}"
    assert sorted(path.name for path in run.iterdir()) == [f"rank{rank}.xplane.pb" for rank in range(4)]
    assert all(path.stat().st_size > 1000 for path in run.iterdir())
    assert Path(first.path).stat().st_mode & 0o077 == 0


def test_some_ranks_are_traced(ready: Cluster) -> None:
    """Only the ranks of the cell are in the timeline; those that skip it are not."""
    report = ready.run("time.sleep(0.01)", ranks="1,3", trace=True).check().trace
    assert report is not None
    assert [row.rank for row in report.ranks] == [1, 3]
    assert {event["pid"] for event in read_events(report)} == {2, 4}


def test_trace_of_a_cell_that_fails_is_there(ready: Cluster) -> None:
    """An error on one rank is the cell's outcome as without a trace, and the timeline has what came before."""
    result = ready.run("time.sleep(0.01)\nif rank == 2: 1 / 0", trace=True)
    assert [rank.rank for rank in result.failed] == [2]
    assert result[2].error is not None
    assert result[2].error.ename == "ZeroDivisionError"
    assert result.trace is not None
    assert all(row.wall_s > 0 for row in result.trace.ranks)


@pytest.mark.other_python
def test_collectives_of_shard_map_are_collectives(ready: Cluster) -> None:
    """XLA names their instructions by JAX's operations. Without the guard, the others wait for the late rank inside of one."""
    ready.run(SHARD_MAP).check()
    known = ready.run("total(x).block_until_ready()", trace=True).check().trace
    assert known is not None
    assert [row.label for row in known.collectives] == ["all-reduce f32[] over x"]
    source = "if rank == 1: time.sleep(1)\ntotal(x).block_until_ready()"
    report = ready.run(source, guard="off", trace=True).check().trace
    assert report is not None
    assert "are recognised by them" in notes_on_losses(report)[0]
    late = report.ranks[1].waiting_s
    assert all(row.waiting_s > late for row in report.ranks if row.rank != 1)
    assert report.collectives[0].last == "rank 1 (100%)"


def test_programs_of_one_name_are_not_mixed_up(ready: Cluster) -> None:
    """Two functions of one name: nothing is claimed that may be of the other one, and a note says so."""
    ready.run(f"{SHARD_MAP}other = total\n{SHARD_MAP.replace('a.sum()', 'a.max()')}").check()
    report = ready.run("total(x).block_until_ready()\nother(x).block_until_ready()", trace=True).check().trace
    assert report is not None
    assert "programs are named jit_total" in notes_on_losses(report)[0]
    assert {row.label for row in report.collectives} == {"all-reduce"}


@pytest.mark.parametrize("stop", ["timeout", pytest.param("interrupt", marks=pytest.mark.soak)])
@pytest.mark.usefixtures("longer_interrupt_timeouts")
def test_cell_of_many_launches_is_stopped_as_without_a_trace(ready: Cluster, stop: str) -> None:
    """After thousands of launches the profiler takes seconds to stop; neither an interrupt nor a time limit meets that."""
    source = "print('begun', flush=True)\ny = 1.0\nk = jax.jit(lambda a: a + 1)\nwhile True:\n    y = k(y)"
    if stop == "timeout":
        result = ready.run(source, timeout_s=1.0, trace=True)
    else:
        begun: list[CellResult] = []

        def interrupt(snapshot: CellResult) -> None:
            if snapshot.wall_s > 1 and not begun:
                begun.append(snapshot)
                ready.interrupt()

        result = ready.run(source, on_snapshot=interrupt, trace=True)
    assert {rank.outcome for rank in result} == {"interrupted"}
    assert ready.state == "clean"
    assert result.trace is not None
    # On a busy machine a rank may be stopped before its first launch, and its profile has no computation.
    assert all(row.compute_s + row.host_s > 0 for row in result.trace.ranks)


def test_cells_of_two_threads_are_both_traced(ready: Cluster) -> None:
    """The first trace is collected after the second cell has run, and nothing of it is lost."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ready.run, "time.sleep(0.5)\nstep(x).block_until_ready()", trace=True)
        second = pool.submit(ready.run, "time.sleep(0.1)\nstep(x).block_until_ready()", trace=True)
        reports = [first.result().check().trace, second.result().check().trace]
    for report in reports:
        assert report is not None
        assert notes_on_losses(report) == []
        assert all(row.wall_s > 0.09 for row in report.ranks)
        assert report.collectives[0].label.endswith(" over x")


def test_cell_may_profile_itself(ready: Cluster, tmp_path: Path) -> None:
    """JAX allows one profile at a time: that of the cell takes the place of the trace's, and nothing fails."""
    ready.push(folder=str(tmp_path))
    source = "with jax.profiler.trace(f'{folder}/{rank}'):\n    step(x).block_until_ready()"
    report = ready.run(source, trace=True).check().trace
    assert report is not None
    assert notes_on_losses(report) == ["ranks 0-3: the cell started a profile of its own, and this one ends there"]
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 4
    # And afterwards JAX's profiler is what it was.
    ready.run(
        "from jax._src.lib import _profiler\nassert not hasattr(_profiler.ProfilerSession, '__wrapped__')"
    ).check()


def test_profile_of_an_earlier_cell_goes_on(ready: Cluster, tmp_path: Path) -> None:
    """A profile that an earlier cell has started is not ended; the timeline has mhnb's own events."""
    ready.push(folder=str(tmp_path))
    ready.run("jax.profiler.start_trace(f'{folder}/{rank}')").check()
    report = ready.run("step(x).block_until_ready()", trace=True).check().trace
    ready.run("jax.profiler.stop_trace()").check()
    assert report is not None
    (note,) = notes_on_losses(report)
    assert note.startswith("ranks 0-3: no profile: ")
    assert all(row.unrecorded_s > 0 and row.host_s == 0 for row in report.ranks)
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 4
    assert any(event["name"].startswith("waits for agreement") for event in read_events(report))


def test_async_cell_and_unguarded_cell_are_traced(ready: Cluster) -> None:
    """A cell that awaits has its lines; without the guard collectives have the compiler's names."""
    report = (
        ready.run("import asyncio\nawait asyncio.sleep(0.01)\nstep(x).block_until_ready()", trace=True).check().trace
    )
    lines = [event["args"]["line"] for event in read_events(report) if event["pid"] == 1 and "line" in event["name"]]
    assert [line for line in lines if isinstance(line, int)][:3] == [1, 2, 3]
    unguarded = ready.run("step(x).block_until_ready()", guard="off", trace=True).check().trace
    assert unguarded is not None
    assert unguarded.collectives
    assert all(row.label.startswith("all-") for row in unguarded.collectives)


def test_trace_that_cannot_be_written_leaves_the_table(ready: Cluster, tmp_path: Path) -> None:
    """Where the files cannot be written, the times are still there, with the reason; no part of a file is left."""
    folder = tmp_path / "full"
    folder.mkdir()
    seq = ready.run("step(x)").check().seq + 1
    (folder / f"cell{seq}.timeline.json.gz").symlink_to(tmp_path / "elsewhere")
    (folder / f"cell{seq}-2.timeline.json.gz").symlink_to(tmp_path / "elsewhere")
    report = ready.run("step(x).block_until_ready()", trace=folder).check().trace
    assert report is not None
    assert all(row.compute_s > 0 for row in report.ranks)
    assert report.path == ""
    assert "not all files of the trace could be written" in notes_on_losses(report)[0]
    assert not (tmp_path / "elsewhere").exists()
    # The links are the user's.
    assert len([path for path in folder.iterdir() if path.is_symlink()]) == 2


def test_bad_folder_is_refused_before_anything_is_sent(ready: Cluster, tmp_path: Path) -> None:
    """A file is not a folder; nothing was run."""
    path = tmp_path / "file"
    path.touch()
    for bad in (path, "", 7, "~nosuchuser/x", "n" * 300, "a\0b", "/proc/nowhere/x"):
        with pytest.raises(InvalidRequest, match="expected"):
            ready.run("ran = True", trace=bad)  # type: ignore[arg-type]
    ready.run("assert 'ran' not in globals()").check()


def test_dead_rank_has_no_trace_and_the_result_is_kept(fresh: Callable[..., Cluster]) -> None:
    """A rank that is killed in a traced cell: its cell ends as without a trace, and the summary is kept for the shell."""
    cluster = fresh(2, 1, name="traced")
    cluster.run(SETUP).check()
    fine = cluster.run("step(x).block_until_ready()", trace=True).check().trace
    result = cluster.run("time.sleep(0.05)\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)", trace=True)
    assert [rank.rank for rank in result.failed][:1] == [1]
    assert result.trace is not None
    assert any(note.startswith(("rank 1: no profile: ", "ranks 0-1: no profile: ")) for note in result.trace.notes)
    assert [row.wall_s > 0 for row in result.trace.ranks][1] is False
    run_dir = cluster.log_dir.parent
    assert [report.seq for report in read_summaries(run_dir)][:1] == [fine.seq if fine else None]
