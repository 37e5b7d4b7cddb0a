"""What-if plans of arrays on a mesh, and traffic of reshards.

A plan shows which arrays are legal, and what each device would store.
A reshard counts the boxes that must arrive at a device that does not store them, and the bytes that cross hosts. How a compiler moves
the data (in rings, through a third device) is not modelled.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod

from mhnb.errors import InvalidRequest, MhnbError, ShardingError
from mhnb.sharding.boxes import Box, Range, box_size, intersect, parse_dtype
from mhnb.sharding.layout import Layout, LayoutRow, LayoutTree
from mhnb.sharding.mesh import MeshShape
from mhnb.types import DeviceRef


@dataclass(frozen=True, slots=True)
class Move:
    """One box that a device needs and does not store."""

    source: DeviceRef
    """A device that stores it; on the same host if there is one."""
    target: DeviceRef
    box: Box
    nbytes: int


# Not slotted: the sums are computed on first use and cached.
@dataclass(frozen=True)
class Reshard:
    """The traffic needed to move an array from one layout to another."""

    before: Layout
    after: Layout
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Host label by rank; a rank without a label counts as a host of its own."""
    collective: str | None = None
    """The compiler's choice, as `all-gather`; None if it was not requested from the compiler."""

    @cached_property
    def nbytes_kept(self) -> int:
        """Bytes that are already on the device that needs them."""
        return self._itemsize * sum(self._count_kept(device, box) for device, box in self.after.boxes.items())

    @property
    def nbytes_moved(self) -> int:
        """Bytes that a device receives from another one."""
        return self._itemsize * sum(map(box_size, self.after.boxes.values())) - self.nbytes_kept

    @cached_property
    def nbytes_across_hosts(self) -> int:
        """Return the moved bytes that the target's host does not store."""
        boxes_by_host: dict[int | str, set[Box]] = {}
        for device, box in self.before.boxes.items():
            boxes_by_host.setdefault(self.host_of(device), set()).add(box)
        missing_by_box: dict[tuple[int | str, Box], int] = {}
        total, all_boxes = 0, len(self.before.owners_by_box)
        for device, box in self.after.boxes.items():
            host = self.host_of(device)
            local_boxes = boxes_by_host.get(host, set())
            if len(local_boxes) == all_boxes:
                continue
            if (host, box) not in missing_by_box:
                missing_by_box[host, box] = box_size(box) - sum(_count_overlap(box, other) for other in local_boxes)
            total += missing_by_box[host, box]
        return total * self._itemsize

    def host_of(self, device: DeviceRef) -> int | str:
        """Return the host of a device: its label, or its rank."""
        return self.hosts.get(device.rank, device.rank)

    def moves(self) -> Iterator[Move]:
        """Yield every moving box by target; up to devices squared."""
        grid = [sorted({box[dim] for box in self.before.owners_by_box}) for dim in range(len(self.before.shape))]
        for at, (target, wanted) in enumerate(self.after.boxes.items()):
            own = self.before.boxes.get(target)
            for box in _overlapping_boxes(wanted, grid):
                owners = self.before.owners_by_box.get(box)
                piece = intersect(box, wanted)
                if owners is None or piece is None or box == own:
                    continue
                near = [device for device in owners if self.host_of(device) == self.host_of(target)] or owners
                # Replicas take turns, so that none of them serves all targets.
                yield Move(near[at % len(near)], target, piece, box_size(piece) * self._itemsize)

    @property
    def _itemsize(self) -> int:
        return self.after.dtype.itemsize

    def _count_kept(self, device: DeviceRef, box: Box) -> int:
        own = self.before.boxes.get(device)
        return 0 if own is None else _count_overlap(own, box)


def _count_overlap(left: Box, right: Box) -> int:
    both = intersect(left, right)
    return 0 if both is None else box_size(both)


def _overlapping_boxes(wanted: Box, grid: list[list[Range]]) -> Iterator[Box]:
    """Yield the boxes of a grid that may overlap with a box."""
    spans = []
    for (start, stop), ranges in zip(wanted, grid, strict=True):
        first = bisect_right(ranges, start, key=lambda part: part[1])
        last = bisect_left(ranges, stop, key=lambda part: part[0])
        spans.append(ranges[first:last])
    yield from product(*spans)


def plan_reshard(before: Layout, after: Layout, hosts: Mapping[int, str] | None = None) -> Reshard:
    """Build the traffic of a reshard from one layout to another.

    Raises:
        InvalidRequest: the layouts are not of the same array, or one contains partial sums.

    >>> mesh = {"x": 2}
    >>> plan_reshard(Layout.of((4,), mesh, "P('x')"), Layout.of((4,), mesh, "P()")).nbytes_moved
    16
    """
    if (before.shape, before.dtype) != (after.shape, after.dtype):
        raise InvalidRequest(
            f"cannot reshard from shape {before.shape} to {after.shape}; expected two layouts of one array"
        )
    for layout in (before, after):
        if layout.spec is not None and layout.spec.unreduced:
            raise InvalidRequest(
                f"{layout.spec} has partial sums, which a reshard does not add up; start from the reduced array"
            )
    return Reshard(before, after, dict(hosts or {}))


# -- what-if plan


_ARRAY = re.compile(r"\s*(\w+)\s+([\w<>]+)\s*\[([\d\s,]*)\]\s*(P\(.*\)|PartitionSpec\(.*\))?\s*")


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array as a user describes it, not checked yet."""

    name: str
    shape: tuple[int, ...]
    spec: str
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an array or the mesh is not legal."""

    reason: str
    jax_says: str = ""
    """JAX's own message; empty if it has none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of a what-if."""

    hosts: int
    devices_per_host: int
    mesh: MeshShape | None
    """None if the mesh is not legal."""
    layouts: tuple[tuple[str, Layout | Refusal], ...] = ()
    """Arrays by name, in order."""
    refusal: Refusal | None = None
    """Why there is no mesh."""

    @property
    def legal(self) -> tuple[tuple[str, Layout], ...]:
        """Return the arrays that are legal."""
        return tuple((name, layout) for name, layout in self.layouts if isinstance(layout, Layout))

    @property
    def refused(self) -> tuple[tuple[str, Refusal], ...]:
        """Return the arrays that are not legal, with the reasons."""
        return tuple((name, layout) for name, layout in self.layouts if isinstance(layout, Refusal))

    @property
    def is_legal(self) -> bool:
        """Return whether the mesh and all requested arrays are legal."""
        return self.refusal is None and not self.refused

    @property
    def tree(self) -> LayoutTree:
        """Return the legal arrays as a table."""
        return LayoutTree(tuple(LayoutRow(name, layout) for name, layout in self.legal))


def parse_planned(text: str) -> PlannedArray:
    """Parse an array from `name dtype[shape] spec`.

    Raises:
        InvalidRequest: the text does not have that format.

    >>> parse_planned("x f32[8,6] P('data', None)")
    PlannedArray(name='x', shape=(8, 6), spec="P('data', None)", dtype='f32')
    """
    found = _ARRAY.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"cannot read array {text!r}; expected a form such as: x f32[8,6] P('data', None)")
    name, dtype, sizes, spec = found.groups()
    return PlannedArray(name, tuple(int(size) for size in sizes.split(",") if size.strip()), spec or "P()", dtype)


def make_plan(hosts: int, devices_per_host: int, axes: Mapping[str, int], arrays: Sequence[PlannedArray]) -> Plan:
    """Lay arrays out on a mesh; replace illegal ones by the reason.

    >>> plan = make_plan(4, 2, {"data": 4}, [parse_planned("x f32[6] P('data')")])
    >>> plan.refused[0][1].jax_says
    'implies that array axis 0 is partitioned 4 times, but the dimension size is 6'
    """
    available, required = hosts * devices_per_host, prod(axes.values())
    try:
        mesh = MeshShape.row_major(axes, devices_per_host=devices_per_host)
    except InvalidRequest as error:
        return Plan(hosts, devices_per_host, None, refusal=Refusal(str(error)))
    if required > available:
        reason = f"the mesh needs {required} devices, but {hosts} × {devices_per_host} (hosts × devices per host) are only {available}"
        jax_message = f"Number of devices {available} must be >= the product of mesh_shape {tuple(axes.values())}"
        return Plan(hosts, devices_per_host, None, refusal=Refusal(reason, jax_message))
    return Plan(hosts, devices_per_host, mesh, tuple((array.name, _lay_out(array, mesh)) for array in arrays))


def _lay_out(array: PlannedArray, mesh: MeshShape) -> Layout | Refusal:
    try:
        return Layout.of(array.shape, mesh, array.spec, dtype=parse_dtype(array.dtype))
    except ShardingError as error:
        return Refusal(str(error), str(error.parts.get("jax_says", "")))
    except MhnbError as error:
        return Refusal(str(error))


def example_arrays(program: str, axes: Sequence[str]) -> tuple[PlannedArray, ...]:
    """Return sample arrays: batch over the first axis, weights over the last.

    >>> [array.spec for array in example_arrays("matmul", ["data", "model"])]
    ["P('data', None)", "P(None, 'model')"]
    """
    outer, inner = (repr(axes[0]), repr(axes[-1])) if axes else ("None", "None")
    if outer == inner:
        inner = "None"
    rows = {
        "matmul": (("x", (1024, 1024), f"{outer}, None"), ("w", (1024, 1024), f"None, {inner}")),
        "mlp": (
            ("x", (1024, 1024), f"{outer}, None"),
            ("w1", (1024, 4096), f"None, {inner}"),
            ("w2", (4096, 1024), f"{inner}, None"),
        ),
        "attention": (
            ("x", (64, 128, 1024), f"{outer}, None, None"),
            *((name, (1024, 64, 16), f"None, {inner}, None") for name in ("wq", "wk", "wv")),
            ("wo", (64, 16, 1024), f"{inner}, None, None"),
        ),
    }
    return tuple(PlannedArray(name, shape, f"P({spec})") for name, shape, spec in rows.get(program, rows["matmul"]))
