"""Lockstep with ranks on several hosts behaves exactly as on one machine.

The board is on the first host with rank 0. Ranks 1 and 2 are on a second host, and rank 3 is on a third one.
Many tests for one machine also run here, by import.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult
from tests.integration.ranks.conftest import wait_gone
from tests.integration.ranks.hosts import HostsCluster, Wire
from tests.integration.ranks.test_lockstep import (  # noqa: F401 - they are run from here too
    SETUP,
    check_sum,
    gives_up_again_and_again,
    names,
    ready,
    run_until_said,
    test_a_cell_saves_with_collectives_when_it_is_interrupted,
    test_a_collective_that_leaves_a_subset_raises_at_once,
    test_a_forked_child_does_not_launch_in_its_parents_name,
    test_a_launch_that_some_never_make_raises_on_those_that_want_it,
    test_a_slow_rank_is_waited_for,
    test_a_subset_computes_on_its_own_mesh,
    test_a_thread_that_launches_on_one_rank_only_fails_the_cell,
    test_a_users_own_exception_while_waiting_takes_the_post_back,
    test_an_agreed_stop_inside_a_task_of_the_cells_own_leaves_the_ranks_alive,
    test_an_exception_on_one_rank_and_the_next_cell_is_right,
    test_an_interrupt_while_one_rank_waits_for_another_leaves_all_clean,
    test_launches_that_differ_raise_alike_on_every_rank,
    test_meshes_in_another_order_are_a_ring_of_waits_and_say_so,
    test_python_code_is_interrupted_where_nothing_is_launched,
    test_ranks_that_wait_to_agree_are_on_the_hang_card,
    test_the_condition_is_named,
    test_the_launch_before_which_all_stopped_is_named,
    test_who_catches_the_mismatch_goes_on_in_step,
    texts,
)
from tests.integration.ranks.test_other_programs import refusal

HOSTS = [[0], [1, 2], [3]]


@pytest.fixture(scope="module")
def far() -> Iterator[HostsCluster]:
    """One cluster on three hosts for tests that leave it clean."""
    cluster = HostsCluster(HOSTS, 2, "far")
    cluster.wait_ready()
    pids = cluster.pids
    yield cluster
    cluster.stop()
    assert wait_gone(pids) == []


@pytest.fixture
def cluster(far: HostsCluster) -> Iterator[Cluster]:
    """The cluster on three hosts, clean before and after."""
    assert far.state == "clean", far.reason
    far.run("0").check()
    yield far
    assert far.state == "clean", far.reason


def test_what_differs_is_said_across_hosts(ready: Cluster) -> None:
    """Each rank reports how programs of one name differ, also those that other hosts have compiled."""
    text = refusal(
        ready.run(
            "f = jax.jit(lambda v, k: (v * k).sum(), static_argnums=1)\nsteps = 3 + (jax.process_index() == 3)\nf(x, steps)"
        )
    )
    assert "compiled where steps = 3\n" in text
    assert text.rstrip().endswith("compiled where steps = 4")


def test_the_guard_is_there_on_every_host(ready: Cluster) -> None:
    """All hosts use one board: rank 0 directly, and the other ranks through the agreement server."""
    assert ready.guard == "lockstep"
    kinds = ready.run("import mhnb.rank.jax_private as hooks; type(hooks._recorder.gate._backend).__name__").check()
    assert [rank.text for rank in kinds] == ["'LocalAgreement'", *["'RemoteAgreement'"] * 3]


SUB = """
def total(members, f=lambda a: a.sum()):
    sub = Mesh(np.array([d for d in jax.devices() if d.process_index in members]), ('y',))
    n = 2 * len(members)
    a = jax.make_array_from_callback((n,), NamedSharding(sub, P('y')), lambda i: np.arange(n, dtype=np.float32)[i])
    return float(jax.jit(f, out_shardings=NamedSharding(sub, P()))(a))
"""


def test_a_mesh_on_one_far_host_alone_is_agreed_on_there(ready: Cluster) -> None:
    """Ranks of a second host agree on their launches while the ranks of other hosts do other things."""
    ready.run(SUB).check()
    result = ready.run(
        "got = [total((1, 2)) for _ in range(3)] if rank in (1, 2) else None\ngot, float(add(x))"
    ).check()
    assert [rank.text for rank in result] == [
        "(None, 28.0)",
        "([6.0, 6.0, 6.0], 28.0)",
        "([6.0, 6.0, 6.0], 28.0)",
        "(None, 28.0)",
    ]
    result = ready.run(
        "total((1, 2), (lambda a: a.sum()) if rank == 1 else (lambda a: a.max())) if rank in (1, 2) else 0"
    )
    assert names(result) == ["", "OrderMismatch", "OrderMismatch", ""]
    (text,) = texts(result)
    assert "rank 1 " in text
    assert "rank 2 " in text
    check_sum(ready)


def test_meshes_of_two_hosts_each_go_on_by_themselves(ready: Cluster) -> None:
    """Ranks 0 and 3 launch independently of ranks 1 and 2, because no order is needed between the two pairs."""
    code = (
        SUB + "pair = (0, 3) if rank in (0, 3) else (1, 2)\nsum(total(pair) for _ in range(4 if rank in (0, 3) else 9))"
    )
    result = ready.run(code).check()
    assert [rank.text for rank in result] == ["24.0", "54.0", "54.0", "24.0"]
    check_sum(ready)


@pytest.mark.usefixtures("agrees_late")
def test_an_interrupt_stops_the_ranks_of_all_hosts_before_the_same_launch(ready: Cluster) -> None:
    """An interrupt leaves the cluster clean, with the same number of steps on every rank, each time."""
    loop = "step = 0\nprint('on', flush=True)\nwhile True:\n    float(add(x)); step += 1; time.sleep(0.01)"
    for _ in range(8):
        result = run_until_said(ready, loop, "on")
        assert (result.how, result.state) == ("interrupted", "clean")
        assert {rank.outcome for rank in result} == {"interrupted"}
        assert len({rank.text for rank in ready.run("step").check()}) == 1
    check_sum(ready)


def test_who_gives_up_again_and_again_on_a_far_host_is_held(ready: Cluster, tmp_path: Path) -> None:
    """A fifth attempt is not mistaken for the first, although the board has four slots for rank 3's proposals too."""
    gives_up_again_and_again(ready, tmp_path, quitter=3)


def test_a_bell_on_a_far_host_that_rings_again_and_again_does_not_break_the_agreement(
    ready: Cluster,
    tmp_path: Path,
) -> None:
    """Every exception withdraws the proposal and waits for the answer; later launches are agreed on."""
    code = (
        f"flag = {str(tmp_path / 'rung')!r}"
        """
import os, signal
def bell(_, frame):
    # Only in the wait: what it does to the cell's own code is the cell's business.
    while frame is not None:
        if frame.f_code.co_name in ('wait', 'withdraw'): raise TimeoutError('the bell')
        frame = frame.f_back
if rank == 1:
    signal.signal(signal.SIGALRM, bell)
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.001)
else:
    while not os.path.exists(flag): time.sleep(0.05)
try: y = float(add(x))
except Exception as error: got = type(error).__name__
finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    open(flag, 'w').close()
got"""
    )
    result = ready.run(code, timeout_s=60)
    assert [rank.text for rank in result] == ["'OrderMismatch'", "'TimeoutError'", "'OrderMismatch'", "'OrderMismatch'"]
    check_sum(ready)


def test_a_thread_of_a_far_rank_that_outlives_its_cell_is_nobodys_mismatch(ready: Cluster) -> None:
    """A thread's proposal ends with the cell, and the launches of the next cell are agreed on."""
    code = """
caught = []
def late():
    try: add(x)
    except BaseException as error: caught.append(str(error))
if rank == 2:
    import sys; sys.setswitchinterval(0.005)
    import mhnb.rank.jax_private as hooks
    thread = threading.Thread(target=late, daemon=True); thread.start()
    while not (hooks._recorder.gate.has_launching_threads() or caught): time.sleep(0.001)"""
    result = ready.run(code)
    # The cell waits for a thread that is about to launch; on the other ranks it has ended without the launch.
    assert names(result) in (["", "", "OrderMismatch", ""], ["", "", "", ""])
    check_sum(ready)


WAITS = """
import os
if rank == 0:
    import mhnb.rank.jax_private as hooks
    while not os.path.exists(flag): time.sleep(0.05)
    while is_lost and hooks._recorder.gate._backend._board.ended_seq(1) < 1 << 31: time.sleep(0.05)
else: print('on', flush=True)
y = float(add(x))"""
"""Rank 1 prints before it waits; rank 0 launches once the flag exists and, if `is_lost`, the board has recorded the loss."""


@pytest.fixture
def pair(leftovers: None) -> Iterator[Callable[..., HostsCluster]]:
    """Start a cluster of two hosts with one rank each, for one test only."""
    started: list[HostsCluster] = []

    def begin(**options: Any) -> HostsCluster:
        started.append(HostsCluster([[0], [1]], 1, "pair", **options))
        started[-1].wait_ready()
        started[-1].run(SETUP).check()
        return started[-1]

    yield begin
    for cluster in started:
        pids = cluster.pids
        cluster.stop()
        assert wait_gone(pids) == []


def run_and_break(cluster: HostsCluster, act: Callable[[], None], *, is_lost: bool = True) -> CellResult:
    """Run a cell in which rank 1 waits for rank 0, and call `act` meanwhile."""
    done, flag = threading.Event(), Path(tempfile.mkdtemp()) / "acted"

    def look(snapshot: CellResult) -> None:
        if not done.is_set() and "on" in snapshot[1].stdout:
            done.set()
            act()
            flag.touch()

    result = cluster.run(f"flag, is_lost = {str(flag)!r}, {is_lost}{WAITS}", on_snapshot=look, timeout_s=60)
    shutil.rmtree(flag.parent)
    assert done.is_set()
    assert result.how == "", "no time limit was needed"
    return result


def check_lost(cluster: HostsCluster, result: CellResult) -> None:
    """Check that rank 1 cannot be reached, and that neither rank launches, now or later."""
    assert names(result) == ["OrderMismatch", "RanksLost"]
    told = [rank.error.evalue for rank in result if rank.error is not None]
    assert "rank 1   was lost before it: it died, or its connection did" in told[0]
    assert "nothing was launched on rank 1" in told[1]
    assert "%mhjax restart --replay" in told[1]
    again = cluster.run("y = float(add(x))", timeout_s=60)
    assert names(again) == ["OrderMismatch", "RanksLost"]
    assert again.how == ""


def test_a_connection_that_is_cut_ends_every_wait(pair: Callable[..., HostsCluster]) -> None:
    """A rank whose connection is cut does not launch and reports why; the others do not wait for it, now or later."""
    wires: list[Wire] = []

    def way(_host: int, url: str) -> str:
        wires.append(Wire(url))
        return wires[-1].url

    cluster = pair(way=way)
    check_lost(cluster, run_and_break(cluster, wires[0].cut))


def test_a_delegate_that_dies_ends_every_wait(pair: Callable[..., HostsCluster]) -> None:
    """If the agreement server dies, its supervisor marks the ranks of other hosts as lost on the board.

    All processes are started without fork here, as on macOS.
    """
    cluster = pair(fork=False)
    delegates = [
        process
        for process in psutil.Process(cluster.supervisor_pid).children()
        if "mhnb.rank.guard.agreement_server" in process.cmdline()
    ]
    (delegate,) = delegates
    check_lost(cluster, run_and_break(cluster, delegate.kill))


def test_a_far_rank_that_is_killed_while_it_waits_is_the_end_of_the_cluster_and_of_no_patience(
    pair: Callable[..., HostsCluster],
) -> None:
    """A remote rank that is killed while it waits ends the cluster at once, as on one machine."""
    cluster = pair()
    pid = cluster.ranks[1].pid
    assert pid is not None
    result = run_and_break(cluster, lambda: os.kill(pid, signal.SIGKILL), is_lost=False)
    assert result[1].outcome == "died"
    # The loss of rank 1 or the end of the cluster may reach rank 0 first.
    assert result[0].outcome in ("killed", "error")
    assert result.state == "dead"
