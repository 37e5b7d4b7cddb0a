"""The ways to make a global array from the data of each process, and to take it apart again."""

# Cells, as they are pasted into a notebook:
# ruff: noqa: B018, D103
# mypy: ignore-errors

# %%
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

rank, auto = jax.process_index(), jax.sharding.AxisType.Auto
mesh = jax.make_mesh((8,), ("batch",), axis_types=(auto,))
rows = NamedSharding(mesh, P("batch"))
mesh

# %%
mine = 100 * rank + np.arange(12, dtype=np.int32).reshape(4, 3)
batch = jax.make_array_from_process_local_data(rows, mine)
print(batch.shape, [(s.index[0], s.data[:, 0].tolist()) for s in batch.addressable_shards])
batch

# %%
asked = []


def piece(index):
    asked.append(index)
    return np.arange(24.0, dtype=np.float32).reshape(8, 3)[index]


made = jax.make_array_from_callback((8, 3), rows, piece)
print(sorted(str(index[0]) for index in asked))
float(made.sum())

# %%
pieces = [jnp.full((1, 2), 10 * rank + k) for k in range(jax.local_device_count())]
pieces = [jax.device_put(p, d) for p, d in zip(pieces, jax.local_devices(), strict=True)]
joined = jax.make_array_from_single_device_arrays((8, 2), rows, pieces)
print(joined.shape, [s.data.tolist() for s in joined.addressable_shards])
int(joined.sum())

# %%
everything = multihost_utils.process_allgather(joined, tiled=True)
print(type(everything).__name__, everything[:, 0])

# %%
local = multihost_utils.global_array_to_host_local_array(joined, mesh, P("batch"))
back = multihost_utils.host_local_array_to_global_array(np.asarray(local) + 1, mesh, P("batch"))
print(local.shape, back.shape, int(back.sum() - joined.sum()))

# %%
tree = {"w": np.full((8, 2), rank, np.float32)[:2], "b": np.array([rank], np.float32)}
tree = {"w": jax.make_array_from_process_local_data(rows, tree["w"]), "b": tree["b"]}
shapes = jax.tree.map(jnp.shape, tree)
shapes["w"], shapes["b"]
