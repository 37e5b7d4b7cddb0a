"""Fixtures with real ranks for the tests of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from mhnb.core.launch.environment import rank_environment
from mhnb.core.output.results import CellResult
from mhnb.launchers import child_process
from tests.support.leftovers import keep_for_session, wait_for_end
from tests.support.timeouts import (
    default_disconnect_timeout,
    default_kill_timeout,
    long_agreement_timeout,
    longer_interrupt_timeouts,
)
from tests.support.typed_lines import user
from tests.support.warm_start import ADDRESS, WarmProcess, warm_subprocess

__all__ = [
    "default_disconnect_timeout",
    "default_kill_timeout",
    "long_agreement_timeout",
    "longer_interrupt_timeouts",
    "user",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder with `ranks`, because all of them start ranks."""
    for item in items:
        if "tests/integration/ranks/" in str(item.path).replace("\\", "/"):
            item.add_marker(pytest.mark.ranks)


def list_pids(cluster: Cluster) -> list[int]:
    """Return the pids of the supervisor, the hub and the ranks."""
    pids = [cluster.supervisor_pid, cluster.hub_pid, *(rank.pid for rank in cluster.ranks)]
    return [pid for pid in pids if pid is not None]


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _find_process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def once_all_have_printed(callback: Callable[[], None]) -> Callable[[CellResult], None]:
    """Make a callback for snapshots that calls a function as soon as every rank has printed something."""
    was_called: list[bool] = []

    def show(snapshot: CellResult) -> None:
        if not was_called and all(rank.stdout for rank in snapshot):
            was_called.append(True)
            callback()

    return show


def interrupt_in_native_code(cluster: Cluster, folder: Path) -> CellResult:
    """Run a cell in which rank 1 holds the interpreter for ever, and interrupt it once it does and rank 0 has ended."""
    file = folder / "begun"
    source = f"""
import collections, itertools, jax, os, time
if jax.process_index():
    open({str(file)!r}, "w").close()
    collections.deque(itertools.repeat(0), maxlen=0)
while not os.path.exists({str(file)!r}): time.sleep(0.01)"""
    was_interrupted: list[bool] = []

    def show(snapshot: CellResult) -> None:
        if not was_interrupted and snapshot[0].outcome == "ok":
            was_interrupted.append(True)
            cluster.interrupt()

    return cluster.run(source, on_snapshot=show)


def wait_for_exit(pids: list[int], timeout_s: float = 60.0) -> list[int]:
    """Wait until processes have ended; return the pids of those that have not."""
    processes = [process for pid in pids if is_running(pid) and (process := _find_process(pid)) is not None]
    alive = wait_for_end(processes, timeout_s)
    return [process.pid for process in alive if is_running(process.pid)]


@pytest.fixture(scope="session")
def warm_supervisors(own_environment: None) -> Iterator[WarmProcess | None]:
    """The process from which the supervisors of this session's tests are forked; None where that cannot be."""
    if sys.platform != "linux":
        yield None
        return
    warm = WarmProcess("supervisor", {**os.environ, **rank_environment(os.environ, devices=None, simulated=True)})
    keep_for_session(warm.pid)
    yield warm
    warm.close()


@pytest.fixture(autouse=True)
def warm_starts(
    request: pytest.FixtureRequest, warm_supervisors: WarmProcess | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fork the supervisors of the local clusters that a test starts; those of tests marked `cold_start` are started by the product.

    A program that a test runs can do the same with `use_warm_supervisors`.
    """
    if warm_supervisors is not None and request.node.get_closest_marker("cold_start") is None:
        monkeypatch.setattr(child_process, "subprocess", warm_subprocess())
        monkeypatch.setenv(ADDRESS, warm_supervisors.address)


@pytest.fixture(scope="session")
def shared_clusters() -> Iterator[list[Cluster]]:
    """The shared cluster, as the last item; a test did not leave the earlier ones clean."""
    clusters = [manager.start(4, 2, name="shared")]
    clusters[0].run("import jax").check()
    yield clusters
    pids = list_pids(clusters[-1])
    clusters[-1].stop()
    assert wait_for_exit(pids) == []


@pytest.fixture
def shared(shared_clusters: list[Cluster]) -> Cluster:
    """One cluster of 4 ranks with 2 devices each, for tests that leave it clean.

    A test that does not leave it clean fails for that reason, and the next test gets a restarted cluster.
    """
    if shared_clusters[-1].state != "clean":
        shared_clusters.append(shared_clusters[-1].restart())
        shared_clusters[-1].run("import jax").check()
    return shared_clusters[-1]


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """The shared cluster, clean before and after the test, and without variables of other tests.

    A cell runs before the test, so that the note of the test's first cell does not mention a cell of another test.
    """
    assert shared.state == "clean", shared.reason
    shared.run("%reset -f").check()
    # `%reset` collects garbage twice. What tracebacks keep of JAX's source files would make that last a second, for every test.
    shared.run("import gc, jax\ngc.freeze()\ndel gc").check()
    yield shared
    assert shared.state == "clean", shared.reason


@pytest.fixture
def fresh(leftovers: None) -> Iterator[Callable[..., Cluster]]:
    """Start a cluster for one test only; no process of it may remain afterwards."""
    started: list[Cluster] = []
    pids: list[int] = []

    def begin(hosts: int | None = 2, devices: int | None = 2, **options: Any) -> Cluster:
        cluster = manager.start(hosts, devices, **({"name": f"fresh{len(started)}"} | options))
        started.append(cluster)
        pids.extend(list_pids(cluster))
        return cluster

    yield begin
    for cluster in started:
        cluster.stop()
    assert wait_for_exit(pids) == []
