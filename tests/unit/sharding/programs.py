"""The programs whose compiled texts are recorded. They are small, and a reader can compute their sizes by hand.

`python -m tests.unit.sharding.record` compiles them. They run in a process with 8 devices, or are compiled for 8 that do not
exist; the mesh is (data 4, model 2), two devices per host.
"""
# mypy: allow-untyped-defs

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

F32, BF16 = jnp.float32, jnp.bfloat16


class World:
    """The devices and the mesh that the programs are written for."""

    def __init__(self, devices):
        self.devices = devices
        self.mesh = self.make((4, 2), ("data", "model"))

    def make(self, sizes, names, kind=AxisType.Auto):
        return Mesh(self.devices.reshape(sizes), names, axis_types=(kind,) * len(names))

    def array(self, shape, *spec, dtype=F32, mesh=None):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh or self.mesh, P(*spec)))

    def mapped(self, f, inside, outside, mesh=None):
        return jax.jit(jax.shard_map(f, mesh=mesh or self.mesh, in_specs=inside, out_specs=outside, check_vma=False))


def data_parallel(w):
    """Each device has 1/4 of the batch and all parameters; the gradients are summed over data."""

    def step(params, x, y):
        def loss(params):
            return jnp.mean((jnp.tanh(x @ params["w"]) + params["b"] - y) ** 2)

        slope = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, slope)

    params = {"w": w.array((128, 64)), "b": w.array((64,))}
    return jax.jit(step), (params, w.array((512, 128), "data"), w.array((512, 64), "data"))


def tensor_parallel(w):
    """The hidden layer is split over model: one all-reduce of the result."""

    def mlp(x, up, down):
        hidden = jnp.tanh(x @ up)
        return hidden @ down

    result = NamedSharding(w.mesh, P("data", None))
    arguments = w.array((128, 64), "data"), w.array((64, 256), None, "model"), w.array((256, 64), "model")
    return jax.jit(mlp, out_shardings=result), arguments


def pipeline(w):
    """Four stages along data; the output of a stage goes to the next one, seven times."""

    def run(x):
        def tick(_, x):
            return lax.ppermute(jnp.tanh(x), "data", [(0, 1), (1, 2), (2, 3)])

        return lax.fori_loop(0, 7, tick, x)

    return w.mapped(run, P("data"), P("data")), (w.array((64, 32), "data"),)


def expert_parallel(w):
    """Each of four experts has its device along data; tokens are sent to their expert and back."""

    def route(tokens):
        at_expert = lax.all_to_all(tokens, "data", 0, 0, tiled=True)
        return lax.all_to_all(jnp.tanh(at_expert), "data", 0, 0, tiled=True)

    return w.mapped(route, P("data"), P("data")), (w.array((64, 32), "data"),)


def sharded_parameters(w):
    """Parameters are sharded along data: gathered for use, and the gradient is summed and scattered."""

    def step(x, piece):
        weight = lax.all_gather(piece, "data", tiled=True)
        slope = x.T @ jnp.tanh(x @ weight)
        return piece - lax.psum_scatter(slope, "data", tiled=True)

    return w.mapped(step, (P("data"), P("data")), P("data")), (w.array((128, 64), "data"), w.array((64, 64), "data"))


def rings(w):
    """Sums over groups of 2, 4 and 8."""

    def sums(a, b, c, d):
        return (
            lax.psum(a, "model"),
            lax.psum(jnp.sin(b), "data"),
            lax.psum(jnp.cos(c), ("data", "model")),
            lax.psum(jnp.tanh(d), ("model", "data")),
        )

    given = [w.array((size,)) for size in (16, 32, 64, 128)]
    return w.mapped(sums, P(), P()), given


def several_at_once(w):
    """One all-reduce of several arrays."""

    def sums(tree):
        return lax.psum(tree, "data")

    return w.mapped(sums, P(), P()), ([w.array((8,)), w.array((4, 4)), w.array((4,), dtype=jnp.int32)],)


def loops(w):
    """A scan inside a scan, a loop of unknown length, and a branch."""

    def run(x):
        def inner(x, _):
            return lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)]), None

        def outer(x, _):
            x, _ = lax.scan(inner, x, None, length=3)
            return lax.psum(x, "model") * 0.5, None

        x, _ = lax.scan(outer, x, None, length=5)
        x = lax.while_loop(lambda x: x[0] < 100.0, lambda x: lax.psum(x, "data") + 1.0, x)
        return lax.cond(x[0] > 0, lambda x: lax.psum(x, ("data", "model")), lambda x: x, x)

    return w.mapped(run, P(), P()), (w.array((16,)),)


def part_of_axis(w):
    """Groups that are not an axis of the mesh."""
    mesh = w.make((8,), ("x",))

    def run(x):
        return lax.psum(x, "x", axis_index_groups=[[0, 1, 2, 5], [3, 4, 6, 7]])

    return w.mapped(run, P(), P(), mesh), (w.array((16,), mesh=mesh),)


def middle_axis(w):
    """Three axes, sums over the middle one and over the outer two."""
    mesh = w.make((2, 2, 2), ("a", "b", "c"))

    def run(x):
        return lax.psum(x, "b"), lax.psum(jnp.sin(x), ("a", "c"))

    return w.mapped(run, P(), P(), mesh), (w.array((16,), mesh=mesh),)


def reshard(w):
    """Auto axes: data with two different constraints must move; bf16, which CPU sends as f32."""

    def run(x):
        x = lax.with_sharding_constraint(jnp.sin(x), NamedSharding(w.mesh, P("data", "model")))
        x = lax.with_sharding_constraint(x, NamedSharding(w.mesh, P(None, "data")))
        return x * 2

    return jax.jit(run), (w.array((64, 64), "data", "model", dtype=BF16),)


def explicit_axes(w):
    """Explicit axes: the types state every sharding."""
    mesh = w.make((4, 2), ("data", "model"), AxisType.Explicit)

    def run(x, y):
        z = jnp.einsum("ij,jk->ik", x, y, out_sharding=NamedSharding(mesh, P("data", None)))
        return jax.reshard(z, NamedSharding(mesh, P(None, "data")))

    given = w.array((64, 64), "data", "model", mesh=mesh), w.array((64, 64), "model", mesh=mesh)
    return jax.jit(run), given


def two_meshes(w):
    """The same devices in two meshes."""
    other = w.make((2, 4), ("r", "c"))

    def run(x, y):
        return x.sum() + y.sum()

    return jax.jit(run), (w.array((64, 64), "data", "model"), w.array((64, 64), "c", mesh=other))


def other_order(w):
    """A mesh whose devices are not in order: positions are not ids."""
    mesh = Mesh(w.devices[[0, 2, 4, 6, 1, 3, 5, 7]].reshape(4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def run(x):
        return x.sum(0)

    return jax.jit(run, out_shardings=NamedSharding(mesh, P())), (w.array((64, 64), "data", "model", mesh=mesh),)


def at_entry(w):
    """A shard_map that needs one of its arguments in another sharding than it has."""

    def run(x, y):
        return jnp.sin(x) + y

    f = w.mapped(run, (P("data"), P("data")), P("data"))
    return f, (w.array((64, 32), "data", "model"), w.array((64, 32), "data"))


def overlapped(w):
    """Gathers that XLA for TPU overlaps with the matrix products; bf16 on the wire."""

    def mlp(x, up, down):
        return jnp.tanh(x @ up) @ down

    result = NamedSharding(w.mesh, P("data", None))
    given = (
        w.array((1024, 1024), "data", None, dtype=BF16),
        w.array((1024, 4096), "data", "model", dtype=BF16),
        w.array((4096, 1024), "model", "data", dtype=BF16),
    )
    return jax.jit(mlp, out_shardings=result), given


CPU = (
    at_entry, data_parallel, expert_parallel, explicit_axes, loops, middle_axis, other_order, part_of_axis, pipeline, reshard,
    rings, several_at_once, sharded_parameters, tensor_parallel, two_meshes,
)  # fmt: skip
TPU = (data_parallel, expert_parallel, overlapped, pipeline, reshard, sharded_parameters)
