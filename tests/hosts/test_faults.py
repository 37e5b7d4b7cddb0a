"""What happens to machines and networks while a cluster runs on them: survived, or told with the host's name; nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from mhnb.cluster import Cluster
from mhnb.errors import LaunchError, NotClean
from tests.hosts.cluster import Begin, check_sum
from tests.hosts.hostnet import Host, HostNet, wait_until
from tests.source import ROOT

SILENT_S = 5.0
"""How long a host may be silent in these tests; users get more."""


def test_a_short_partition_is_survived(net: HostNet, begin: Begin) -> None:
    """Four seconds without a network: TCP sends again what was lost, and the sum is right."""
    cluster = begin(3, 1)
    net[1].draw_cable()
    going = cluster.submit("import time; time.sleep(6)")
    time.sleep(4)
    net[1].push_cable_in()
    assert cluster.follow(going).ok
    check_sum(cluster)


@pytest.mark.parametrize("fault", [Host.draw_cable, Host.cut_power], ids=lambda f: f.__name__)
def test_a_silent_host_is_named(net: HostNet, begin: Begin, fault: Callable[[Host], None]) -> None:
    """Nobody closes a connection; the cell ends all the same, within the stated time, and says which host went."""
    cluster = begin(3, 1, host_timeout_s=SILENT_S)
    going = cluster.submit(SLEEP)
    fault(net[1])
    result = cluster.follow(going)
    assert (result.state, result[1].outcome) == ("dead", "died")
    assert f"host1 ({net[1].name}) is lost" in cluster.reason
    assert "restart --replay" in " ".join(result.notes)
    with pytest.raises(NotClean, match=net[1].name):
        cluster.run("1")
    # sshd's own process for the session learns of the end only from the network.
    net[1].restore()


SLEEP = "import time; time.sleep(300)"


@pytest.mark.parametrize("busy", [True, False])
def test_a_host_whose_processes_are_killed(net: HostNet, begin: Begin, busy: bool) -> None:  # noqa: FBT001
    """The network is there and closes what they held: known at once, in a cell or between cells."""
    cluster = begin(3, 1)
    told: list[str] = []
    cluster.on_notice(told.append)
    going = cluster.submit(SLEEP) if busy else None
    net[2].kill_all()
    if going is not None:
        assert cluster.follow(going)[2].outcome == "died"
    wait_until(lambda: cluster.state == "dead", "the death is known")
    assert net[2].name in cluster.reason
    assert bool(told) is not busy


def test_a_rank_that_is_killed(net: HostNet, begin: Begin) -> None:
    """The death report is the one of simulated hosts: rank, host, signal."""
    cluster = begin(2, 1)
    going = cluster.submit(
        "import os, signal, time, jax\nif jax.process_index() == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(300)"
    )
    result = cluster.follow(going)
    assert (result.state, result[0].outcome, result[1].outcome) == ("dead", "killed", "died")
    assert "rank 1 (host1" in cluster.reason
    assert "SIGKILL" in cluster.reason


@pytest.mark.parametrize(
    "worsen",
    [lambda host: host.lose(20), lambda host: host.delay(50), lambda host: host.limit(10)],
    ids=["20 % loss", "50 ms delay", "10 Mbit/s"],
)
def test_a_bad_network(net: HostNet, begin: Begin, worsen: Callable[[Host], None]) -> None:
    """It is slow, and right."""
    worsen(net[1])
    check_sum(begin(2, 1, connect_timeout_s=30))


def test_a_host_that_goes_while_starting(net: HostNet, begin: Begin) -> None:
    """The start ends with the host's name."""
    with pytest.raises(LaunchError, match=rf"host1 \({net[1].name}\)"):
        begin(2, 1, on_progress=lambda _: net[1].kill_all() if net[1].is_on else None)


NOTEBOOK = """
import sys, mhnb
cluster = mhnb.start({names!r}, 1, name="orphan", config_file={config!r})
print("ready", flush=True)
cluster.run("import time; time.sleep(300)")
"""


def test_a_notebook_that_is_killed_leaves_nothing(net: HostNet, own_environment: None) -> None:
    """The ends of standard input and of the link tell every host."""
    program = NOTEBOOK.format(names=[host.name for host in list(net)[:2]], config=str(net.ssh_config))
    notebook = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ
    )
    assert notebook.stdout is not None
    assert notebook.stdout.readline() == "ready\n"
    assert all(host.pids() for host in list(net)[:2])
    notebook.send_signal(signal.SIGKILL)
    notebook.communicate()
    wait_until(lambda: not any(host.pids() for host in net), "every process on the hosts has ended", timeout_s=30)


def test_an_interrupt_over_hosts(begin: Begin) -> None:
    """Python code stops on all of them, and the cluster stays clean."""
    cluster: Cluster = begin(2, 1)
    going = cluster.submit(SLEEP)
    wait_until(lambda: cluster.state == "running", "it runs")
    cluster.interrupt()
    result = cluster.follow(going)
    assert {rank.outcome for rank in result} == {"interrupted"}
    assert cluster.state == "clean"
    check_sum(cluster)
