"""The programs whose operations and bytes are counted; a reader can compute both by hand.

`python -m tests.unit.sharding.record` compiles them, as the others. A name that ends in `_4` is the same program on a mesh
(data 2, model 2); the others run on one device.
"""
# mypy: allow-untyped-defs

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

F32, BF16 = jnp.float32, jnp.bfloat16
BLOCKS = 6


class World:
    """The mesh that the programs are written for."""

    def __init__(self, devices, side):
        self.mesh = Mesh(devices[: side * side].reshape(side, side), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def array(self, shape, *spec, dtype=BF16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, P(*spec)))


def matmul(w):
    """One product of 512 x 1024 and 1024 x 2048."""
    return jax.jit(lambda x, y: x @ y), (w.array((512, 1024), "data"), w.array((1024, 2048), None, "model"))


def layers(w, *count):
    """Two layers, or `count` of each in one array."""
    none = [None] * len(count)
    return w.array((*count, 256, 1024), *none, None, "model"), w.array((*count, 1024, 256), *none, "model")


def mlp(w):
    """The gradients of two layers and of their input: six operations per parameter and token."""

    def loss(layers, x):
        up, down = layers
        return jnp.sum(jnp.square((jnp.square(x @ up) @ down).astype(F32)))

    return jax.jit(jax.grad(loss, argnums=(0, 1))), (layers(w), w.array((512, 256), "data"))


def attention(w):
    """4 sequences of 256, 8 heads of 64."""

    def attend(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) / 8
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(BF16), v)

    return jax.jit(attend), (w.array((4, 256, 8, 64), "data", None, "model"),) * 3


def scan(w):
    """Six blocks in a loop, which keeps the input of each."""

    def block(x, layers):
        up, down = layers
        return x + jnp.tanh(x @ up) @ down, x

    return jax.jit(lambda blocks, x: lax.scan(block, x, blocks)), (layers(w, BLOCKS), w.array((512, 256), "data"))


def nested(w):
    """Three times five products of 256 x 256."""

    def outer(x, several):
        return lax.scan(lambda x, one: (jnp.tanh(x @ one), None), x, several)[0], None

    return jax.jit(lambda x, p: lax.scan(outer, x, p)[0]), (w.array((256, 256)), w.array((3, 5, 256, 256)))


def convolution(w):
    """8 pictures of 32 x 32 with 64 channels, a 3 x 3 kernel with stride 2, 128 channels out."""

    def convolve(x, kernel):
        return lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return jax.jit(convolve), (w.array((8, 32, 32, 64)), w.array((3, 3, 64, 128)))


def convolution_gradient(w):
    """Both gradients of a 3 x 3 convolution without padding."""

    def loss(x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jnp.sum(jnp.square(lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=numbers)))

    given = w.array((8, 32, 32, 64), dtype=F32), w.array((3, 3, 64, 128), dtype=F32)
    return jax.jit(jax.grad(loss, argnums=(0, 1))), given


def batched(w):
    """4 x 3 products of 128 x 256 and 256 x 64."""
    given = w.array((4, 3, 128, 256), dtype=F32), w.array((4, 3, 256, 64), dtype=F32)
    return jax.jit(lambda x, y: jnp.einsum("bcij,bcjk->bcik", x, y)), given


def integers(w):
    """A product of 8-bit integers."""
    given = w.array((512, 1024), dtype=jnp.int8), w.array((1024, 2048), dtype=jnp.int8)
    return jax.jit(lambda x, y: lax.dot(x, y, preferred_element_type=jnp.int32)), given


def branches(w):
    """Two products, or one."""

    def choose(number, x, y):
        return lax.cond(number > 0, lambda: x @ y @ y, lambda: x @ y)

    return jax.jit(choose), (w.array((), dtype=jnp.int32), w.array((512, 512)), w.array((512, 512)))


def unknown_loop(w):
    """As many products as an argument says."""

    def loop(number, x, y):
        return lax.fori_loop(0, number, lambda _, x: x @ y, x)

    return jax.jit(loop), (w.array((), dtype=jnp.int32), w.array((512, 512)), w.array((512, 512)))


def elementwise(w):
    """Four arrays of 4 MiB read, three written."""

    def adam(p, m, v, g):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v

    return jax.jit(adam, donate_argnums=(0, 1, 2)), (w.array((1024, 1024), "data", "model", dtype=F32),) * 4


def slice_of_table(w):
    """8 rows of a table of 32000 rows."""
    given = w.array((32000, 256), dtype=F32), w.array((), dtype=jnp.int32)
    return jax.jit(lambda table, i: jnp.tanh(lax.dynamic_slice(table, (i, 0), (8, 256)))), given


def update_of_table(w):
    """8 rows of a table of 32000 rows, in place."""
    given = w.array((32000, 256), dtype=F32), w.array((8, 256), dtype=F32), w.array((), dtype=jnp.int32)
    return jax.jit(lambda t, x, i: lax.dynamic_update_slice(t, jnp.tanh(x), (i, 0)), donate_argnums=0), given


def rows_of_table(w):
    """512 rows gathered from a table of 32000 rows."""
    return jax.jit(lambda table, i: jnp.tanh(table[i])), (
        w.array((32000, 256), dtype=F32),
        w.array((512,), dtype=jnp.int32),
    )


def rows_added_to_table(w):
    """512 rows added to a table of 32000 rows, in place."""
    given = w.array((32000, 256), dtype=F32), w.array((512,), dtype=jnp.int32), w.array((512, 256), dtype=F32)
    return jax.jit(lambda table, i, x: table.at[i].add(x), donate_argnums=0), given


EVERYWHERE = (matmul, mlp, attention, scan, convolution)
ON_FOUR = {"cpu": (mlp, scan), "tpu": (mlp,), "gpu": (scan,)}
ONE_DEVICE = {
    "cpu": (
        *EVERYWHERE, branches, unknown_loop, elementwise, slice_of_table, update_of_table, rows_of_table,
        rows_added_to_table,
    ),
    "tpu": (*EVERYWHERE, nested, batched, elementwise, update_of_table),
    "gpu": (*EVERYWHERE, convolution_gradient, integers),
}  # fmt: skip
LIBRARY = (matmul, batched)
"""Also compiled for GPU without Triton, with cuBLAS: what autotuning may choose."""
