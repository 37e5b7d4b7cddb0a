"""A cluster on the machines of the net, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

from mhnb.cluster import Cluster

__all__ = ["Begin", "check_sum"]

Begin = Callable[..., Cluster]

_SUM = (
    "import jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils as m\n"
    "print(m.process_allgather(jnp.float32(jax.process_index())).sum())"
)


def check_sum(cluster: Cluster) -> None:
    """A collective over every rank gives what it should, on each."""
    count = cluster.process_count
    said = cluster.run(_SUM).check()
    assert {rank.stdout for rank in said} == {f"{count * (count - 1) / 2}\n"}
