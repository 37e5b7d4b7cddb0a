"""What a newcomer types first: the process index, the devices, one sharded array, one global sum."""

# Cells, as they are pasted into a notebook:
# ruff: noqa: B018
# mypy: ignore-errors

# %%
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

print(f"process {jax.process_index()} of {jax.process_count()}")
print("mine:", jax.local_devices())
jax.device_count(), jax.local_device_count()

# %%
devices = np.array(jax.devices()).reshape(4, 2)
mesh = Mesh(devices, ("rows", "cols"))
table = np.arange(48, dtype=np.float32).reshape(8, 6)
x = jax.device_put(table, NamedSharding(mesh, P("rows", "cols")))
for shard in x.addressable_shards:
    print(shard.device, shard.index, shard.replica_id, shard.data.tolist())
x.shape, x.is_fully_addressable, len(x.addressable_shards)

# %%
x

# %%
total = jnp.sum(jnp.cos(x))
print(f"process {jax.process_index()} has the total {total:.4f}")
total

# %%
halves = jax.device_put(x, NamedSharding(mesh, P("cols", None)))
print([(s.index, s.data.shape) for s in halves.addressable_shards])
halves.sharding.spec

# %%
whole = jax.device_put(x, NamedSharding(mesh, P()))
if jax.process_index() == 0:
    print(np.asarray(whole))
bool((np.asarray(whole) == table).all())

# %%
# All ranks compute it, and one rank prints it.
mean = whole.mean(axis=0)
if jax.process_index() == 3:
    print("rank 3 says", mean)

# %%
try:
    np.asarray(x)
except RuntimeError as error:
    print(str(error)[:40])
