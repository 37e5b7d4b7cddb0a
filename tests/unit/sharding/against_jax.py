"""Compare `mhnb.sharding` with JAX on random shardings. This program needs eight fake devices.

The suite runs it in a separate process, because the suite's own process has already fixed its number of devices.
"""

from __future__ import annotations

import json
import traceback
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

import mhnb
from mhnb.adapters.jax_arrays import read_layout, read_mesh
from mhnb.errors import InvalidRequest, ShardingError
from mhnb.layouts import DisplayableLayout, DisplayableTree
from mhnb.sharding.boxes import Box
from mhnb.sharding.explorer import (
    PlanInput,
    change_input,
    format_plan_code,
    lay_out,
    list_dim_choices,
    list_mesh_sizes,
)
from mhnb.sharding.layout import Layout
from mhnb.sharding.mesh import MeshShape, parse_axes
from mhnb.sharding.plan import PlannedArray
from mhnb.sharding.spec import Spec, check_spec, parse_spec
from mhnb.types import DeviceRef
from tests.unit.sharding.cases import Case, cases, meshes

KINDS = st.sampled_from(["Auto", "Explicit"])
EXAMPLES = settings(max_examples=300, deadline=None, database=None)


def to_jax_mesh(mesh: MeshShape, kind: str) -> Mesh:
    """Return the same mesh as a JAX mesh."""
    devices = np.array([jax.devices()[ref.ordinal] for ref in mesh.devices]).reshape(mesh.sizes)
    return Mesh(devices, mesh.names, axis_types=(getattr(AxisType, kind),) * len(mesh.names))


def to_jax_spec(spec: Spec) -> PartitionSpec:
    """Return the same spec as a JAX spec, even if it fits no mesh."""
    keywords: dict[str, Any] = {"unreduced": set(spec.unreduced)} if spec.unreduced else {}
    return PartitionSpec(*(entry or None for entry in spec.dims), **keywords)


def jax_boxes(sharding: Any, shape: tuple[int, ...]) -> dict[DeviceRef, Box]:
    """Return the box that JAX assigns to each device."""
    return {
        DeviceRef(0, jax.devices().index(device)): tuple(
            part.indices(size)[:2] for part, size in zip(index, shape, strict=True)
        )
        for device, index in sharding.devices_indices_map(shape).items()
    }


@seed(1)
@EXAMPLES
@given(cases(), KINDS)
def check_boxes(case: Case, kind: str) -> None:
    """Every device of a mesh, over any devices in any order, gets the box that JAX assigns to it."""
    mesh, spec, shape = case
    ours = Layout.of(shape, mesh, spec)
    # JAX has no map for partial sums, so the boxes are compared without them.
    reduced = to_jax_spec(Spec(spec.dims))
    assert ours.boxes == jax_boxes(NamedSharding(to_jax_mesh(mesh, kind), reduced), shape)
    whole = NamedSharding(to_jax_mesh(mesh, "Explicit"), to_jax_spec(spec))
    assert ours.nbytes_per_device == 4 * int(np.prod(whole.shard_shape(shape)))
    assert parse_spec(whole.spec) == spec
    assert parse_spec(str(spec)) == spec


@seed(2)
@EXAMPLES
@given(cases(even=False))
def check_refusals(case: Case) -> None:
    """A shape that JAX refuses is refused with JAX's reason in its words, and a shape that JAX accepts is accepted."""
    mesh, spec, shape = case
    try:
        NamedSharding(to_jax_mesh(mesh, "Explicit"), to_jax_spec(spec)).shard_shape(shape)
    except ValueError as refusal:
        jax_message = str(refusal)
    else:
        check_spec(spec, mesh, shape)
        return
    _assert_refused_like_jax(spec, mesh, shape, jax_message)


def _assert_refused_like_jax(spec: Spec, mesh: MeshShape, shape: tuple[int, ...], jax_message: str) -> None:
    with pytest.raises(ShardingError) as refused:
        check_spec(spec, mesh, shape)
    assert refused.value.jax_says in jax_message, (refused.value.jax_says, jax_message)


def check_words() -> None:
    """An unknown axis, an axis used twice and a spec that is too long are refused in JAX's words too."""
    mesh = MeshShape.row_major({"a": 4, "b": 2})
    for spec, shape in ((["z"], (8,)), (["a", "a"], (8, 8)), ([("a", "b"), "b"], (8, 8)), (["a", None], (8,))):
        try:
            jax.device_put(np.zeros(shape), NamedSharding(to_jax_mesh(mesh, "Auto"), PartitionSpec(*spec)))
        except Exception as refusal:  # noqa: BLE001 - an axis used twice is of a class that is private to JAX
            jax_message = str(refusal)
        _assert_refused_like_jax(parse_spec(spec), mesh, shape, jax_message)


@seed(3)
@EXAMPLES
@given(meshes(), KINDS)
def check_meshes(mesh: MeshShape, kind: str) -> None:
    """A JAX mesh is read as it is; an abstract mesh is assigned to hosts row by row."""
    assert read_mesh(to_jax_mesh(mesh, kind)) == mesh
    abstract = AbstractMesh(mesh.sizes, mesh.names)
    assert read_mesh(abstract, devices_per_host=2) == MeshShape.row_major(dict(mesh.axes), devices_per_host=2)


def check_arrays() -> None:
    """The layouts of real arrays match: any kind of sharding, unreduced or not, and any kind of element."""
    mesh = to_jax_mesh(MeshShape.row_major({"a": 4, "b": 2}), "Explicit")
    rows = jax.device_put(np.zeros((8, 6), "f4"), NamedSharding(mesh, PartitionSpec("a")))
    inner = jax.device_put(np.ones((8, 4), "f4"), NamedSharding(mesh, PartitionSpec(None, "b")))
    sums = NamedSharding(mesh, PartitionSpec(None, None, unreduced={"b"}))
    partial = jax.jit(lambda x, y: jax.numpy.einsum("ij,kj->ik", x, y, out_sharding=sums))(inner, inner)
    positional = jax.device_put(np.zeros(8, "i1"), jax.devices()[3])
    keys = jax.device_put(jax.random.split(jax.random.key(0), 8), NamedSharding(mesh, PartitionSpec("a")))
    for array in (rows, partial, positional, keys, jax.ShapeDtypeStruct((8,), "f4", sharding=rows.sharding)):
        layout = read_layout(array)
        assert (layout.shape, layout.dtype.name) == (tuple(array.shape), str(array.dtype))
        if array is not partial:
            assert layout.boxes == jax_boxes(array.sharding, array.shape)
    assert read_layout(partial).spec == Spec(((), ()), unreduced=("b",))
    assert read_layout(rows).nbytes_per_device == rows.addressable_shards[0].data.nbytes


def check_public() -> None:
    """The public functions accept JAX's own meshes, specs, dtypes and arrays, also abstract arrays and shapes without data."""
    grid = MeshShape.row_major({"a": 4, "b": 2})
    mesh, spec = to_jax_mesh(grid, "Auto"), PartitionSpec("a", None)
    drawn = mhnb.layout((8, 6), mesh, spec, dtype=jax.numpy.bfloat16)
    assert isinstance(drawn, DisplayableLayout)
    assert drawn == mhnb.layout((8, 6), {"a": 4, "b": 2}, "P('a', None)", dtype="bf16")
    assert drawn == mhnb.layout((8, 6), AbstractMesh((4, 2), ("a", "b")), spec, dtype=np.dtype("bfloat16"))
    array = jax.device_put(np.zeros((8, 6), "f4"), NamedSharding(mesh, spec))
    mhnb.expect(array, PartitionSpec("a"))
    with pytest.raises(AssertionError, match="is sharded as P\\('a', None\\), not as P\\('b'\\)"):
        mhnb.expect(array, PartitionSpec("b"))
    assert mhnb.reshard(array, to=PartitionSpec()).nbytes_moved == 8 * (192 - 48)
    tree = mhnb.layout({"w": array, "n": 3, "later": jax.ShapeDtypeStruct((8, 2), "f4", sharding=array.sharding)})
    assert isinstance(tree, DisplayableTree)
    assert [row.path for row in tree.rows] == ["['later']", "['n']", "['w']"]
    assert "data" not in str(mhnb.layout(mesh))
    with pytest.raises(InvalidRequest, match="layout: expected a"):
        mhnb.layout({"n": 3})
    jax.jit(_assert_tracer_is_refused)(array)


@seed(1)
@settings(max_examples=60, deadline=None, database=None)
@given(st.data())
def check_plans(data: st.DataObject) -> None:
    """JAX refuses the axes that the explorer refuses, and the code of a plan makes the shardings that it shows."""
    sizes = data.draw(st.sampled_from(list_mesh_sizes(8)))
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=1, max_size=3)))
    start = PlanInput(1, 8, "data 4, model 2", (PlannedArray("x", shape, "P()"),))
    plan_input = change_input(start, "sizes", "x".join(map(str, sizes)))
    axes = parse_axes(plan_input.mesh)
    for dim in range(len(shape)):
        choice = data.draw(st.sampled_from(list_dim_choices(plan_input.arrays[0], axes, dim)))
        chosen = change_input(plan_input, f"array.0.dim{dim}", ",".join(choice.axes))
        entries = parse_spec(chosen.arrays[0].spec).dims
        try:
            mesh = jax.make_mesh(tuple(axes.values()), tuple(axes))
            NamedSharding(mesh, PartitionSpec(*(entry or None for entry in entries))).shard_shape(shape)
            is_legal = True
        except Exception:  # noqa: BLE001 - an axis used twice is of a class that is private to JAX
            is_legal = False
        assert is_legal == (not choice.refusal), (choice, shape, chosen.arrays[0].spec)
        plan_input = plan_input if choice.refusal else chosen
    plan = lay_out(plan_input)
    made: dict[str, Any] = {}
    exec(format_plan_code(plan), made)
    [(_, layout)] = plan.legal
    assert jax_boxes(made["x_sharding"], shape) == layout.boxes


def _assert_tracer_is_refused(x: Any) -> Any:
    with pytest.raises(InvalidRequest, match="layout: expected a"):
        mhnb.layout(x)
    return x


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_") and name != "check_spec"}

if __name__ == "__main__":
    failures: dict[str, str] = {}
    for name, check in CHECKS.items():
        try:
            check()
        except Exception:  # noqa: BLE001  # the test of this check raises it
            failures[name] = traceback.format_exc()
    print(json.dumps([list(CHECKS), failures]))
