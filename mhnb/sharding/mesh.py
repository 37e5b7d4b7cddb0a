"""Mesh as a value: named axes, devices, and axes across hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod

from mhnb.errors import InvalidRequest
from mhnb.types import DeviceRef

PER_LAYER_AXIS_NAMES = ("model", "tensor", "tp", "mp", "expert", "ep", "sequence", "seq", "sp", "context", "cp")
"""Common names for axes along which every layer communicates."""


@dataclass(frozen=True, slots=True)
class MeshOrigin:
    """Facts about a real JAX mesh, needed to make it again."""

    slices: tuple[int, ...]
    """The slice of each device, in the mesh's order; empty if all are in one slice."""
    axis_types: tuple[str, ...]
    """Such as `Explicit`, by axis."""
    has_all_devices: bool


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Axes in order, the last one varying fastest over `devices`."""

    axes: tuple[tuple[str, int], ...]
    devices: tuple[DeviceRef, ...]
    """One device per coordinate, in row-major order of the axes."""
    origin: MeshOrigin | None = field(default=None, compare=False, repr=False)
    """None for a mesh that was made up."""

    @classmethod
    def row_major(cls, axes: Mapping[str, int], *, devices_per_host: int | None = None) -> MeshShape:
        """Build a mesh over one-rank hosts, ordered by rank, then local index.

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
        """Yield the groups of devices along an axis, other coordinates fixed."""
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
    """Return how many hosts each axis spans; ranks are hosts by default.

    >>> [(a.name, a.hosts) for a in find_axis_reach(MeshShape.row_major({"data": 4, "model": 2}, devices_per_host=2))]
    [('data', 4), ('model', 1)]
    """
    host_by_rank = hosts or {}

    def count_hosts(line: Sequence[DeviceRef]) -> int:
        return len({host_by_rank.get(device.rank, device.rank) for device in line})

    return tuple(AxisReach(name, size, max(map(count_hosts, mesh.lines(name)), default=0)) for name, size in mesh.axes)


def warn_cross_host_axes(mesh: MeshShape, hosts: Mapping[int, str] | None = None) -> tuple[str, ...]:
    """Return warnings for cross-host axes whose names suggest per-layer communication.

    The hosts of one slice are connected by a fast network, so over several slices only crossing these counts.

    >>> warn_cross_host_axes(MeshShape.row_major({"model": 2, "data": 4}, devices_per_host=4))[0].partition("; ")[2]
    "to keep it inside a host: import jax; mesh = jax.make_mesh((4, 2), ('data', 'model'))"
    """
    slices = mesh.origin.slices if mesh.origin else ()
    unit = "slice" if slices else "host"
    labels = {device.rank: str(at) for device, at in zip(mesh.devices, slices, strict=True)} if slices else hosts
    return tuple(
        f"axis {axis.name!r} ({axis.size}) crosses {unit}s and, judging by its name, communicates in every layer; "
        + _format_cure(mesh, axis.name, unit, labels)
        for axis in find_axis_reach(mesh, labels)
        if axis.crosses and _is_per_layer(axis.name)
    )


def _is_per_layer(name: str) -> bool:
    return name.lower() in PER_LAYER_AXIS_NAMES


def _format_cure(mesh: MeshShape, name: str, unit: str, labels: Mapping[int, str] | None) -> str:
    """Format whether and how an axis fits inside a host or slice."""
    origin = mesh.origin or MeshOrigin((), ("Explicit",) * len(mesh.axes), has_all_devices=True)
    ends = sorted(range(len(mesh.axes)), key=lambda at: (mesh.names[at] == name, _is_per_layer(mesh.names[at])))
    if origin.slices:
        sizes = set(Counter(origin.slices).values())
        factors = split_over_slices(mesh.sizes, ends, len(set(origin.slices)))
        fits = len(sizes) == 1 and factors is not None and factors[mesh.names.index(name)] == 1
        code = format_mesh_code(mesh.axes, origin.axis_types, factors)
    else:
        axes = tuple(mesh.axes[at] for at in ends)
        reach = find_axis_reach(MeshShape(axes, tuple(sorted(mesh.devices))), labels)
        fits = not reach[-1].crosses
        code = format_mesh_code(axes, [origin.axis_types[at] for at in ends])
    if not fits:
        return f"its size does not fit into one {unit}"
    return f"to keep it inside a {unit}: {code}" if origin.has_all_devices else f"it would fit into one {unit}"


# -- code that makes a mesh


def split_over_slices(sizes: Sequence[int], order: Sequence[int], slice_count: int) -> tuple[int, ...] | None:
    """Return the split of each axis over the slices; None if impossible.

    Args:
        sizes: of the axes.
        order: indices of the axes; earlier ones are split first, as far as possible.
        slice_count: the product of the result.

    >>> split_over_slices((2, 6), (0, 1), 4)
    (2, 2)
    """
    factors, rest = [1] * len(sizes), slice_count
    for at in order:
        factors[at] = gcd(sizes[at], rest)
        rest //= factors[at]
    return tuple(factors) if rest == 1 else None


def slice_order(names: Sequence[str]) -> list[int]:
    """Return the order of splitting axes over slices, per-layer axes last.

    >>> slice_order(("model", "data"))
    [1, 0]
    """
    return sorted(range(len(names)), key=lambda at: _is_per_layer(names[at]))


def format_mesh_code(
    axes: Sequence[tuple[str, int]],
    axis_types: Sequence[str],
    factors: Sequence[int] | None = None,
    arguments: Sequence[str] = (),
) -> str:
    """Format a line of Python that makes a mesh, with its imports.

    Args:
        axes: names and sizes.
        axis_types: such as `Explicit`, by axis.
        factors: into how many parts each axis is split over the slices; None if there is one slice.
        arguments: further ones of `create_hybrid_device_mesh`.

    >>> format_mesh_code([("x", 8)], ["Explicit"])
    "import jax; mesh = jax.make_mesh((8,), ('x',))"
    """
    names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
    types = f"({', '.join(f'jax.sharding.AxisType.{each}' for each in axis_types)},)"
    if len(axis_types) > 1 and len(set(axis_types)) == 1:
        types = f"(jax.sharding.AxisType.{axis_types[0]},) * {len(axis_types)}"
    if factors is None:
        explicit = "" if set(axis_types) <= {"Explicit"} else f", axis_types={types}"
        return f"import jax; mesh = jax.make_mesh({sizes}, {names}{explicit})"
    inside = tuple(size // factor for size, factor in zip(sizes, factors, strict=True))
    made = f"mesh_utils.create_hybrid_device_mesh({', '.join([str(inside), str(tuple(factors)), *arguments])})"
    return (
        "import jax; from jax.experimental import mesh_utils; "
        f"mesh = jax.sharding.Mesh({made}, {names}, axis_types={types})"
    )


def format_axes(axes: Sequence[tuple[str, int]]) -> str:
    """Format axes with their sizes.

    >>> format_axes([("data", 4), ("model", 2)])
    'data 4, model 2'
    """
    return ", ".join(f"{name} {size}" for name, size in axes)


def parse_axes(text: str) -> dict[str, int]:
    """Parse the format of `format_axes`; accept `data=4` and `data:4` too.

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
