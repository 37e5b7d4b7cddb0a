"""A cluster over ssh: four machines with addresses, names and process trees of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mhnb import starting
from mhnb.cluster import Cluster
from tests.hosts.hostnet import HostNet

Begin = Callable[..., Cluster]


@pytest.fixture
def begin(net: HostNet, own_environment: None) -> Iterator[Begin]:
    """Start a cluster on the machines; stopped at the end. What it leaves behind fails the test in `net`."""
    started: list[Cluster] = []

    def start(count: int = 4, devices: int | None = 2, **options: Any) -> Cluster:
        names = [host.name for host in list(net)[:count]]
        # Elsewhere nothing is inherited, also not which copy of mhnb is tested.
        path = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        options = {"name": "remote", "config_file": str(net.ssh_config), "environment": path} | options
        started.append(starting.start(names, devices, **options))
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()


def test_a_sum_over_four_machines(net: HostNet, begin: Begin) -> None:
    """Ranks are on their hosts in order, and a collective crosses them."""
    cluster = begin()
    said = cluster.run(
        "import socket, jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils as m\n"
        "print(socket.gethostname(), m.process_allgather(jnp.float32(jax.process_index())).tolist())"
    ).check()
    assert [rank.stdout for rank in said] == [f"{host.name} [0.0, 1.0, 2.0, 3.0]\n" for host in net]
    assert [rank.hostname for rank in cluster.ranks] == [host.name for host in net]
