"""Hang report on real ranks: which ranks wait, which are missing and where they are, while the cell still hangs."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.hang_report import HangReport
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import describe_ranks
from mhnb.view.print_text import print_text
from mhnb.view.reports.hang import build_hang

LATE = 1
"""The rank that arrives late."""
WAIT_S = 60.0
PREPARE = """
import os, threading, time
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
me, count = jax.process_index(), jax.device_count()
mesh = Mesh(np.array(jax.devices()), ("d",))
spread = NamedSharding(mesh, P("d"))
x = jax.make_array_from_callback((count,), spread, lambda i: np.arange(count, dtype=np.float32)[i])
add = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, P()))
ring = [(i, (i + 1) % count) for i in range(count)]
shift = jax.jit(jax.shard_map(lambda a: jax.lax.ppermute(a, "d", ring), mesh=mesh, in_specs=P("d"), out_specs=P("d")))
lock = threading.Lock()
def come_late(flag):
    while not os.path.exists(flag):
        time.sleep(0.2)
float(add(x)), shift(x).block_until_ready()
"""


def run_in_thread(function: Callable[[], CellResult]) -> Future[CellResult]:
    """Run a function in a thread; return a future of its result."""
    future: Future[CellResult] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - the test that asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def wait_for_report(cluster: Cluster, condition: Callable[[HangReport], bool], limit_s: float) -> HangReport:
    """Poll the hang report until it meets the condition."""
    deadline = time.monotonic() + limit_s
    while True:
        report = cluster.where()
        if report is not None and condition(report):
            return report
        assert time.monotonic() < deadline, f"no such card within {limit_s:g} s; the last was {report}"
        time.sleep(0.05)


def _has_settled(report: HangReport) -> bool:
    """Check that ranks wait and no rank makes progress any more."""
    return report.stuck and not report.progress


def _only_waits(*ranks: int) -> Callable[[HangReport], bool]:
    """Make the condition that these ranks wait and no rank makes progress any more.

    On a loaded machine ranks arrive one after another, and one may have no processor time for so long that nothing seems to move.
    """
    return lambda report: _has_settled(report) and report.waiting == ranks


def _compiles(report: HangReport) -> bool:
    """Check that every rank has been sampled and is compiling."""
    return report.known and {place.activity for place in report.places} == {"compiling"}


@contextmanager
def running(cluster: Cluster, source: str, flag: Path, **flags: Any) -> Iterator[Future[CellResult]]:
    """Run a cell that lasts until the file `flag` exists, and check that it then succeeds."""
    future = run_in_thread(lambda: cluster.run(textwrap.dedent(source), guard="parity", **flags))
    try:
        yield future
    finally:
        flag.touch()
    future.result(60).check()


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """A file that ends the hang once it exists."""
    return tmp_path / "go"


@pytest.fixture
def prepared(cluster: Cluster) -> Cluster:
    """The shared cluster with the programs that the cells launch."""
    cluster.run(PREPARE).check()
    return cluster


CASES = {
    "psum": ("float(add(x))", "jit(<lambda>)"),
    "psum_not_fetched": ("y = add(x)", "jit(<lambda>)"),
    "ppermute": ("shift(x).block_until_ready()", "jit(<lambda>)"),
    "device_put": ("z = jax.device_put(np.arange(float(count)), spread)", "device_put"),
    "process_allgather": ("multihost_utils.process_allgather(np.arange(3.0))", "process_allgather"),
    "named_barrier": ("multihost_utils.sync_global_devices('here')", "sync_global_devices"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sample(2)
def test_report_names_waiting_and_missing_ranks(prepared: Cluster, flag: Path, case: str) -> None:
    """While one rank is missing, the report names the waiting ranks, their launch and line, and where the missing rank is."""
    code, launch = CASES[case]
    # In a ring only the ranks that send to the late rank, or receive from it, have to wait.
    waiting = (0, 2) if case == "ppermute" else (0, 2, 3)
    with running(prepared, f"if me == {LATE}:\n    come_late({str(flag)!r})\n{code}", flag):
        report = wait_for_report(prepared, _only_waits(*waiting), WAIT_S)
        text = print_text(build_hang(report, name="shared"))
    assert report.absent == (LATE,), text
    assert report.launch == launch, text
    assert report.lines == {LATE: 2, 3: None if case == "ppermute" else 3} | dict.fromkeys(waiting, 3), text
    assert report.age_s > 0, text
    assert f"{describe_ranks(waiting)} in {launch}, line 3:  {code}" in text
    assert re.search(rf"missing +· rank {LATE} in sleep, cell \d+:\d+ come_late ← line 2:  come_late", text), text
    assert prepared.where() is None


def test_ranks_that_wait_for_a_lock_are_reported(prepared: Cluster, flag: Path) -> None:
    """Ranks that wait for a lock are reported as waiting, with the line; ranks that do not wait for it are missing."""
    source = f"""
    lock.acquire()
    if me == {LATE}:
        come_late({str(flag)!r})
    else:
        threading.Thread(target=lambda: (come_late({str(flag)!r}), lock.release())).start()
        with lock:
            pass
    """
    with running(prepared, source, flag):
        report = wait_for_report(prepared, _only_waits(0, 2, 3), WAIT_S)
    assert (report.waiting, report.absent) == ((0, 2, 3), (LATE,))
    assert [place.activity for place in report.places] == ["lock", "sleep"]
    assert report.lines[0] == 6


@pytest.mark.test_all
def test_rank_in_a_lock_is_missing_from_the_launch(prepared: Cluster, flag: Path) -> None:
    """A rank that hangs in a lock is missing from the launch that the other ranks wait in."""
    source = f"""
    if me == {LATE}:
        lock = threading.Lock()
        lock.acquire()
        threading.Thread(target=lambda: (come_late({str(flag)!r}), lock.release())).start()
        lock.acquire()
    float(add(x))
    """
    with running(prepared, source, flag):
        report = wait_for_report(prepared, _only_waits(0, 2, 3), WAIT_S)
    assert (report.waiting, report.absent) == ((0, 2, 3), (LATE,))
    assert (report.places[1].activity, report.places[1].what, report.lines[LATE]) == ("lock", "acquire", 5)


def test_rank_with_fewer_launches_is_missing(prepared: Cluster, flag: Path) -> None:
    """A rank that has reached fewer launches is missing, even if it is on the same line as the waiting ranks."""
    source = f"""
    for step in range(2):
        [float(add(x)), come_late({str(flag)!r}) if me == {LATE} and step == 1 else None][0]
        if me == {LATE}: come_late({str(flag)!r})
    """
    with running(prepared, source, flag):
        report = wait_for_report(prepared, _only_waits(0, 2, 3), WAIT_S)
    assert (report.waiting, report.absent) == ((0, 2, 3), (LATE,))


@pytest.mark.test_all
def test_rank_that_ended_the_cell_is_missing(fresh: Callable[..., Cluster], default_disconnect_timeout: None) -> None:
    """Ranks that ended the cell without a psum are missing from it, and the report says that they ended the cell."""
    cluster = fresh(3, 1)
    cluster.run(PREPARE).check()
    future = run_in_thread(lambda: cluster.run("if me != 1:\n    float(add(x))", guard="parity"))
    report = wait_for_report(cluster, _only_waits(0, 2), WAIT_S)
    assert (report.waiting, report.absent, report.lines[1]) == ((0, 2), (1,), None)
    assert "rank 1 ended the cell" in print_text(build_hang(report))
    cluster.interrupt()
    assert not future.result(60).ok
    assert cluster.where() is None


COMPILING = """
def big(x, k):
    for i in range(60):
        x = jnp.sin(x) @ x + jnp.cos(x) * (i + k)
    return x
def compile_until(flag, k=0):
    while not os.path.exists(flag):
        k += 1
        jax.jit(lambda x: big(x, k)).lower(jnp.ones((16, 16))).compile()
"""
"""Compiles a new program each time, for as long as a test needs, however fast the machine is."""


@pytest.mark.test_all
def test_long_compilation_is_reported_as_compiling(prepared: Cluster, flag: Path) -> None:
    """Ranks that compile are reported as compiling, neither as waiting nor as missing."""
    with running(prepared, f"{COMPILING}compile_until({str(flag)!r})", flag):
        report = wait_for_report(prepared, _compiles, WAIT_S)
    assert (report.waiting, report.absent, report.launch) == ((), (), None)
    assert re.search(
        r"running .* compiling.* line 8:  jax.jit\(lambda x: big\(x, k\)\)", print_text(build_hang(report))
    )


@pytest.mark.test_all
def test_slow_trace_is_reported_as_compiling(prepared: Cluster, flag: Path) -> None:
    """A rank that traces a program is compiling, although the innermost frame is the user's function."""
    source = f"""
    def slow(x):
        while not os.path.exists({str(flag)!r}): sum(range(100_000))
        return x
    jax.jit(slow).lower(1.0).compile()
    """
    with running(prepared, source, flag):
        wait_for_report(prepared, _compiles, WAIT_S)


@pytest.mark.test_all
def test_compiling_rank_is_missing_from_the_launch(prepared: Cluster, flag: Path) -> None:
    """A rank for which XLA compiles is missing from the launch of the other ranks, and is reported as compiling."""
    source = f"{COMPILING}if me == {LATE}: compile_until({str(flag)!r})\nfloat(add(x))"
    with running(prepared, source, flag):
        report = wait_for_report(prepared, lambda card: card.stuck and card.waiting == (0, 2, 3), WAIT_S)
    assert report.absent == (LATE,)
    assert {place.ranks: place.activity for place in report.places}[LATE,] == "compiling"


LONG_COMPUTATIONS = {
    "python": "while not os.path.exists({flag!r}): sum(range(100_000))",
    "numpy": "a = np.ones((1500, 1500))\nwhile not os.path.exists({flag!r}): a @ a",
    "local_jit": "f = jax.jit(lambda a: jax.lax.fori_loop(0, 50, lambda i, a: a @ a / 1e3, a))\n"
    "while not os.path.exists({flag!r}): f(np.ones((500, 500), np.float32)).block_until_ready()",
}


@pytest.mark.parametrize("case", LONG_COMPUTATIONS)
@pytest.mark.sample(1)
def test_slow_computation_is_reported_as_computing(prepared: Cluster, flag: Path, case: str) -> None:
    """Ranks that compute are never reported as waiting, however long the computation takes."""

    def has_compiled(report: HangReport) -> bool:
        return report.known and "compiling" not in {place.activity for place in report.places}

    with running(prepared, LONG_COMPUTATIONS[case].format(flag=str(flag)), flag):
        report = wait_for_report(prepared, has_compiled, WAIT_S)
    assert (report.waiting, report.absent) == ((), ())
    assert {place.activity for place in report.places} <= {"computing", "silent"}, report


SPIN = """
import time
spin = lambda x, n: jax.lax.fori_loop(0, n, lambda i, a: a * 1.0001 + 1, x).sum()
slow = jax.jit(spin, static_argnums=1, out_shardings=NamedSharding(mesh, P()))
float(slow(x, 20_000_000))
"""
SPIN_S = 10.0
"""Duration of the program under test; a short run just before gives its number of iterations."""


def _computes(report: HangReport) -> bool:
    return report.known and not report.waiting and "" not in {place.what for place in report.places}


@pytest.mark.test_all
def test_slow_program_of_all_ranks_is_computing(prepared: Cluster, flag: Path) -> None:
    """A long program of all ranks is computing, because all ranks have reached it and use their processors."""
    prepared.run(SPIN).check()
    took_s = prepared.run("began = time.monotonic(); _ = float(slow(x, 20_000_000)); print(time.monotonic() - began)")
    iterations = int(20_000_000 * SPIN_S / float(took_s.check()[0].stdout))
    with running(prepared, f"float(slow(x, {iterations}))", flag):
        # On a loaded machine a rank that computes may at first have no time to report where it is, or no time to
        # compute.
        report = wait_for_report(prepared, _computes, WAIT_S)
    assert (report.waiting, report.absent) == ((), ())
    assert [(place.activity, place.what) for place in report.places] == [("computing", "jit(<lambda>)")]


@pytest.mark.test_all
def test_where_command_prints_the_report(prepared: Cluster, flag: Path) -> None:
    """`mhnb where NAME` prints the hang report while the cell hangs, and says so if no cell runs."""

    def run_where(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mhnb", "where", name]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    with running(prepared, f"if me == {LATE}:\n    come_late({str(flag)!r})\nfloat(add(x))", flag):
        wait_for_report(prepared, _has_settled, WAIT_S)
        # On a loaded machine a waiting rank may use its processor for a while, which looks like work.
        deadline = time.monotonic() + WAIT_S
        while "waiting" not in (completed := run_where("shared")).stdout:
            assert time.monotonic() < deadline, completed.stdout
    assert completed.returncode == 0
    assert "waiting" in completed.stdout
    assert "ranks 0,2-3 in jit(<lambda>), line 3:  float(add(x))" in completed.stdout
    assert run_where("nobody").returncode == 1
    assert run_where("shared").stdout == "no cell is running\n"


def test_no_report_between_cells(cluster: Cluster) -> None:
    """There is no hang report between cells, and none remains after a short cell."""
    assert cluster.where() is None
    cluster.run("1").check()
    assert cluster.where() is None
