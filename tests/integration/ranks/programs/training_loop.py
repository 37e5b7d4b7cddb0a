"""A training loop: sharded batches, replicated parameters, momentum, donation, prints from compiled code, no waiting."""

# Cells, as they are pasted into a notebook:
# ruff: noqa: D103
# mypy: ignore-errors

# %%
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("data",))
rows, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
rng = np.random.default_rng(jax.process_index())


def load():
    x = rng.normal(size=(8, 4)).astype(np.float32)
    y = np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)
    return tuple(jax.make_array_from_process_local_data(rows, part) for part in (x, y))


# %%
def forward(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]


def loss_of(params, x, y):
    return jnp.mean((forward(params, x) - y) ** 2)


@partial(jax.jit, donate_argnums=(0, 1))
def step(params, momentum, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.05 * m, params, momentum), momentum, loss


@partial(jax.jit, out_shardings=everywhere)
def init(key):
    one, two = jax.random.split(key)
    return {
        "w1": jax.random.normal(one, (4, 16)) / 2,
        "b1": jnp.zeros(16),
        "w2": jax.random.normal(two, (16, 1)) / 4,
    }


# %%
params = init(jax.random.key(0))
momentum = jax.tree.map(jnp.zeros_like, params)
losses = []
for _ in range(40):
    params, momentum, loss = step(params, momentum, *load())
    losses.append(loss)
print(f"first {losses[0]:.4f}, last {losses[-1]:.4f}")
{name: value.shape for name, value in params.items()}


# %%
@jax.jit
def talkative(params, x, y):
    loss = loss_of(params, x, y)
    jax.debug.print("loss inside {:.4f}", loss)
    return loss


for _ in range(2):
    talkative(params, *load()).block_until_ready()

# %%
# A cell that ends while its last steps still run.
for _ in range(60):
    params, momentum, loss = step(params, momentum, *load())

# %%
print(f"{loss:.4f}", f"{sum(float(jnp.vdot(p, p)) for p in jax.tree.leaves(params)):.4f}")
per_device = jax.jit(jax.shard_map(lambda v: v.sum()[None], mesh=mesh, in_specs=P("data"), out_specs=P("data")))
[round(float(s.data[0]), 4) for s in per_device(load()[0]).addressable_shards]

# %%
# 300 sums without waiting, each on the result of the previous one.
add = jax.jit(lambda t: t * 0.5 + t.mean(), out_shardings=rows)
t = jax.device_put(np.arange(8, dtype=np.float32), rows)
for _ in range(300):
    t = add(t)
[round(float(s.data[0]), 4) for s in t.addressable_shards]
