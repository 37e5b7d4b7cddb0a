"""Programs of one name and one shape that are not the same: refused before they meet, and the message says what differs."""

from __future__ import annotations

import pytest

from mhnb.cluster import Cluster
from mhnb.core.output.results import CellResult

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = Mesh(np.array(jax.devices()), ('x',))
rows, whole = NamedSharding(mesh, P('x')), NamedSharding(mesh, P())
x = jax.device_put(np.arange(8.0, dtype=np.float32), rows)
"""

CALLED_BACK = """
def shape(f):
    inner = lambda a: jax.lax.psum(jax.pure_callback(f, jax.ShapeDtypeStruct(a.shape, a.dtype), a).sum(), 'x')
    return jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=P('x'), out_specs=P()))
"""

PAIRS = {
    "functions": "one, two = (lambda v: v * 2), (lambda v: v + 2)",
    "partials": "one, two = partial(np.add, np.float32(1)), partial(np.multiply, np.float32(1))",
    "closures": "one, two = [(lambda k: lambda v: v * np.float32(k))(k) for k in (2, 3)]",
    "methods": "class A:\n    def f(self, v): return v\n    def g(self, v): return v + 1\na = A(); one, two = a.f, a.g",
}


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with an array on it."""
    cluster.run(SETUP).check()
    return cluster


def refusal(result: CellResult) -> str:
    """The one text that all ranks raise."""
    assert {rank.error.ename for rank in result if rank.error} == {"OrderMismatch"}
    texts = {rank.error.evalue for rank in result if rank.error}
    assert len(texts) == 1
    assert result.state == "clean"
    return texts.pop()


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_callbacks_in_another_order_are_refused(ready: Cluster, pair: str) -> None:
    """Two programs that differ in nothing but the function they call back do not meet."""
    result = ready.run(
        f"{CALLED_BACK}\n{pair}\nfor f in ([one, two] if rank % 2 else [two, one]): print(float(shape(f)(x)))"
    )
    refusal(result)
