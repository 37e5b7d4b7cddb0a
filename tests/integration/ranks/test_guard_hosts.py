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
from tests.integration.ranks.conftest import wait_for_exit
from tests.integration.ranks.hosts import CuttableProxy, MultiHostCluster
from tests.integration.ranks.test_lockstep import (  # noqa: F401 - they are run from here too
    SETUP,
    check_repeated_withdrawals,
    check_sum,
    interrupt_once_printed,
    names,
    ready,
    test_code_that_catches_a_mismatch_stays_in_step,
    test_collective_beyond_a_subset_raises_at_once,
    test_different_launches_raise_the_same_error,
    test_end_of_a_rank_outside_is_its_own,
    test_exception_while_waiting_withdraws_the_proposal,
    test_forked_child_cannot_launch,
    test_hang_report_covers_ranks_that_wait_to_agree,
    test_interrupt_withdraws_a_waiting_proposal,
    test_interrupted_cell_may_save_with_collectives,
    test_launch_that_some_ranks_never_make_raises,
    test_meshes_in_another_order_report_a_deadlock,
    test_message_names_the_condition,
    test_next_cell_is_right_after_one_rank_raised,
    test_note_names_the_launch_before_the_stop,
    test_ranks_outside_a_program_have_no_part_in_it,
    test_subset_computes_on_its_own_mesh,
    test_thread_launch_on_one_rank_fails_the_cell,
    texts,
)
from tests.integration.ranks.test_other_programs import common_refusal

HOSTS = [[0], [1, 2], [3]]


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[MultiHostCluster]:
    """One cluster on three hosts for tests that leave it clean."""
    cluster = MultiHostCluster(HOSTS, 2, "far")
    cluster.wait_ready()
    pids = cluster.pids
    yield cluster
    cluster.stop()
    assert wait_for_exit(pids) == []


@pytest.fixture
def cluster(three_hosts: MultiHostCluster) -> Iterator[Cluster]:
    """The cluster on three hosts, clean before and after."""
    assert three_hosts.state == "clean", three_hosts.reason
    three_hosts.run("0").check()
    yield three_hosts
    assert three_hosts.state == "clean", three_hosts.reason


def test_differing_programs_are_described_across_hosts(ready: Cluster) -> None:  # noqa: F811
    """Each rank reports how programs of one name differ, also those that other hosts have compiled."""
    text = common_refusal(
        ready.run(
            "f = jax.jit(lambda v, k: (v * k).sum(), static_argnums=1)\nsteps = 3 + (jax.process_index() == 3)\nf(x, steps)"
        )
    )
    assert "compiled where steps = 3\n" in text
    assert text.rstrip().endswith("compiled where steps = 4")


def test_all_hosts_use_one_board(ready: Cluster) -> None:  # noqa: F811
    """All hosts use one board: rank 0 directly, and the other ranks through the agreement server."""
    assert ready.guard == "lockstep"
    kinds = ready.run("import mhnb.rank.jax_private as hooks; type(hooks._recorder.gate._backend).__name__").check()
    assert [rank.text for rank in kinds] == ["'Participant'", *["'RemoteAgreement'"] * 3]


SUBMESH_TOTAL = """
def total(members, f=lambda a: a.sum()):
    sub = Mesh(np.array([d for d in jax.devices() if d.process_index in members]), ('y',))
    n = 2 * len(members)
    a = jax.make_array_from_callback((n,), NamedSharding(sub, P('y')), lambda i: np.arange(n, dtype=np.float32)[i])
    return float(jax.jit(f, out_shardings=NamedSharding(sub, P()))(a))
"""


def test_ranks_of_a_remote_host_agree_on_their_own_launches(ready: Cluster) -> None:  # noqa: F811
    """Ranks of a second host agree on their launches while the ranks of other hosts do other things."""
    ready.run(SUBMESH_TOTAL).check()
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


def test_disjoint_meshes_are_independent(ready: Cluster) -> None:  # noqa: F811
    """Ranks 0 and 3 launch independently of ranks 1 and 2, because no order is needed between the two pairs."""
    code = (
        SUBMESH_TOTAL
        + "pair = (0, 3) if rank in (0, 3) else (1, 2)\nsum(total(pair) for _ in range(4 if rank in (0, 3) else 9))"
    )
    result = ready.run(code).check()
    assert [rank.text for rank in result] == ["24.0", "54.0", "54.0", "24.0"]
    check_sum(ready)


@pytest.mark.usefixtures("long_agreement_timeout")
def test_interrupt_stops_all_hosts_before_the_same_launch(ready: Cluster) -> None:  # noqa: F811
    """An interrupt leaves the cluster clean, with the same number of steps on every rank, each time."""
    loop = "step = 0\nprint('on', flush=True)\nwhile True:\n    float(add(x)); step += 1; time.sleep(0.01)"
    for _ in range(8):
        result = interrupt_once_printed(ready, loop, "on")
        assert (result.how, result.state) == ("interrupted", "clean")
        assert {rank.outcome for rank in result} == {"interrupted"}
        assert len({rank.text for rank in ready.run("step").check()}) == 1
    check_sum(ready)


def test_remote_rank_that_withdraws_repeatedly_stays_in_order(ready: Cluster, tmp_path: Path) -> None:  # noqa: F811
    """A fifth attempt is not mistaken for the first, although the board has four slots for rank 3's proposals too."""
    check_repeated_withdrawals(ready, tmp_path, quitter=3)


def test_repeated_alarm_on_a_remote_host_keeps_the_agreement(
    ready: Cluster,  # noqa: F811
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


def test_remote_thread_that_outlives_its_cell_is_harmless(ready: Cluster) -> None:  # noqa: F811
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


WAITING_CELL = """
import os
if rank == 0:
    import mhnb.rank.jax_private as hooks
    while not os.path.exists(flag): time.sleep(0.05)
    while is_lost and hooks._recorder.gate._backend.board.ended_seq(1) < 1 << 31: time.sleep(0.05)
else: print('on', flush=True)
y = float(add(x))"""
"""Rank 1 prints before it waits; rank 0 launches once the flag exists and, if `is_lost`, the board has recorded the loss."""


@pytest.fixture
def two_hosts(leftovers: None) -> Iterator[Callable[..., MultiHostCluster]]:
    """Start a cluster of two hosts with one rank each, for one test only."""
    started: list[MultiHostCluster] = []

    def begin(**options: Any) -> MultiHostCluster:
        started.append(MultiHostCluster([[0], [1]], 1, "two_hosts", **options))
        started[-1].wait_ready()
        started[-1].run(SETUP).check()
        return started[-1]

    yield begin
    for cluster in started:
        pids = cluster.pids
        cluster.stop()
        assert wait_for_exit(pids) == []


def run_and_break(cluster: MultiHostCluster, act: Callable[[], None], *, is_lost: bool = True) -> CellResult:
    """Run a cell in which rank 1 waits for rank 0, and call `act` meanwhile."""
    is_broken, flag = threading.Event(), Path(tempfile.mkdtemp()) / "acted"

    def break_when_waiting(snapshot: CellResult) -> None:
        if not is_broken.is_set() and "on" in snapshot[1].stdout:
            is_broken.set()
            act()
            flag.touch()

    result = cluster.run(
        f"flag, is_lost = {str(flag)!r}, {is_lost}{WAITING_CELL}", on_snapshot=break_when_waiting, timeout_s=60
    )
    shutil.rmtree(flag.parent)
    assert is_broken.is_set()
    assert result.how == "", "no time limit was needed"
    return result


def check_lost(cluster: MultiHostCluster, result: CellResult) -> None:
    """Check that rank 1 cannot be reached, and that neither rank launches, now or later."""
    assert names(result) == ["OrderMismatch", "RanksLost"]
    messages = [rank.error.evalue for rank in result if rank.error is not None]
    assert "rank 1   was lost before reaching it: it died or its connection broke" in messages[0]
    assert "nothing was launched on rank 1" in messages[1]
    assert "%mhjax restart --replay" in messages[1]
    next_result = cluster.run("y = float(add(x))", timeout_s=60)
    assert names(next_result) == ["OrderMismatch", "RanksLost"]
    assert next_result.how == ""


def test_cut_connection_ends_every_wait(two_hosts: Callable[..., MultiHostCluster]) -> None:
    """A rank whose connection is cut does not launch and reports why; the others do not wait for it, now or later."""
    proxies: list[CuttableProxy] = []

    def route(_host: int, url: str) -> str:
        proxies.append(CuttableProxy(url))
        return proxies[-1].url

    cluster = two_hosts(way=route)
    check_lost(cluster, run_and_break(cluster, proxies[0].cut))


@pytest.mark.test_all
def test_dead_agreement_server_ends_every_wait(two_hosts: Callable[..., MultiHostCluster]) -> None:
    """If the agreement server dies, its supervisor marks the ranks of other hosts as lost on the board.

    All processes are started without fork here, as on macOS.
    """
    cluster = two_hosts(fork=False)
    servers = [
        process
        for process in psutil.Process(cluster.supervisor_pid).children()
        if "mhnb.rank.guard.agreement_server" in process.cmdline()
    ]
    (server,) = servers
    check_lost(cluster, run_and_break(cluster, server.kill))


def test_killed_remote_rank_ends_the_cluster_at_once(
    two_hosts: Callable[..., MultiHostCluster],
) -> None:
    """A remote rank that is killed while it waits ends the cluster at once, as on one machine."""
    cluster = two_hosts()
    pid = cluster.ranks[1].pid
    assert pid is not None
    result = run_and_break(cluster, lambda: os.kill(pid, signal.SIGKILL), is_lost=False)
    assert result[1].outcome == "died"
    # The loss of rank 1 or the end of the cluster may reach rank 0 first.
    assert result[0].outcome in ("killed", "error")
    assert result.state == "dead"
