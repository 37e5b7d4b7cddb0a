"""A notebook that is interrupted, killed or suspended at any moment leaves no process on its hosts or on this machine."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from mhnb.cluster.attach import OwnerLock, list_cluster_records
from mhnb.cluster.cluster import Cluster
from mhnb.cluster.interrupts import wait_for_pending_shutdowns
from mhnb.cluster.manager import stop_detached
from mhnb.errors import LaunchError
from mhnb.types import StartProgress
from tests.support.leftovers import no_leftovers
from tests.support.source import ROOT
from tests.system.hosts.cluster import Begin, start_and_kill_notebook
from tests.system.hosts.hostnet import HostNet, wait_until

STAGGER = 'test "$(hostname)" = alpha || sleep 1'
"""The first host is up a second before the others."""


@pytest.fixture(autouse=True)
def no_local_leftovers(mhnb_home: Path) -> Iterator[None]:
    """Check that no process of the test is left on this machine either."""
    with no_leftovers(mhnb_home):
        yield


def interrupt_start(report: StartProgress) -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does during a start, once a host is up."""
    if any(rank.host_is_up for rank in report.ranks):
        raise KeyboardInterrupt


def test_interrupted_detachable_start_leaves_no_process(net: HostNet, begin: Begin) -> None:
    """Hosts that report after the start was interrupted end as well, even if the cluster was started as detachable."""
    with pytest.raises(KeyboardInterrupt):
        begin(3, 1, keep=True, setup=STAGGER, on_progress=interrupt_start)


_NOTEBOOK = """
import os, sys, time, mhnb
def tell(report):
    if any(rank.host_is_up for rank in report.ranks):
        print("a host is up", flush=True)
cluster = mhnb.start({names!r}, 1, name="other", on_progress=tell, **{options!r})
def wait(state):
    while cluster.state != state:
        time.sleep(0.05)
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


def _count_resources() -> tuple[int, set[str]]:
    """Return how many descriptors this process holds, and which threads of mhnb run."""
    gc.collect()
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("mhnb-")}
    return len(list(Path("/proc/self/fd").iterdir())), threads


def test_interrupted_starts_release_their_resources(net: HostNet, begin: Begin) -> None:
    """Interrupted starts release their sockets, pipes, logs and locks, each time."""
    with pytest.raises(KeyboardInterrupt):
        begin(1, 1, keep=True, on_progress=interrupt_start)
    # Modules that the first start imported may hold descriptors for good; a thread may be about to end.
    wait_for_pending_shutdowns()
    before = _count_resources()
    with pytest.raises(KeyboardInterrupt):
        begin(1, 1, keep=True, on_progress=interrupt_start)
    # Resources of an earlier test may be released meanwhile too.
    wait_until(lambda: _count_resources()[0] <= before[0] and _count_resources()[1] <= before[1], "all is given back")


class Notebook:
    """A process that has started a cluster and executes one line of code at a time."""

    def __init__(self, net: HostNet, count: int = 2, **options: Any) -> None:
        names = [host.name for host in list(net)[:count]]
        options = {"config_file": str(net.ssh_config), "environment": {"PYTHONPATH": str(ROOT)}} | options
        program = _NOTEBOOK.format(names=names, options=options)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, cwd=ROOT,
        )  # fmt: skip

    def read_to(self, word: str) -> str:
        """Wait until it prints that line; return the output before it."""
        assert self.process.stdout is not None
        output = ""
        for line in self.process.stdout:
            if line == f"{word}\n":
                return output
            output += line
        raise AssertionError(f"it ended before it said {word!r}: {output}")

    def execute(self, line: str) -> str:
        """Execute a line in it; return its output."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.read_to("done")

    def send(self, signum: int) -> None:
        """Send a signal to it."""
        self.process.send_signal(signum)

    def close(self) -> None:
        """End it, if it has not ended."""
        self.send(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


def test_notebook_killed_during_start_leaves_no_process(net: HostNet, own_environment: None) -> None:
    """Hosts end if the notebook is killed during the start, even with `keep`, because no notebook could attach to them."""
    notebook = Notebook(net, 3, keep=True, setup=STAGGER)
    notebook.read_to("a host is up")
    notebook.close()
    wait_until(lambda: not any(host.pids() for host in net), "every host is without a process", timeout_s=60)


def test_suspended_notebook_continues_or_reports_the_loss(net: HostNet, own_environment: None) -> None:
    """After a short suspension a notebook continues; after a long one its hosts have ended, and it reports the reason and fix."""
    notebook = Notebook(net, host_timeout_s=8)
    try:
        notebook.read_to("ready")
        notebook.send(signal.SIGSTOP)
        time.sleep(10)  # the fault itself: longer than a host may be silent, shorter than a notebook may
        notebook.send(signal.SIGCONT)
        assert notebook.execute("print(cluster.run('1 + 1').check()[1].text, cluster.state)") == "2 clean\n"
        notebook.send(signal.SIGSTOP)
        wait_until(lambda: not any(host.pids() for host in net), "the hosts have given it up", timeout_s=60)
        notebook.send(signal.SIGCONT)
        output = notebook.execute("wait('dead'); time.sleep(1); print(cluster.reason)")
        assert "host0 (alpha) is lost" in output or "host1 (beta) is lost" in output
        assert "this notebook did not run for" in output
        assert (
            "Hosts that hear nothing from it for 16 s stop their ranks, unless the cluster was started with --keep"
            in output
        )
        assert "restart --replay" in output
        output = notebook.execute("cluster = cluster.restart(); print(cluster.run('1 + 1').check()[1].text)")
        assert output.endswith("2\n")
        notebook.execute("cluster.stop()")
        wait_until(lambda: not any(host.pids() for host in net), "every host is without a process")
    finally:
        notebook.close()


def test_detachable_hosts_wait_for_suspended_notebook(net: HostNet, own_environment: None) -> None:
    """With `--keep` the hosts wait for a suspended notebook without a limit; a stop ends them."""
    notebook = Notebook(net, host_timeout_s=5, keep=True)
    try:
        notebook.read_to("ready")
        notebook.execute("cluster.run('x = 20').check()")
        notebook.send(signal.SIGSTOP)
        time.sleep(14)  # the fault itself: longer than a host would wait for a notebook that has not said keep
        notebook.send(signal.SIGCONT)
        assert notebook.execute("print(cluster.run('x + 1').check()[1].text, cluster.state)") == "21 clean\n"
        notebook.execute("cluster.stop()")
    finally:
        notebook.close()


_SECOND_INTERRUPT = """
import os, signal, sys, threading, mhnb
came = threading.Event()
def press():
    came.set()
    os.kill(os.getpid(), signal.SIGINT)
again = threading.Timer(0.3, press)
def give_up(report):
    if any(rank.host_is_up for rank in report.ranks):
        again.start()
        raise KeyboardInterrupt
try:
    mhnb.start({names!r}, 1, name="twice", on_progress=give_up, **{options!r})
except KeyboardInterrupt as error:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As IPython does, which shows it.
    sys.last_value = error
    print("given up", came.is_set(), flush=True)
sys.stdin.read()
"""


def test_second_ctrl_c_during_start_leaves_no_process(net: HostNet, own_environment: None) -> None:
    """A second Ctrl-C ends the waiting but not the shutdown: the hosts' processes end, and the notebook continues."""
    names = [host.name for host in list(net)[:3]]
    options = {"config_file": str(net.ssh_config), "environment": {"PYTHONPATH": str(ROOT)}, "setup": STAGGER}
    words = [sys.executable, "-c", _SECOND_INTERRUPT.format(names=names, options=options)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as notebook:
        assert notebook.stdout is not None
        assert notebook.stdout.readline() == "given up True\n"
        me = psutil.Process(notebook.pid)
        wait_until(lambda: not any(host.pids() for host in net), "every host is without a process", timeout_s=60)
        wait_until(lambda: not me.children(recursive=True), "the notebook has no process left", timeout_s=60)
        assert notebook.poll() is None
        assert notebook.stdin is not None
        notebook.stdin.close()
        assert notebook.wait(60) == 0


@pytest.mark.parametrize("comes_back", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_stop_after_a_detachable_host_was_lost(net: HostNet, begin: Begin, comes_back: bool) -> None:  # noqa: FBT001
    """A detachable host outlives a lost connection. A stop ends it if it can be reached again, else it names the host."""
    cluster = begin(2, 1, keep=True, host_timeout_s=5)
    notifications: list[str] = []
    cluster.on_notice(notifications.append)
    net[1].unplug_cable()
    wait_until(lambda: cluster.state == "dead", "the host is given up", timeout_s=60)
    assert "host1 (beta) is lost: it has not answered for" in cluster.reason
    if comes_back:
        net[1].plug_cable_in()
        cluster.stop()
        return
    cluster.stop()
    assert notifications[-1].startswith("host1 (beta) could not be ordered to stop")
    net[1].plug_cable_in()
    # The command that the notification suggests.
    # The host may have received the stop request by then.
    net[1].run("sh", "-c", "pkill -f mhnb.rank.[s]upervisor || true")


def test_stop_detached_names_unreachable_hosts(net: HostNet, mhnb_home: Path) -> None:
    """A failed attach leaves the cluster free for the next one; a stop from a shell ends the rest and names unreachable hosts."""
    names = [host.name for host in list(net)[:2]]
    ssh_options = {"config_file": str(net.ssh_config), "environment": {"PYTHONPATH": str(ROOT)}}
    start_and_kill_notebook({"hosts": names, "devices": 1} | ssh_options)
    net[1].cut_power()
    (record,) = list_cluster_records(os.environ)
    with pytest.raises(LaunchError, match=r"has ended\n  Fix: mhnb stop kept\.\d+"):
        Cluster(replace(record, local_supervisors={2: 2**22 + 1}), origin_pid=record.origin_pid)
    assert not OwnerLock.is_held(record.run_dir)
    assert stop_detached(record, wait_s=20) == ("host1 (beta)",)
    wait_until(lambda: not any(host.pids() for host in net), "every host is without a process", timeout_s=60)
    assert not list(record.run_dir.rglob("attach.json*"))
