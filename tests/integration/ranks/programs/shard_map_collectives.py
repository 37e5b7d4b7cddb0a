"""Every collective of shard_map, on a one-dimensional and a two-dimensional mesh."""

# Cells, as they are pasted into a notebook:
# ruff: noqa: B018, D103
# mypy: ignore-errors

# %%
from functools import partial

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

line = Mesh(np.array(jax.devices()), ("i",))
grid = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))


def show(x):
    return [(str(s.device), s.data.tolist()) for s in x.addressable_shards]


def put(values, mesh, *spec):
    return jax.device_put(np.asarray(values, np.float32), NamedSharding(mesh, P(*spec)))


x = put(np.arange(16), line, "i")
on_line = partial(jax.shard_map, mesh=line, in_specs=P("i"))

# %%
print(show(jax.jit(on_line(lambda v: lax.psum(v, "i"), out_specs=P()))(x)))

# %%
print(show(jax.jit(on_line(lambda v: lax.all_gather(v, "i", tiled=True), out_specs=P("i")))(x)))

# %%
size = line.size
ring = [(k, (k + 1) % size) for k in range(size)]
shifted = jax.jit(on_line(lambda v: lax.ppermute(v, "i", ring), out_specs=P("i")))(x)
print(show(shifted))


# %%
def scattered(v):
    everything = lax.all_gather(v, "i", tiled=True)
    return lax.psum_scatter(everything, "i", tiled=True)


print(show(jax.jit(on_line(scattered, out_specs=P("i")))(x)))

# %%
m = put(np.arange(64).reshape(8, 8), line, "i")
swapped = jax.jit(on_line(lambda v: lax.all_to_all(v, "i", 1, 0, tiled=True), out_specs=P(None, "i")))(m)
print(show(swapped))
mean, most, least = jax.jit(
    on_line(lambda v: (lax.pmean(v.mean(), "i"), lax.pmax(v.max(), "i"), lax.pmin(v.min(), "i")), out_specs=P())
)(m)
float(mean), float(most), float(least)


# %%
@jax.jit
@partial(jax.shard_map, mesh=grid, in_specs=(P("a", "b"), P("b", None)), out_specs=P("a", None))
def matmul(left, right):
    return lax.psum(left @ right, "b")


left, right = put(np.arange(32).reshape(8, 4), grid, "a", "b"), put(np.ones((4, 2)), grid, "b")
print(show(matmul(left, right)))


# %%
@jax.jit
@partial(jax.shard_map, mesh=grid, in_specs=P("a", "b"), out_specs=P("a", "b"))
def where_am_i(v):
    return v * 0 + 10 * lax.axis_index("a") + lax.axis_index("b")


print(show(where_am_i(left)))


# %%
@jax.jit
@partial(jax.shard_map, mesh=line, in_specs=P("i"), out_specs=P())
def ring_sum(v):
    def turn(_, carry):
        moving, total = carry
        moving = lax.ppermute(moving, "i", ring)
        return moving, total + moving

    total = lax.fori_loop(1, size, turn, (v, v))[1]
    return lax.pmean(total, "i")


gradient = jax.grad(lambda v: (ring_sum(v) ** 2).sum())(x)
print(show(ring_sum(x)))
gradient.sharding.spec
