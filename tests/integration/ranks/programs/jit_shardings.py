"""jit with in_shardings and out_shardings, constraints inside, ahead-of-time compilation, random keys."""

# Cells, as they are pasted into a notebook:
# ruff: noqa: B015, B018, D103
# mypy: ignore-errors

# %%
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))


def on(*spec):
    return NamedSharding(mesh, P(*spec))


# %%
@partial(jax.jit, in_shardings=(on("data"), on(None, "model")), out_shardings=on("data", "model"))
def multiply(a, b):
    return a @ b


a = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8) / 64, on("data"))
b = jax.device_put(np.eye(8, dtype=np.float32)[::-1], on(None, "model"))
c = multiply(a, b)
print(c.sharding.spec, [s.data.shape for s in c.addressable_shards])
print(np.round(c.addressable_shards[0].data, 3).tolist())
c.sharding


# %%
@jax.jit
def layer(x, w):
    h = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), on("data", "model"))
    return (h * h).sum(), h.max(axis=0)


square, top = layer(a, c)
print(f"{square:.5f}", top.shape, top.is_fully_replicated)

# %%
compiled = layer.lower(a, c).compile()
again, _ = compiled(a, c)
for _ in range(5):
    again, _ = compiled(a, c)
float(again) == float(square)

# %%
keys = jax.jit(lambda seed: jax.random.split(jax.random.key(seed), 8), out_shardings=on(("data", "model")))(7)
noise = jax.jit(jax.vmap(lambda k: jax.random.normal(k, (2,))), out_shardings=on())(keys)
print(keys.shape, keys.dtype)
print(noise.round(4)[0])


# %%
@partial(jax.jit, donate_argnums=0)
def bump(x):
    return x + x.mean()


old, kept = a + 0, a
for _ in range(3):
    old = bump(old)
print(f"{old.sum():.4f}", kept.is_deleted())
[float(v) for v in jax.jit(lambda x: (x.min(), x.max()))(kept)]

# %%
# A program without any collective, and one on local devices only, next to the global ones.
doubled = jax.jit(lambda x: 2 * x)(c)
mine = jax.jit(lambda x: x.sum())(jnp.arange(jax.process_index() + 3))
print(int(mine), doubled.sharding.spec)
