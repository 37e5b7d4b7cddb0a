"""Mesh as a value: named axes, the device at each coordinate, and which axes span several hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mhnb.errors import InvalidRequest
from mhnb.types import DeviceRef

PER_LAYER_AXIS_NAMES = ("model", "tensor", "tp", "mp", "expert", "ep", "sequence", "seq", "sp", "context", "cp")
"""Common names for axes along which every layer communicates."""


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Axes in order, the last one varying fastest over `devices`."""

    axes: tuple[tuple[str, int], ...]
    devices: tuple[DeviceRef, ...]
    """One device per coordinate, in row-major order of the axes."""

    @classmethod
    def row_major(cls, axes: Mapping[str, int], *, devices_per_host: int | None = None) -> MeshShape:
        """Build a mesh over hosts of one rank each, in the order of rank, then local device index.

        Args:
            axes: sizes by name, in order.
            devices_per_host: None for one host that has all devices.

        Raises:
            InvalidRequest: a size or a count below 1.
        """
        for name, size in axes.items():
            if type(size) is not int or size < 1:
                raise InvalidRequest(f"mesh axis {name!r} has size {size!r}; expected an integer >= 1")
        total = prod(axes.values())
        per_host = total if devices_per_host is None else devices_per_host
        if per_host < 1:
            raise InvalidRequest(f"devices_per_host is {per_host}; expected an integer >= 1")
        return cls(tuple(axes.items()), tuple(DeviceRef(*divmod(place, per_host)) for place in range(total)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(name for name, _ in self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(size for _, size in self.axes)

    def coordinates(self, axis: str) -> list[int]:
        """Return the coordinate of each device, in order, along an axis."""
        at = self.names.index(axis)
        size, stride = self.sizes[at], prod(self.sizes[at + 1 :])
        return [place // stride % size for place in range(len(self.devices))]

    def lines(self, axis: str) -> Iterator[tuple[DeviceRef, ...]]:
        """Yield the groups of devices that differ only in their coordinate along an axis."""
        at = self.names.index(axis)
        size, stride = self.sizes[at], prod(self.sizes[at + 1 :])
        for start in range(0, len(self.devices), size * stride):
            for first in range(start, start + stride):
                yield self.devices[first : first + size * stride : stride]


@dataclass(frozen=True, slots=True)
class AxisReach:
    """How many hosts an axis spans."""

    name: str
    size: int
    hosts: int
    """Largest number of hosts that a line of devices along the axis spans; 1 if every line stays inside a host."""

    @property
    def crosses(self) -> bool:
        """Return whether traffic along the axis crosses hosts."""
        return self.hosts > 1


def find_axis_reach(mesh: MeshShape, hosts: Mapping[int, str] | None = None) -> tuple[AxisReach, ...]:
    """Return how many hosts each axis spans; without `hosts` (label by rank), each rank counts as a host.

    >>> [(a.name, a.hosts) for a in find_axis_reach(MeshShape.row_major({"data": 4, "model": 2}, devices_per_host=2))]
    [('data', 4), ('model', 1)]
    """
    host_by_rank = hosts or {}

    def count_hosts(line: Sequence[DeviceRef]) -> int:
        return len({host_by_rank.get(device.rank, device.rank) for device in line})

    return tuple(AxisReach(name, size, max(map(count_hosts, mesh.lines(name)), default=0)) for name, size in mesh.axes)


def warn_cross_host_axes(reach: Sequence[AxisReach]) -> tuple[str, ...]:
    """Return warnings for axes that cross hosts and whose names suggest communication in every layer.

    >>> warn_cross_host_axes([AxisReach("data", 4, 1), AxisReach("model", 2, 2)])[0][:35]
    "axis 'model' (2) crosses hosts and,"
    """
    inside = [axis.name for axis in reach if not axis.crosses and axis.size > 1]
    other = f"; swap it with {inside[0]!r}, which stays inside a host" if inside else "; put it last in the mesh"
    return tuple(
        f"axis {axis.name!r} ({axis.size}) crosses hosts and, judging by its name, communicates in every layer{other}"
        for axis in reach
        if axis.crosses and axis.name.lower() in PER_LAYER_AXIS_NAMES
    )


def format_axes(axes: Sequence[tuple[str, int]]) -> str:
    """Format axes with their sizes.

    >>> format_axes([("data", 4), ("model", 2)])
    'data 4, model 2'
    """
    return ", ".join(f"{name} {size}" for name, size in axes)


def parse_axes(text: str) -> dict[str, int]:
    """Parse axes in the format of `format_axes`; `data=4` and `data:4` are accepted too.

    Raises:
        InvalidRequest: it cannot be parsed, or a name appears twice.

    >>> parse_axes("data 4, model=2")
    {'data': 4, 'model': 2}
    """
    found: dict[str, int] = {}
    for part in text.strip(" ()").split(","):
        name, _, size = part.replace("=", " ").replace(":", " ").strip().partition(" ")
        if not name.isidentifier() or not size.strip().isdecimal() or name in found:
            raise InvalidRequest(
                f"cannot read mesh {text!r} at {part.strip()!r}; expected a form such as: data 4, model 2"
            )
        found[name] = int(size)
    return found
