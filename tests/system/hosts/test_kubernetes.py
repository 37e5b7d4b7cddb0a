"""A cluster in pods: the real kubectl, a fake API server, and real processes on simulated machines behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from mhnb.errors import LaunchError
from tests.support.source import ROOT
from tests.system.hosts.cluster import check_no_key_is_visible, check_sum
from tests.system.hosts.faults import run_doctor
from tests.system.hosts.hostnet import HostNet, wait_until
from tests.system.hosts.kube import serve_pods, why_absent

Begin = Callable[..., Cluster]


@pytest.fixture
def kubeconfig(net: HostNet, tmp_path: Path) -> Iterator[Path]:
    """Serve the pods trainer-0 to trainer-3; the path of the kubeconfig."""
    if reason := why_absent():
        pytest.skip(reason)
    with serve_pods(net, tmp_path) as file:
        yield file


@pytest.fixture
def begin(net: HostNet, kubeconfig: Path, own_environment: None) -> Iterator[Begin]:
    """Start a cluster in the pods, and stop it at the end."""
    started: list[Cluster] = []

    def start(ranks: int = 2, **options: Any) -> Cluster:
        defaults: dict[str, Any] = {
            "devices": 1, "name": "pods", "profile": "kubernetes", "ranks": ranks, "pod": "trainer-{}", "address": net.gateway,
            "extra": [f"--kubeconfig={kubeconfig}"], "environment": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        }  # fmt: skip
        started.append(manager.start(**defaults | options))
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()


@pytest.mark.cold_start
def test_ranks_run_in_their_pods(begin: Begin, net: HostNet) -> None:
    """Ranks run in the pods in order, a collective includes them, and a stop leaves no process in the pods."""
    cluster = begin()
    result = cluster.run(
        "import socket, jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils as m\n"
        "print(socket.gethostname(), m.process_allgather(jnp.float32(jax.process_index())).tolist())"
    ).check()
    assert [rank.stdout for rank in result] == [f"{host.name} [0.0, 1.0]\n" for host in list(net)[:2]]
    assert cluster._resources.key.hex() not in "".join(words for host in net for words in host.pids().values())
    check_no_key_is_visible(cluster)
    cluster.stop()
    wait_until(lambda: not any(host.pids() for host in net), "every pod is without a process of the test")


def test_notebook_attaches_to_cluster_in_pods(begin: Begin, net: HostNet) -> None:
    """kubectl outlives the notebook; an attached notebook finds the variables, and a stop ends the processes in the pods."""
    begin(keep=True).run("x = 41").check()
    manager.current().leave()
    cluster = manager.attach("pods")
    try:
        assert cluster.run("print(x + 1)").check()[1].stdout == "42\n"
        check_sum(cluster)
    finally:
        cluster.stop()
    wait_until(lambda: not any(host.pids() for host in net), "every pod is without a process of the test")


def test_missing_pod_is_reported(begin: Begin) -> None:
    """The error for a pod that does not exist contains kubectl's message."""
    with pytest.raises(LaunchError, match=r'host0 \(kubectl\) ended with exit code 1: .*pods "gone-0" not found'):
        begin(pod="gone-{}")


def test_doctor_checks_pods(net: HostNet, kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb doctor` checks pods by kubectl; a missing pod is reported with kubectl's message, and the others are checked."""
    extra = ["--set", f"extra=--kubeconfig={kubeconfig}", "--env", f"PYTHONPATH={ROOT}", "--address", net.gateway]
    options = ["--profile", "kubernetes", "--devices", "1", *extra]
    code, lines = run_doctor(capsys, *options, "-n", "2", "--set", "pod=trainer-{}")
    assert (code, lines[0]) == (0, "preflight · 2 hosts · all well"), lines
    assert [line.split()[:2] for line in lines[2:4]] == [["alpha", "ok"], ["beta", "ok"]]
    code, lines = run_doctor(capsys, *options, "-n", "5", "--set", "pod=trainer-{}")
    assert (code, lines[0]) == (1, "preflight · 5 hosts · 1 failure"), lines
    assert "host4 (kubectl) ended with exit code 1: " in lines[7], lines
    assert 'pods "trainer-4" not found' in lines[7], lines


def test_missing_python_in_pod_is_reported(begin: Begin) -> None:
    """The error for a missing interpreter names its path in the pod."""
    with pytest.raises(LaunchError, match=r"host0 \(kubectl\): has no such Python: no python: /no/python"):
        begin(python="/no/python")
