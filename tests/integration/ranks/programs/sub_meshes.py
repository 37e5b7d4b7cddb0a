"""Two halves of the devices with different work, the stages of a pipeline, and work for one rank only."""

# Cells, as they are pasted into a notebook:
# ruff: noqa: B018
# mypy: ignore-errors

# %%
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

rank, devices = jax.process_index(), jax.devices()
low, high = Mesh(np.array(devices[:4]), ("i",)), Mesh(np.array(devices[4:]), ("i",))
member = low if rank < 2 else high
"low" if member is low else "high"

# %%
# Only the members make the array and launch programs. The halves launch different programs, and not equally often.
x = jax.make_array_from_callback((4,), NamedSharding(member, P("i")), lambda i: np.arange(4.0, dtype=np.float32)[i])
if member is low:
    for turn in range(7):
        total = jnp.sum(x * turn)
    print("low", float(total))
else:
    print("high", float(jax.jit(lambda v: jnp.prod(v + 1))(x)))

# %%
# Every rank requests all of it; ranks without devices of that mesh get an array without data.
half = jax.device_put(np.arange(16).reshape(8, 2), NamedSharding(high, P("i")))
print(rank, len(half.addressable_shards), [s.data.tolist() for s in half.addressable_shards])
result = jnp.sum(half)
result.is_fully_addressable, result.shape

# %%
if rank == 1:
    alone = jax.jit(lambda v: v @ v)(jnp.arange(5.0))
    print("rank 1 alone:", alone)
everyone = Mesh(np.array(devices), ("all",))
joint = jax.device_put(np.ones(8, np.float32), NamedSharding(everyone, P("all")))
float(joint.sum())

# %%
# The columns of the grid span the ranks: two overlapping families of groups, in one program.
grid = Mesh(np.array(devices).reshape(4, 2), ("host", "chip"))
y = jax.device_put(np.arange(8, dtype=np.float32).reshape(4, 2), NamedSharding(grid, P("host", "chip")))
down = jax.jit(
    jax.shard_map(lambda v: jax.lax.psum(v, "host"), mesh=grid, in_specs=P("host", "chip"), out_specs=P(None, "chip"))
)
across = jax.jit(
    jax.shard_map(lambda v: jax.lax.psum(v, "chip"), mesh=grid, in_specs=P("host", "chip"), out_specs=P("host"))
)
[s.data.tolist() for s in down(y).addressable_shards], [s.data.tolist() for s in across(y).addressable_shards]

# %%
# One mesh per chip, so that every rank is in two groups; each group computes its own sum.
for chip in range(2):
    column = Mesh(np.array(devices).reshape(4, 2)[:, chip], ("host",))
    z = jax.device_put(np.arange(4, dtype=np.float32) + 10 * chip, NamedSharding(column, P("host")))
    print("chip", chip, float(z.sum()))
