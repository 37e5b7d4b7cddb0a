"""A cluster on the workers of a TPU VM: the real gcloud, a fake API, simulated machines with CPUs. No TPU was available."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mhnb.cluster import manager
from tests.system.hosts.hostnet import HostNet, wait_until
from tests.system.hosts.tpu import PROJECT, TPU, ZONE, login_options, serve_tpu, why_absent


@pytest.mark.cold_start
@pytest.mark.parametrize("kept", [False, True], ids=["", "kept"])
def test_tpu_workers_are_hosts_in_order(net: HostNet, tmp_path: Path, own_environment: None, kept: bool) -> None:  # noqa: FBT001
    """Each worker has one gcloud, started in parallel; a collective works, also after a detach; a stop leaves no process."""
    if reason := why_absent():
        pytest.skip(reason)
    with serve_tpu(net, str(tmp_path)) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        cluster = manager.start(
            ranks=2, devices=1, name="tpu", profile="tpu", tpu=TPU, zone=ZONE, project=PROJECT, address=net.gateway,
            extra=login_options(net),
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")}, keep=kept,
        )  # fmt: skip
        if kept:
            cluster.leave()
            cluster = manager.attach("tpu")
        try:
            result = cluster.run(
                "import socket, jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils as m\n"
                "print(socket.gethostname(), m.process_allgather(jnp.float32(jax.process_index())).tolist())"
            ).check()
            assert [rank.stdout for rank in result] == [f"{host.name} [0.0, 1.0]\n" for host in list(net)[:2]]
        finally:
            cluster.stop()
        wait_until(lambda: not any(host.pids() for host in net), "every worker is without a process of the test")
