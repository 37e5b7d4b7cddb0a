"""Save a sharded state: each process writes its own shards, and a new state is built from the files."""

# Cells, as they are pasted into a notebook:
# ruff: noqa: D103
# mypy: ignore-errors

# %%
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

rank = jax.process_index()
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("fsdp", "tp"))
specs = {"embed": P("fsdp", "tp"), "bias": P("tp"), "scale": P()}
shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}


# %%
@jax.jit
def fresh():
    state = {"embed": jnp.arange(32.0).reshape(8, 4), "bias": jnp.linspace(0, 1, 4), "scale": jnp.float32(3)}
    return {name: jax.lax.with_sharding_constraint(value, shardings[name]) for name, value in state.items()}


state = fresh()
{name: str(value.sharding.spec) for name, value in sorted(state.items())}

# %%
folder = tempfile.TemporaryDirectory()
path = Path(folder.name, f"shards{rank}.npz")
mine = {
    f"{name}/{k}": np.asarray(shard.data)
    for name, value in state.items()
    for k, shard in enumerate(value.addressable_shards)
    if shard.replica_id == 0
}
np.savez(path, **mine)
multihost_utils.sync_global_devices("saved")
print([file.name for file in path.parent.iterdir()], {name: value.shape for name, value in sorted(mine.items())})

# %%
with np.load(path) as file:
    read = {name: file[name] for name in file.files}
pieces = [jax.device_put(read[f"embed/{k}"], shard.device) for k, shard in enumerate(state["embed"].addressable_shards)]
embed = jax.make_array_from_single_device_arrays((8, 4), shardings["embed"], pieces)
bool(jnp.array_equal(embed, state["embed"]))

# %%
# Only rank 0 writes the array that is the same on all ranks; all ranks learn the size of its file.
size = 0
if rank == 0:
    whole = path.with_name("scale.npy")
    np.save(whole, np.asarray(state["scale"]))
    size = whole.stat().st_size
print(int(multihost_utils.broadcast_one_to_all(np.int32(size))))

# %%
total = sum(jnp.sum(value) for value in jax.tree.leaves(state))
folder.cleanup()
float(total)
