"""Explicit sharding: the mesh in context, shardings in types, and the errors for ambiguous shardings."""

# Cells, as they are pasted into a notebook:
# ruff: noqa: BLE001, B018, D103
# mypy: ignore-errors

# %%
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, auto_axes, reshard
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2, 4), ("X", "Y"), axis_types=(AxisType.Explicit, AxisType.Explicit))
jax.set_mesh(mesh)
jax.sharding.get_abstract_mesh()

# %%
a = reshard(np.arange(8.0).reshape(8, 1), P("X", None))
b = reshard(np.arange(12.0).reshape(1, 12), P(None, "Y"))
print(jax.typeof(a), jax.typeof(b))
jax.typeof(a + b)


# %%
@jax.jit
def traced(p, q):
    both = p * q
    print("while tracing:", jax.typeof(both))
    return both.sum(axis=0)


print(jax.typeof(traced(a, b)))
traced(a, b).sharding.spec

# %%
left, right = reshard(np.ones((8, 8)), P("X", None)), reshard(np.ones((8, 8)), P(None, "X"))
try:
    left + right
except Exception as error:
    print(type(error).__name__)


@auto_axes
def mixed(p, q):
    return p + q


jax.typeof(mixed(left, right, out_sharding=P("X", "Y")))

# %%
u, v = reshard(np.ones((4, 8)), P("X", "Y")), reshard(np.ones((8, 4)), P("Y", None))
product = jnp.dot(u, v, out_sharding=P("X"))
print(jax.typeof(product), [s.data.tolist() for s in product.addressable_shards])

# %%
taken = product.at[0].get(out_sharding=P(None))
jax.set_mesh(None)
print(jax.typeof(taken), np.asarray(taken))
