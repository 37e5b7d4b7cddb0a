"""The communication budget of an exercise, measured on real ranks."""

from __future__ import annotations

from mhnb.cluster.cluster import Cluster

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from mhnb.teach.check import Budget, check_budget
mesh = jax.make_mesh((8,), ("data",))
x = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("data")))
{}
"""


def test_a_sum_stays_within_its_budget(cluster: Cluster) -> None:
    """Every rank finds one all-reduce of one float, and the check launches nothing."""
    result = cluster.run(PROGRAM.format('check_budget(Budget({"all-reduce": 1}, nbytes_per_device=4), jnp.sum, x)'))
    assert [rank.text for rank in result.check()] == ["'1 all-reduce of 4 bytes'"] * 4


def test_exceeded_budget_is_reported_on_every_rank(cluster: Cluster) -> None:
    """Every rank reports a gather that the budget does not allow."""
    gather = "jax.jit(lambda a: a, out_shardings=NamedSharding(mesh, P()))"
    result = cluster.run(PROGRAM.format(f'check_budget(Budget({{"all-reduce": 1}}), {gather}, x)'))
    messages = [rank.error.evalue for rank in result if rank.error is not None]
    assert len(messages) == 4
    assert all("1 all-gather, expected none" in text for text in messages)
