"""Mesh axes are recovered from replica groups, for any order of the devices."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.sharding.hlo_collectives import GroupAxes, NamedMesh, find_axes, parse_meshes
from tests.unit.sharding.texts import CPU, lowered, read

EXPECTED_AXES: dict[str, list[tuple[str, ...]]] = {
    "data_parallel": [("data",)],
    "tensor_parallel": [("model",)],
    "pipeline": [("data",)],
    "expert_parallel": [("data",), ("data",)],
    "sharded_parameters": [("data",), ("data",)],
    "rings": [("model",), ("data",), ("data", "model"), ("data", "model")],
    "middle_axis": [("b",), ("a", "c")],
    "explicit_axes": [("model",), ("data",)],
    "other_order": [("data",), ("model",)],
    "at_entry": [("model",)],
    "two_meshes": [("model",), ("data",), ("c",)],
}


@pytest.mark.parametrize("kind", CPU)
@pytest.mark.parametrize("program", EXPECTED_AXES)
def test_axes_of_recorded_programs(program: str, kind: str) -> None:
    """The found names are those in the program, although XLA's text may have generated names or none."""
    meshes = parse_meshes(lowered(program, kind))
    assert [find_axes(one.groups, meshes) for one in read(program, kind)] == [
        GroupAxes(axes) for axes in EXPECTED_AXES[program]
    ]


@pytest.mark.parametrize("kind", CPU)
def test_part_of_an_axis_is_not_a_whole_axis(kind: str) -> None:
    """Groups chosen by hand do not span whole axes."""
    (one,) = read("part_of_axis", kind)
    assert find_axes(one.groups, parse_meshes(lowered("part_of_axis", kind))) == GroupAxes(
        ("x",), spans_whole_axes=False
    )


@given(
    sizes=st.lists(st.integers(2, 4), min_size=1, max_size=4),
    data=st.data(),
)
def test_axes_are_recovered_from_groups(sizes: list[int], data: st.DataObject) -> None:
    """For groups along any axes of any mesh, in any order of devices, exactly those axes are found, in the mesh's order."""
    count, axes = prod(sizes), range(len(sizes))
    chosen = data.draw(st.sets(st.sampled_from(axes)))
    order = data.draw(st.permutations(range(count)))
    rest = [axis for axis in axes if axis not in chosen]
    device_numbers = (
        np.array(order).reshape(sizes).transpose(*rest, *chosen).reshape(-1, prod(sizes[axis] for axis in chosen))
    )
    groups = tuple(map(tuple, device_numbers.tolist()))
    mesh = NamedMesh(tuple(f"x{axis}" for axis in axes), tuple(sizes), tuple(order))
    expected = tuple(f"x{axis}" for axis in sorted(chosen))
    assert find_axes(groups, [mesh]) == GroupAxes(expected, spans_whole_axes=True)


@given(st.permutations(range(8)))
def test_arbitrary_groups_are_not_whole_axes(order: list[int]) -> None:
    """Two groups of four devices span whole axes only if they are the mesh's own rows or columns."""
    groups = (tuple(order[:4]), tuple(order[4:]))
    mesh = NamedMesh(("data", "model"), (4, 2))
    is_data = {frozenset(group) for group in groups} == {frozenset((0, 2, 4, 6)), frozenset((1, 3, 5, 7))}
    assert (find_axes(groups, [mesh]) == GroupAxes(("data",))) == is_data
    assert find_axes(groups, [mesh]).spans_whole_axes == is_data


def test_without_mesh_no_axes_are_found() -> None:
    """Without a known mesh that has the devices, no axes are found."""
    assert find_axes(((0, 1),), []) == GroupAxes((), spans_whole_axes=False)
    assert find_axes(((0, 9),), [NamedMesh(("x",), (4,))]) == GroupAxes((), spans_whole_axes=False)


def test_groups_of_one_span_no_axis() -> None:
    """Groups of one device span no axis."""
    assert find_axes(((0,), (1,)), [NamedMesh(("x",), (2,))]) == GroupAxes()


def test_meshes_of_a_lowered_module() -> None:
    """Names, sizes and device order are parsed; an empty mesh has no axes, and equal meshes are returned once."""
    text = """
  sdy.mesh @empty_mesh = <[]> loc(#loc)
  sdy.mesh @maximal_mesh = <[], device_ids=[0]>
  sdy.mesh @mesh = <["data"=4, "model"=2]> {stablehlo.mesh = {axes = []}} loc(#loc)
  sdy.mesh @mesh_0 = <["data"=4, "model"=2]>
  sdy.mesh @mesh_1 = <["x"=4], device_ids=[0, 2, 1, 3]>
"""
    assert parse_meshes(text) == (NamedMesh(("data", "model"), (4, 2)), NamedMesh(("x",), (4,), (0, 2, 1, 3)))
