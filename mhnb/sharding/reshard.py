"""Traffic of a reshard from one layout of an array to another: boxes that move between devices, and bytes that cross hosts.

It counts what must arrive at a device that does not store it. How a compiler moves the data (in rings, through a third device) is not
modelled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from mhnb.errors import InvalidRequest
from mhnb.sharding.boxes import Box, Range, box_size, intersect
from mhnb.sharding.layout import Layout
from mhnb.values import DeviceRef

__all__ = ["Move", "Reshard", "plan_reshard"]


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
        """The part of the moved bytes that no device of the same host stores."""
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
        """Yield every box that moves, target by target; there may be as many as devices squared."""
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
        raise InvalidRequest(f"reshard goes from {before.shape} to {after.shape}: give two layouts of one array")
    for layout in (before, after):
        if layout.spec is not None and layout.spec.unreduced:
            raise InvalidRequest(
                f"{layout.spec} holds partial sums: to add them up is a reduction, not a move; start from the reduced array"
            )
    return Reshard(before, after, dict(hosts or {}))
