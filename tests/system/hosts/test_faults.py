"""Faults of machines and networks while a cluster runs: the cluster survives or names the host, and no process is left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.cluster.files import run_pip, sync
from mhnb.errors import ClusterError, LaunchError, NotClean
from mhnb.types import StartProgress
from tests.support.source import ROOT
from tests.system.hosts.cluster import Begin, check_sum
from tests.system.hosts.hostnet import Host, HostNet, wait_until

SILENT_S = 5.0
"""Time after which a silent host is lost in these tests; the default for users is longer."""


def test_cluster_survives_a_short_partition(net: HostNet, begin: Begin) -> None:
    """A cluster survives four seconds without a network, because TCP sends lost data again."""
    cluster = begin(3, 1)
    net[1].unplug_cable()
    cell = cluster.submit("import time; time.sleep(6)")
    time.sleep(4)  # the fault itself: how long the network is away
    net[1].plug_cable_in()
    assert cluster.follow(cell).ok
    check_sum(cluster)


@pytest.mark.parametrize("fault", [Host.unplug_cable, Host.cut_power], ids=lambda f: f.__name__)
@pytest.mark.sample(1)
def test_silent_host_ends_the_cell(net: HostNet, begin: Begin, fault: Callable[[Host], None]) -> None:
    """A silent host ends the cell within the time limit, with the host's name, although no connection was closed."""
    cluster = begin(3, 1, host_timeout_s=SILENT_S)
    cell = cluster.submit(SLEEP)
    fault(net[1])
    result = cluster.follow(cell)
    assert (result.state, result[1].outcome) == ("dead", "died")
    assert f"host1 ({net[1].name}) is lost" in cluster.reason
    assert "restart --replay" in " ".join(result.notes)
    with pytest.raises(NotClean, match=net[1].name):
        cluster.run("1")
    # sshd's own process for the session learns of the end only from the network.
    net[1].restore()


SLEEP = "import time; time.sleep(300)"


@pytest.mark.parametrize("busy", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_killed_host_makes_the_cluster_dead_at_once(net: HostNet, begin: Begin, busy: bool) -> None:  # noqa: FBT001
    """If all processes of a host are killed, the cluster is dead at once, in or between cells, because connections close."""
    cluster = begin(3, 1)
    notifications: list[str] = []
    cluster.on_notice(notifications.append)
    cell = cluster.submit(SLEEP) if busy else None
    net[2].kill_all()
    if cell is not None:
        assert cluster.follow(cell)[2].outcome == "died"
    wait_until(
        lambda: cluster.state == "dead" and (busy or notifications), "the death is known, and told between cells"
    )
    assert net[2].name in cluster.reason
    assert bool(notifications) is not busy


def test_killed_rank_is_reported(net: HostNet, begin: Begin) -> None:
    """A killed rank is reported as on simulated hosts: rank, host and signal."""
    cluster = begin(2, 1)
    cell = cluster.submit(
        "import os, signal, time, jax\nif jax.process_index() == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(300)"
    )
    result = cluster.follow(cell)
    assert (result.state, result[0].outcome, result[1].outcome) == ("dead", "killed", "died")
    assert "rank 1 (host1" in cluster.reason
    assert "SIGKILL" in cluster.reason


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "worsen",
    [
        lambda host: host.drop_packets(20, each_way=False),
        lambda host: host.delay_packets(50),
        lambda host: host.limit_bandwidth(10),
    ],
    ids=["20 % loss", "50 ms delay", "10 Mbit/s"],
)
@pytest.mark.sample(1)
def test_collective_is_right_on_a_bad_network(net: HostNet, begin: Begin, worsen: Callable[[Host], None]) -> None:
    """On a slow or lossy network a collective still gives the right result."""
    worsen(net[1])
    check_sum(begin(2, 1, connect_timeout_s=30, host_timeout_s=60))


def test_host_lost_during_the_start_is_named(net: HostNet, begin: Begin) -> None:
    """A host that is lost during the start ends the start with its name."""

    def kill(report: StartProgress) -> None:
        if any(rank.host_is_up for rank in report.ranks) and net[1].is_on:
            net[1].kill_all()

    with pytest.raises(LaunchError, match=rf"host1 \({net[1].name}\)|✗ {net[1].name}: "):
        begin(2, 1, on_progress=kill)


NOTEBOOK = """
import sys, mhnb
cluster = mhnb.start({names!r}, 1, name="orphan", config_file={config!r}, environment={environment!r})
print("ready", flush=True)
cluster.run("import time; time.sleep(300)")
"""


def test_killed_notebook_leaves_no_process(net: HostNet, own_environment: None) -> None:
    """A killed notebook leaves no process on the hosts, because standard input and the control connection end."""
    program = NOTEBOOK.format(
        names=[host.name for host in list(net)[:2]], config=str(net.ssh_config), environment={"PYTHONPATH": str(ROOT)}
    )
    notebook = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ
    )
    assert notebook.stdout is not None
    assert notebook.stdout.readline() == "ready\n"
    assert all(host.pids() for host in list(net)[:2])
    notebook.send_signal(signal.SIGKILL)
    notebook.communicate()
    wait_until(lambda: not any(host.pids() for host in net), "every process on the hosts has ended")


def test_interrupt_stops_all_hosts(begin: Begin) -> None:
    """An interrupt stops Python code on all hosts, and the cluster stays clean."""
    cluster: Cluster = begin(2, 1)
    cell = cluster.submit(SLEEP)
    wait_until(lambda: cluster.state == "running", "it runs")
    cluster.interrupt()
    result = cluster.follow(cell)
    assert {rank.outcome for rank in result} == {"interrupted"}
    assert cluster.state == "clean"
    check_sum(cluster)


def test_partition_beyond_the_limit_loses_the_host(net: HostNet, begin: Begin) -> None:
    """A host that is cut off for longer than the limit is lost and named; its processes end, and a restart can use it again."""
    cluster = begin(2, 1, host_timeout_s=SILENT_S)
    cell = cluster.submit(SLEEP)
    net[1].unplug_cable()
    assert cluster.follow(cell)[1].outcome == "died"
    assert f"host1 ({net[1].name}) is lost: it has not answered for" in cluster.reason
    net[1].plug_cable_in()
    wait_until(lambda: not net[1].pids(), "what was cut off has ended by itself", timeout_s=60)
    fresh = cluster.restart()
    assert [rank.hostname for rank in fresh.ranks] == [host.name for host in list(net)[:2]]
    check_sum(fresh)
    fresh.stop()


def test_rebooted_host_is_used_again(net: HostNet, begin: Begin) -> None:
    """A host that was switched on again after a power cut is used again, and a replay restores the variables."""
    cluster = begin(2, 1, host_timeout_s=SILENT_S)
    cluster.run("import jax\nx = 20 + jax.process_index()").check()
    cell = cluster.submit(SLEEP)
    net[1].cut_power()
    assert cluster.follow(cell).state == "dead"
    net[1].restart()
    fresh = cluster.restart(replay=True)
    assert [rank.stdout for rank in fresh.run("print(x)").check()] == ["20\n", "21\n"]
    check_sum(fresh)
    fresh.stop()


def test_full_disk_does_not_lose_output(net: HostNet, begin: Begin) -> None:
    """With a full disk, output still reaches the notebook completely; only files that a cell writes there itself fail."""
    home = f"/tmp/mhnb-{os.getuid()}-{net[1].name}"
    net[1].run("mkdir", "-p", "-m", "700", home)
    net[1].mount_disk(home, nbytes=4 << 20)
    net[1].run("chmod", "700", home)
    cluster = begin(2, 1)
    net[1].run("sh", "-c", f"cat /dev/zero > {home}/filler || true")
    result = cluster.run("for i in range(5_000): print(i, 'x' * 50)\nimport sys\nprint('end', file=sys.stderr)").check()
    assert result[1].stdout == result[0].stdout
    assert result[1].stdout.endswith(f"4999 {'x' * 50}\n")
    assert result[1].stderr.startswith(
        "end\nmhnb: this rank's log cannot be written ([Errno 28] No space left on device)"
    )
    assert result[0].stderr == "end\n"
    check_sum(cluster)
    failed = cluster.run(f"open({home!r} + '/y', 'w').write('x' * 99999) if jax.process_index() == 1 else 0")
    assert failed[1].error is not None
    assert "No space left" in failed[1].error.evalue
    check_sum(cluster)
    assert cluster.state == "clean"


def test_clock_an_hour_ahead_has_no_effect(net: HostNet, begin: Begin, tmp_path: Path) -> None:
    """A clock that is an hour ahead has no effect, because mhnb never compares the clocks of two machines."""
    if (faketime := shutil.which("faketime")) is None:
        pytest.skip("faketime is not installed")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    script = f'#!/bin/sh\nexec {faketime} -f +1h {sys.executable} "$@"\n'
    net[1].replace_file(python, script, executable=True)
    cluster = begin(2, 1, python=str(python))
    local_time = time.time()
    clocks = cluster.run("import time\nprint(time.time())").check()
    assert [round((float(rank.stdout) - local_time) / 3600) for rank in clocks] == [0, 1]
    check_sum(cluster)
    failed = cluster.run("if jax.process_index() == 0: m.process_allgather(jnp.float32(1))")
    assert failed[0].error is not None
    assert failed[0].error.ename == "OrderMismatch"
    assert cluster.run("time.sleep(0.1)").check().wall_s < 600
    interrupted = cluster.run(SLEEP, timeout_s=1)
    assert {rank.outcome for rank in interrupted} == {"interrupted"} or interrupted.state == "clean"
    check_sum(cluster)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_partition_of_a_minute_with_default_limits(net: HostNet, begin: Begin) -> None:
    """With the default limits a host that is cut off is named in time, and its processes end before the network is back."""
    cluster = begin(2, 1)
    cell = cluster.submit(SLEEP)
    net[1].unplug_cable()
    unplugged_at = time.monotonic()
    result = cluster.follow(cell)
    assert (result.state, result[1].outcome) == ("dead", "died")
    # Whether ssh or mhnb reports first is a matter of a moment.
    assert f"host1 ({net[1].name}) is lost: " in cluster.reason
    assert re.search(r"has not answered for 2|Timeout, server .* not responding", cluster.reason)
    assert "restart --replay" in " ".join(result.notes)
    cluster.stop()
    time.sleep(max(0.0, 60 - (time.monotonic() - unplugged_at)))  # the fault itself: how long the network is away
    assert not [words for words in net[1].pids().values() if "mhnb" in words]
    net[1].plug_cable_in()
    # The system's own end of the login: TCP retries at growing intervals, and may report the end only after another
    # minute.
    wait_until(lambda: not net[1].pids(), "sshd has heard of the end", timeout_s=180)


def test_frozen_host_is_named(net: HostNet, begin: Begin) -> None:
    """A frozen host, such as a paused virtual machine, is named; a stop does not wait for it. When resumed, its processes end."""
    cluster = begin(2, 1, host_timeout_s=SILENT_S)
    cell = cluster.submit(SLEEP)
    frozen = list(net[1].pids())
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    assert cluster.follow(cell)[1].outcome == "died"
    assert f"host1 ({net[1].name}) is lost: it has not answered for" in cluster.reason
    cluster.stop()
    wait_until(lambda: not net[0].pids(), "the other host is without a process")
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not net[1].pids(), "what was frozen has ended by itself", timeout_s=60)


@pytest.mark.parametrize("act", ["stop", "replay", "files"])
@pytest.mark.sample(1)
def test_power_cut_during_stop_replay_or_transfer(net: HostNet, begin: Begin, act: str, tmp_path: Path) -> None:
    """A power cut during a stop, a replay or a file transfer ends that action with the host's name, and no process is left."""
    cluster = begin(2, 1, host_timeout_s=SILENT_S, connect_timeout_s=3)
    cluster.run("x = 1").check()
    named = rf"host1 \({net[1].name}\)"
    net[1].cut_power()
    if act == "replay":
        with pytest.raises(LaunchError, match=rf"✗ {net[1].name}: does not respond"):
            cluster.restart(replay=True)
    if act == "files":
        with pytest.raises(ClusterError, match=named):
            run_pip(cluster, ["list"])
        (tmp_path / "code.py").write_text("x = 1")
        with pytest.raises(ClusterError, match=named):
            sync(cluster, str(tmp_path))
    cluster.stop()
    wait_until(lambda: not net[0].pids(), "the other host is without a process")
