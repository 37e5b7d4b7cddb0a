"""A detachable cluster on machines while no notebook is attached to it: which processes end with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from mhnb.cluster.attach import describe_other_clusters, list_cluster_records
from tests.support.leftovers import no_leftovers, processes_of
from tests.support.source import ROOT
from tests.system.hosts.cluster import start_and_kill_notebook
from tests.system.hosts.hostnet import HostNet, wait_until

_LIMIT_S = 5.0
"""Time after which a silent host is lost; a cluster without ranks ends after twice that time."""


def _start_options(net: HostNet, count: int = 2, **options: Any) -> dict[str, Any]:
    names = [host.name for host in list(net)[:count]]
    environment = {"PYTHONPATH": str(ROOT)}
    defaults = {"hosts": names, "devices": 1, "config_file": str(net.ssh_config), "environment": environment}
    return defaults | {"host_timeout_s": _LIMIT_S} | options


def _supervisor_on(net: HostNet, at: int) -> psutil.Process:
    # A rank is forked from the supervisor and looks the same; processes of sshd may still be about to end.
    pids = {pid for pid, words in net[at].pids().items() if "mhnb.rank.supervisor" in words and "sshd" not in words}
    (pid,) = (pid for pid in pids if psutil.Process(pid).ppid() not in pids)
    return psutil.Process(pid)


def test_detached_cluster_without_ranks_ends(net: HostNet, mhnb_home: Path) -> None:
    """A cluster without a notebook and without ranks ends by itself, on the hosts and here, and its keys are removed."""
    with no_leftovers(mhnb_home):
        start_and_kill_notebook(_start_options(net))
        (record,) = list_cluster_records(os.environ)
        listed = subprocess.run([sys.executable, "-m", "mhnb", "list"], capture_output=True, text=True, check=True)
        # Other clusters, which tests share, are listed as well.
        description = "2 hosts (alpha, beta) x 1 device, profile ssh"
        (row,) = [line for line in listed.stdout.splitlines() if line.startswith("kept ")]
        assert f" {description} " in row
        assert " detached " in row
        description = f"kept  2 ranks  on {description}"
        others = describe_other_clusters(os.environ)
        assert [line for line in others if line.startswith(f"{description}  detached")], others
        hub = psutil.Process(*record.local_supervisors.values())
        _supervisor_on(net, 0).kill()
        for rank in _supervisor_on(net, 1).children():
            rank.kill()
        wait_until(
            lambda: hub.pid not in {process.pid for process in processes_of(mhnb_home)},
            "the hub's supervisor ends",
            timeout_s=60,
        )
        wait_until(lambda: not any(host.pids() for host in net), "those of the machines end", timeout_s=60)
        assert list_cluster_records(os.environ) == []
        assert not list(record.run_dir.glob("profile/security/*.json"))
