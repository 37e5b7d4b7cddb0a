"""Layouts, specs, meshes and trees as values: costs, owners and refused input."""

from __future__ import annotations

import csv
import io
import pickle
from dataclasses import replace
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.errors import AxisUsedTwice, Indivisible, InvalidRequest, MhnbError, ShardingError, SpecTooLong, UnknownAxis
from mhnb.sharding.boxes import box_size, intersect, parse_dtype
from mhnb.sharding.layout import Layout, LayoutRow, LayoutTree, decode_tree, encode_tree
from mhnb.sharding.mesh import (
    MeshOrigin,
    MeshShape,
    find_axis_reach,
    parse_axes,
    split_over_slices,
    warn_cross_host_axes,
)
from mhnb.sharding.spec import parse_spec
from mhnb.types import DeviceRef
from tests.unit.sharding.cases import Case, cases

GRID = MeshShape.row_major({"data": 4, "model": 2}, devices_per_host=2)


@given(cases(even=False))
def test_boxes_cover_the_array_once(case: Case) -> None:
    """The distinct boxes are disjoint and cover the array, and no device holds more than its stated bytes, even if uneven."""
    mesh, spec, shape = case
    layout = Layout.of(shape, mesh, spec, uneven=True)
    boxes = [box for box in layout.owners_by_box if box_size(box)]
    assert sum(map(box_size, boxes)) * 4 == layout.nbytes
    assert not any(intersect(a, b) for at, a in enumerate(boxes[:40]) for b in boxes[at + 1 : 40])
    assert all(box_size(box) * 4 <= layout.nbytes_per_device for box in boxes)
    assert layout.nbytes_waste >= 0


@given(cases(even=False), st.sampled_from(["float32", "bfloat16", "bool"]))
def test_tree_survives_encoding(case: Case, dtype: str) -> None:
    """A tree that is encoded for JSON is decoded to an equal one."""
    mesh, spec, shape = case
    layout = Layout.of(shape, mesh, spec, dtype=dtype, uneven=True)
    placed = Layout(shape, layout.dtype, placed=tuple(layout.boxes.items()))
    tree = LayoutTree((LayoutRow("['a']", layout), LayoutRow("['b']", placed), LayoutRow("n", None, "int 3")))
    assert decode_tree(encode_tree(tree)) == tree
    assert placed.boxes == layout.boxes


def test_each_mesh_of_a_tree_is_sent_once() -> None:
    """Arrays on two meshes keep their own mesh, and a mesh that several arrays share is sent once."""
    other = MeshShape.row_major({"all": 8})
    rows = [
        LayoutRow(f"w{at}", Layout.of((8,), mesh, f"P('{mesh.names[0]}')"))
        for at, mesh in enumerate([GRID, other, GRID])
    ]
    wire = encode_tree(LayoutTree(tuple(rows)))
    assert len(wire["meshes"]) == 2
    assert decode_tree(wire).rows == tuple(rows)


def test_owners_contain_the_whole_box() -> None:
    """The owners of a box are all devices whose own box equals or contains it."""
    layout = Layout.of((8, 6), GRID, "P('data')")
    assert layout.owners(((2, 4), (0, 6))) == (DeviceRef(1, 0), DeviceRef(1, 1))
    assert layout.owners(((3, 4), (2, 3))) == (DeviceRef(1, 0), DeviceRef(1, 1))
    assert layout.owners(((3, 5), (2, 3))) == ()


@pytest.mark.parametrize(
    ("spec", "per_device", "waste", "replication"),
    [
        ("P('data', 'model')", 32, 0, 1.0),
        ("P('data')", 64, 256, 2.0),
        ("P()", 256, 1792, 8.0),
        ("P('data', unreduced={'model'})", 64, 256, 2.0),
    ],
)
def test_costs_match_hand_computed_values(spec: str, per_device: int, waste: int, replication: float) -> None:
    """Bytes per device, bytes beyond the array itself, and replication of f32[8,8] on 4 x 2 are correct."""
    layout = Layout.of((8, 8), GRID, spec)
    assert (layout.nbytes_per_device, layout.nbytes_waste, layout.replication) == (per_device, waste, replication)


@pytest.mark.parametrize(
    ("kind", "shape", "spec", "parts", "text"),
    [
        (UnknownAxis, (8,), "P('z')", {"axis": "z"}, "the mesh has 'data', 'model'"),
        (AxisUsedTwice, (8, 8), "P('data', 'data')", {"axis": "data"}, "twice"),
        (SpecTooLong, (8,), "P('data', None)", {}, "has 2 entries"),
        (Indivisible, (8, 6), "P(None, 'data')", {"dim": 1, "size": 6, "ways": 4}, "pad it to 8"),
    ],
)
def test_an_illegal_spec_is_refused(
    kind: type[ShardingError], shape: tuple[int, ...], spec: str, parts: dict[str, Any], text: str
) -> None:
    """Each error has its class, names the problem and the next step, and survives pickling."""
    with pytest.raises(kind, match=text) as refused:
        Layout.of(shape, GRID, spec)
    assert refused.value.parts | parts == refused.value.parts
    unpickled = pickle.loads(pickle.dumps(refused.value))  # noqa: S301 - made above
    assert (str(unpickled), unpickled.parts) == (str(refused.value), refused.value.parts)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (parse_spec, "P('data'"), (parse_spec, "Q('data')"), (parse_spec, 3), (parse_spec, [3]),
        (parse_spec, "P('a', other={'b'})"), (parse_spec, "P(x)"),
        (parse_axes, "data 4 model 2"), (parse_axes, "data"), (parse_axes, "a 1, a 2"),
        (parse_dtype, "float"[:2]), (parse_dtype, object()),
        (lambda shape: Layout.of(shape, GRID, "P()"), (2.5,)), (lambda shape: Layout.of(shape, GRID, "P()"), (-1,)),
        (lambda size: MeshShape.row_major({"a": size}), 0), (lambda n: MeshShape.row_major({"a": 2}, devices_per_host=n), 0),
    ],
)  # fmt: skip
def test_unparsable_input_is_refused(read: Any, value: Any) -> None:
    """Every input that cannot be parsed raises InvalidRequest."""
    with pytest.raises(InvalidRequest):
        read(value)


@pytest.mark.parametrize("text", ["P()", "P('data')", "P(None, ('data', 'model'))", "P('data', unreduced={'model'})"])
def test_spec_is_formatted_as_written(text: str) -> None:
    """A parsed spec is formatted as the same text."""
    assert str(parse_spec(text)) == text


def test_unconstrained_has_no_layout() -> None:
    """A spec that leaves a dim to the compiler has no layout and is refused."""
    with pytest.raises(ShardingError, match="leaves a dim to the compiler"):
        parse_spec([type("Free", (), {"__repr__": lambda _: "UNCONSTRAINED"})()])


def test_axis_reach_counts_hosts() -> None:
    """The hosts of an axis are counted by rank, or by label if a host has several ranks."""
    assert [axis.hosts for axis in find_axis_reach(GRID)] == [4, 1]
    assert [axis.hosts for axis in find_axis_reach(GRID, {0: "a", 1: "a", 2: "b", 3: "b"})] == [2, 1]


def test_model_axis_across_hosts_gives_a_warning() -> None:
    """A model axis that crosses hosts gives a warning; a model axis inside a host and a data axis do not."""
    assert warn_cross_host_axes(GRID) == ()
    (warning,) = warn_cross_host_axes(MeshShape.row_major({"model": 2, "data": 4}, devices_per_host=4))
    assert "'model' (2) crosses hosts" in warning
    assert warning.endswith("to keep it inside a host: import jax; mesh = jax.make_mesh((4, 2), ('data', 'model'))")


def test_axis_larger_than_a_host_gets_no_line() -> None:
    """An axis that no order of the axes keeps inside a host gets no line that would not help."""
    (warning,) = warn_cross_host_axes(MeshShape.row_major({"model": 4, "data": 2}, devices_per_host=2))
    assert warning.endswith("; its size does not fit into one host")


def sliced(axes: dict[str, int], slices: tuple[int, ...], *, has_all: bool = True) -> MeshShape:
    """Return a mesh over slices of ranks with two devices."""
    origin = MeshOrigin(slices, ("Auto",) * len(axes), has_all_devices=has_all)
    return replace(MeshShape.row_major(axes, devices_per_host=2), origin=origin)


@pytest.mark.parametrize(
    ("mesh", "cure"),
    [
        (sliced({"model": 4, "data": 2}, (0, 0, 0, 0, 1, 1, 1, 1)), "mesh_utils.create_hybrid_device_mesh((4, 1), (1, 2))"),
        (sliced({"tp": 2, "model": 4}, (0, 0, 0, 0, 1, 1, 1, 1)), "mesh_utils.create_hybrid_device_mesh((2, 2), (1, 2))"),
        (sliced({"model": 8}, (0, 0, 0, 0, 1, 1, 1, 1)), "; its size does not fit into one slice"),
        (sliced({"model": 4, "data": 2}, (0, 0, 0, 0, 0, 0, 1, 1)), "; its size does not fit into one slice"),
        (sliced({"model": 4, "data": 2}, (0, 0, 0, 0, 1, 1, 1, 1), has_all=False), "; it would fit into one slice"),
    ],
    ids=["data over the slices", "the other one", "too large", "unequal slices", "a part of the devices"],
)  # fmt: skip
def test_model_axis_across_slices_gets_a_hybrid_mesh(mesh: MeshShape, cure: str) -> None:
    """Over several slices the line splits another axis; an axis inside a slice may cross its hosts."""
    assert cure in warn_cross_host_axes(mesh)[0]
    assert warn_cross_host_axes(sliced({"data": 2, "model": 4}, (0, 0, 0, 0, 1, 1, 1, 1))) == ()


@pytest.mark.parametrize("sizes", [(4, 4), (2, 8), (1, 16), (6, 10), (12, 9, 5)])
def test_every_mesh_over_equal_slices_has_a_split(sizes: tuple[int, ...]) -> None:
    """If the slices divide the number of devices, parts are found that divide their axes and multiply to the slices."""
    for slice_count in (each for each in range(1, prod(sizes) + 1) if prod(sizes) % each == 0):
        factors = split_over_slices(sizes, range(len(sizes)), slice_count)
        assert factors is not None
        assert prod(factors) == slice_count
        assert all(size % factor == 0 for size, factor in zip(sizes, factors, strict=True))
    assert split_over_slices(sizes, range(len(sizes)), 7) is None


def tree(**specs: tuple[tuple[int, ...], str]) -> LayoutTree:
    """Return a tree of arrays on the grid."""
    return LayoutTree(tuple(LayoutRow(name, Layout.of(shape, GRID, spec)) for name, (shape, spec) in specs.items()))


def test_replicated_matrix_is_marked() -> None:
    """A replicated matrix as large as its sharded neighbours is marked; a bias, and a fully replicated tree, are not."""
    sharded = ((1024, 4096), "P('data', 'model')")
    params = tree(w1=sharded, w2=sharded, lost=((4096, 1024), "P()"), bias=((1024,), "P()"))
    assert params.fallen_back == {"lost"}
    assert tree(w1=((8, 8), "P()"), w2=((8, 8), "P()")).fallen_back == frozenset()


def test_the_table_as_csv() -> None:
    """The CSV has one row per leaf with sizes in bytes; for a leaf that is not an array it has the description."""
    params = LayoutTree((*tree(w=((8, 6), "P('data')")).rows, LayoutRow("['n, m']", None, "int 3")))
    rows = list(csv.reader(io.StringIO(params.to_csv())))
    assert rows[0][:4] == ["path", "shape", "dtype", "spec"]
    assert rows[1] == ["w", "8x6", "float32", "P('data')", "192", "48", "2.0", "192", ""]
    assert rows[2][:3] == ["['n, m']", "", "int 3"]


def test_sharding_error_is_a_value_error() -> None:
    """A ShardingError is an MhnbError and a ValueError."""
    assert issubclass(ShardingError, MhnbError)
    assert issubclass(ShardingError, ValueError)
