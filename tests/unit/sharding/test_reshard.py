"""Resharding: each device receives exactly what it lacks from a device that has it, checked per element on random cases."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.errors import InvalidRequest
from mhnb.sharding.boxes import Box
from mhnb.sharding.layout import Layout
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.plan import Reshard, plan_reshard
from mhnb.sharding.spec import Spec
from mhnb.types import DeviceRef
from tests.unit.sharding.cases import AXES, specs

HOSTS = st.sampled_from([{}, {0: "a", 1: "a", 2: "b", 3: "b"}])


def elements(box: Box) -> set[tuple[int, ...]]:
    """Return the elements of a box."""
    return set(product(*(range(start, stop) for start, stop in box)))


@st.composite
def reshards(draw: st.DrawFn) -> Reshard:
    """Two specs of one small array, on one mesh or on two of the same devices, also uneven."""
    shape = draw(st.lists(st.integers(0, 5), max_size=3).map(tuple))
    layouts = []
    for _ in range(2):
        sizes = draw(st.sampled_from([(4, 2), (2, 4), (8,), (2, 2, 2)]))
        device_numbers = draw(st.permutations(range(8)))
        devices = tuple(DeviceRef(number // 2, number % 2) for number in device_numbers)
        mesh = MeshShape(tuple(zip(AXES, sizes, strict=False)), devices)
        spec = Spec(draw(specs(mesh, len(shape))).dims)
        layouts.append(Layout.of(shape, mesh, spec, uneven=True))
    return plan_reshard(layouts[0], layouts[1], draw(HOSTS))


@given(reshards())
def test_each_device_gets_what_it_lacks(plan: Reshard) -> None:
    """What a device held and what arrives are its new box; each element arrives once, from a device that has it."""
    had = {device: elements(box) for device, box in plan.before.boxes.items()}
    arrived: dict[DeviceRef, list[tuple[int, ...]]] = {device: [] for device in plan.after.boxes}
    for move in plan.moves():
        piece = elements(move.box)
        assert piece
        assert piece <= had[move.source]
        assert move.nbytes == 4 * len(piece)
        arrived[move.target] += piece
    for device, box in plan.after.boxes.items():
        wanted = elements(box)
        assert sorted(arrived[device]) == sorted(wanted - had.get(device, set()))


@given(reshards())
def test_totals_are_the_sums_of_the_moves(plan: Reshard) -> None:
    """The bytes moved, across hosts and kept are the sums of the moves; a piece crosses only if no device of the host has it."""
    moves = list(plan.moves())
    assert plan.nbytes_moved == sum(move.nbytes for move in moves)
    crossing = [move for move in moves if plan.host_of(move.source) != plan.host_of(move.target)]
    assert plan.nbytes_across_hosts == sum(move.nbytes for move in crossing)
    assert plan.nbytes_kept + plan.nbytes_moved == 4 * sum(len(elements(box)) for box in plan.after.boxes.values())


def test_gather_matches_hand_computed_values() -> None:
    """With rows of 48 B on four hosts of two devices, each device gathers the three rows it lacks, all across hosts."""
    mesh = MeshShape.row_major({"data": 4, "model": 2}, devices_per_host=2)
    plan = plan_reshard(Layout.of((8, 6), mesh, "P('data')"), Layout.of((8, 6), mesh, "P()"))
    assert (plan.nbytes_moved, plan.nbytes_across_hosts, plan.nbytes_kept) == (8 * 144, 8 * 144, 8 * 48)


def test_partial_sums_are_refused() -> None:
    """Partial sums are refused, because adding them up is a reduction and not a move."""
    mesh = MeshShape.row_major({"x": 2})
    with pytest.raises(InvalidRequest, match="has partial sums"):
        plan_reshard(Layout.of((4,), mesh, "P(unreduced={'x'})"), Layout.of((4,), mesh, "P()"))


def test_two_arrays_are_refused() -> None:
    """Layouts of two different arrays are refused."""
    with pytest.raises(InvalidRequest, match="two layouts of one array"):
        plan_reshard(Layout.of((4,), {"x": 2}, "P()"), Layout.of((8,), {"x": 2}, "P()"))
