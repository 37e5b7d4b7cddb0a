"""The old API, which half of the tutorials still show: pmap, psum, and a train step with pmean."""

# Cells, as they are pasted into a notebook:
# ruff: noqa: D103
# mypy: ignore-errors

# %%
import functools

import jax
import jax.numpy as jnp
import numpy as np

n = jax.local_device_count()
rank = jax.process_index()
jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jnp.arange(n) + 10 * rank)

# %%
count = jax.pmap(lambda _: jax.lax.psum(1, "i"), axis_name="i")(np.zeros(n))
index = jax.pmap(lambda _: jax.lax.axis_index("i"), axis_name="i")(np.zeros(n))
print("devices", count, "I hold", index)

# %%
rng = np.random.default_rng(rank)
w_true = np.array([1.5, -2.0, 0.5], np.float32)


def batch():
    x = rng.normal(size=(n, 16, 3)).astype(np.float32)
    return x, x @ w_true


def loss_of(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


# %%
@functools.partial(jax.pmap, axis_name="i", donate_argnums=0)
def step(w, x, y):
    loss, grads = jax.value_and_grad(loss_of)(w, x, y)
    grads = jax.lax.pmean(grads, "i")
    return w - 0.1 * grads, jax.lax.pmean(loss, "i")


w = jnp.zeros((n, 3))
for number in range(30):
    w, loss = step(w, *batch())
    if number % 10 == 0:
        print(f"step {number}: loss {loss[0]:.4f}")
w[0].round(3)

# %%
spread = jax.pmap(lambda x: jax.lax.all_gather(x, "i"), axis_name="i")(w)
print(spread.shape, bool((spread[0] == spread[0][0]).all()))
