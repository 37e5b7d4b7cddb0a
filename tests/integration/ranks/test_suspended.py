"""A process that holds the ranks is suspended or lost while a cell runs: the user is notified, and the cell still ends."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.system.processes import is_stopped
from mhnb.system.waiting import wait_until
from tests.integration.ranks.conftest import interrupt_in_native_code, once_all_have_printed

Fresh = Callable[..., Cluster]

NAP = "import os, signal, time\nprint('begun', flush=True)\ntime.sleep(600)"


@pytest.fixture
def suspended(fresh: Fresh) -> tuple[Cluster, queue.SimpleQueue[str]]:
    """Two ranks whose supervisor is suspended, and the notifications of the user since then."""
    cluster = fresh(2, 1)
    notifications = collect_notifications(cluster)
    os.kill(cluster.supervisor_pid, signal.SIGSTOP)
    notification = notifications.get(timeout=60)
    assert f"pid {cluster.supervisor_pid}) is suspended" in notification
    assert f"kill -CONT {cluster.supervisor_pid}" in notification
    return cluster, notifications


def collect_notifications(cluster: Cluster) -> queue.SimpleQueue[str]:
    """Collect the notifications that the user gets between the ends of cells."""
    notifications: queue.SimpleQueue[str] = queue.SimpleQueue()
    cluster.on_notice(notifications.put)
    return notifications


def test_interrupt_works_without_the_supervisor(suspended: tuple[Cluster, queue.SimpleQueue[str]]) -> None:
    """An interrupt works while the supervisor is suspended.

    The notebook asks and signals the ranks itself, and a supervisor that resumes confuses nothing.
    """
    cluster, notifications = suspended
    stopped = cluster.run(NAP, on_snapshot=once_all_have_printed(cluster.interrupt))
    assert (stopped.how, stopped.state) == ("interrupted", "clean")
    assert {rank.outcome for rank in stopped} == {"interrupted"}
    os.kill(cluster.supervisor_pid, signal.SIGCONT)
    assert "is running again" in notifications.get(timeout=60)
    assert {rank.text for rank in cluster.run("1 + 1")} == {"2"}
    again = cluster.run(NAP, on_snapshot=once_all_have_printed(cluster.interrupt))
    assert (again.how, again.state) == ("interrupted", "clean")


@pytest.mark.test_all
def test_stuck_rank_is_killed_without_the_supervisor(
    suspended: tuple[Cluster, queue.SimpleQueue[str]],
    default_kill_timeout: None,
    tmp_path: Path,
) -> None:
    """A rank that no signal reaches is killed after the usual time, and is named as the one that did not end."""
    cluster, _ = suspended
    result = interrupt_in_native_code(cluster, tmp_path)
    assert (result.how, result.state, result[0].outcome, result[1].outcome) == ("interrupted", "dead", "ok", "killed")
    assert result[1].error is not None
    assert "rank 1 did not stop after the interrupt" in result[1].error.evalue


def test_rank_death_is_reported_without_the_supervisor(suspended: tuple[Cluster, queue.SimpleQueue[str]]) -> None:
    """The death of a rank is reported with its signal while the supervisor is suspended.

    When the supervisor resumes and reports it too, nothing changes.
    """
    cluster, notifications = suspended
    result = cluster.run(f"{NAP.replace('600', '0')}\nimport jax\nif jax.process_index(): os.abort()\ntime.sleep(600)")
    assert (result.state, result[0].outcome, result[1].outcome) == ("dead", "killed", "died")
    assert "rank 1 was killed by SIGABRT" in str(result[1].error and result[1].error.evalue)
    reason = cluster.reason
    os.kill(cluster.supervisor_pid, signal.SIGCONT)
    assert "is running again" in notifications.get(timeout=60)
    assert not is_stopped(cluster.supervisor_pid)
    assert cluster.reason == reason
    assert notifications.empty()


def test_controller_death_in_a_cell_is_reported_at_once(fresh: Fresh) -> None:
    """If the controller dies in a cell, the user is notified at once; the cell runs to its end, and then the cluster is dead."""
    cluster = fresh(2, 1)
    notifications, received = collect_notifications(cluster), list[str]()

    def kill_controller() -> None:
        assert cluster.hub_pid is not None
        os.kill(cluster.hub_pid, signal.SIGKILL)
        received.append(notifications.get(timeout=60))
        assert cluster.state == "running"
        cluster.interrupt()

    result = cluster.run(NAP, on_snapshot=once_all_have_printed(kill_controller))
    assert f"the hub (ipyparallel's controller, pid {cluster.hub_pid}) was killed by SIGKILL" in received[0]
    assert "cell 1 runs to its end" in received[0]
    assert {rank.outcome for rank in result} == {"interrupted"}
    assert result.state == "dead"


@pytest.fixture
def halted(fresh: Fresh) -> Iterator[Cluster]:
    """Two ranks, of which rank 1 is suspended."""
    cluster = fresh(2, 1)
    pid = cluster.ranks[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    yield cluster
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "ask", [Cluster.vars, Cluster.memory, lambda cluster: cluster.push(x=1)], ids=["vars", "memory", "push"]
)
def test_silent_rank_is_named_while_its_answer_is_awaited(halted: Cluster, ask: Callable[[Cluster], object]) -> None:
    """The user reads which rank does not answer, why, and what to do; once the rank continues, the answer comes."""
    notifications = collect_notifications(halted)
    pid = halted.ranks[1].pid
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, halted)
        assert notifications.get(timeout=60) == (
            f"rank 1 has not answered for 5 s: rank 1 (host1, pid {pid}) is suspended (SIGSTOP or a debugger)\n"
            f"  Fix: kill -CONT {pid}\n"
            "  Or: press Ctrl-C to end the wait; variables do not change"
        )
        assert not answer.done()
        os.kill(pid or 0, signal.SIGCONT)
        answer.result(timeout=60)
    assert notifications.empty()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the signals that are pending from /proc")
def test_ctrl_c_while_a_suspended_rank_is_awaited_harms_nothing(halted: Cluster) -> None:
    """The rank gets the signal when it continues, also if it had not begun with the request; the next cell runs."""
    rank = psutil.Process(halted.ranks[1].pid)
    awaited = halted.ask(1, "vars", {})
    halted.interrupt_requests()
    status = Path(f"/proc/{rank.pid}/status")
    assert wait_until(lambda: re.search(r"ShdPnd:\t0+2\n", status.read_text()), 60, 0.01)
    rank.resume()
    awaited.result(timeout=60)
    # The signal is repeated until the answer comes, so the last one may arrive in the cell.
    result = halted.run("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n1 + 1")
    assert (result.state, {each.text for each in result}) == ("clean", {"2"})


def test_shell_shows_which_rank_its_report_waits_for(halted: Cluster) -> None:
    """A shell that asked for a report reads why it takes long, and gets the report once the rank continues."""
    notifications = collect_notifications(halted)
    command = [sys.executable, "-m", "mhnb", "memory", halted.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stderr is not None
        line = shell.stderr.readline()
        os.kill(halted.ranks[1].pid or 0, signal.SIGCONT)
        rest, printed = shell.stderr.read(), shell.stdout.read()
    assert line + rest == f"{notifications.get_nowait()}\n"
    assert printed.startswith(f"{halted.name} · memory")
