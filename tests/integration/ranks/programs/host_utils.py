"""multihost_utils: gather, broadcast, barriers and agreement, so that all processes learn what each one knows."""

# Cells, as they are pasted into a notebook:
# ruff: noqa: B018
# mypy: ignore-errors

# %%
import jax
import numpy as np
from jax.experimental import multihost_utils as mu

rank = jax.process_index()
mu.process_allgather(np.array([rank, rank * rank]))

# %%
config = {"lr": np.float32(0.1 * (rank + 1)), "seed": np.int32(rank + 40)}
config = mu.broadcast_one_to_all(config)
print({name: round(float(value), 3) for name, value in config.items()})

# %%
chosen = mu.broadcast_one_to_all(np.arange(3) + rank, is_source=rank == 2)
mu.sync_global_devices("after the choice")
chosen

# %%
mu.assert_equal(np.ones(4), "ones differ")
try:
    mu.assert_equal(np.array([rank]), "ranks differ")
except AssertionError as error:
    print(type(error).__name__, "ranks differ" in str(error))

# %%
lengths = mu.process_allgather(np.array(3 + rank % 2))
steps = int(lengths.min())
for step in range(steps):
    seen = mu.process_allgather(np.array(step * 10 + rank))
    print(step, seen.tolist())

# %%
for name in ("load", "train", "save"):
    mu.sync_global_devices(name)
print("rank", rank, "passed all barriers")
