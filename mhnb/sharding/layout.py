"""Layout of an array: the box that each device stores, and the bytes it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Self

from mhnb.errors import InvalidRequest
from mhnb.sharding.boxes import Box, Range, box_size, partition_dim
from mhnb.sharding.dtypes import Dtype, parse_dtype
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.spec import Spec, check_spec, count_parts, parse_spec
from mhnb.values import DeviceRef

__all__ = ["Layout", "compute_boxes"]


def compute_boxes(shape: Sequence[int], spec: Spec, mesh: MeshShape) -> dict[DeviceRef, Box]:
    """Return the box of each device of a mesh; a dim not divisible by its axes is partitioned as the compiler pads it.

    >>> compute_boxes((4, 2), parse_spec("P('x')"), MeshShape.row_major({"x": 2}))
    {DeviceRef(rank=0, ordinal=0): ((0, 2), (0, 2)), DeviceRef(rank=0, ordinal=1): ((2, 4), (0, 2))}
    """
    sizes = dict(mesh.axes)
    parts = count_parts(spec, mesh, len(shape))
    columns: list[list[Range]] = []
    for dim, size in enumerate(shape):
        ranges = partition_dim(size, parts[dim])
        part = [0] * len(mesh.devices)
        for axis in spec.dims[dim] if dim < len(spec.dims) else ():
            many = sizes[axis]
            part = [index * many + at for index, at in zip(part, mesh.coordinates(axis), strict=True)]
        columns.append([ranges[index] for index in part])
    boxes = zip(*columns, strict=True) if columns else [()] * len(mesh.devices)
    return dict(zip(mesh.devices, boxes, strict=True))


# Not slotted: boxes are computed on first use and cached, so that a table of a thousand arrays computes none.
@dataclass(frozen=True)
class Layout:
    """Sharding of an array over devices. Equal layouts put equal boxes of the same dtype on the same mesh by the same spec."""

    shape: tuple[int, ...]
    dtype: Dtype
    mesh: MeshShape | None = None
    """None if the sharding is not over a mesh."""
    spec: Spec | None = None
    """None together with `mesh`."""
    placed: tuple[tuple[DeviceRef, Box], ...] = ()
    """The box of each device, if there is no mesh and spec to compute them from."""

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        mesh: MeshShape | Mapping[str, int],
        spec: Any,
        *,
        dtype: Any = "float32",
        devices_per_host: int | None = None,
        uneven: bool = False,
    ) -> Self:
        """Build the layout of an array that need not exist.

        Args:
            shape: global shape of the array.
            mesh: a mesh, or sizes by axis; the latter is laid over hosts in row-major order.
            spec: anything that `parse_spec` accepts.
            dtype: anything that `parse_dtype` accepts.
            devices_per_host: used if `mesh` is sizes; None for one host.
            uneven: allow axes that do not divide their dim, as the compiler does inside a jitted function.

        Raises:
            ShardingError: the spec is not legal for this shape and mesh.
            InvalidRequest: shape, mesh, spec or dtype cannot be parsed.
        """
        sizes = tuple(shape)
        if any(type(size) is not int or size < 0 for size in sizes):
            raise InvalidRequest(f"shape {sizes} holds what is no size; give whole numbers from 0", shape=sizes)
        mesh_shape = (
            mesh if isinstance(mesh, MeshShape) else MeshShape.row_major(mesh, devices_per_host=devices_per_host)
        )
        parsed_spec = parse_spec(spec)
        check_spec(parsed_spec, mesh_shape, sizes, uneven=uneven)
        return cls(sizes, parse_dtype(dtype), mesh_shape, parsed_spec)

    @cached_property
    def boxes(self) -> dict[DeviceRef, Box]:
        """Return the box of each device, half-open ranges `((start, stop), ...)`."""
        if self.mesh is None or self.spec is None:
            return dict(self.placed)
        return compute_boxes(self.shape, self.spec, self.mesh)

    @cached_property
    def owners_by_box(self) -> dict[Box, tuple[DeviceRef, ...]]:
        """Return the distinct boxes in index order, each with the sorted devices that store it."""
        found: dict[Box, list[DeviceRef]] = {}
        for device, box in self.boxes.items():
            found.setdefault(box, []).append(device)
        return {box: tuple(sorted(found[box])) for box in sorted(found)}

    @property
    def devices(self) -> tuple[DeviceRef, ...]:
        """Return all devices of the layout, in the mesh's order."""
        return tuple(device for device, _ in self.placed) if self.mesh is None else self.mesh.devices

    @property
    def device_count(self) -> int:
        """Return the number of devices of the layout."""
        return len(self.devices)

    def owners(self, box: Sequence[Range]) -> tuple[DeviceRef, ...]:
        """Return the devices that store all of a box, sorted."""
        wanted = tuple((start, stop) for start, stop in box)
        if (exact := self.owners_by_box.get(wanted)) is not None and box_size(wanted):
            return exact
        held = (
            owners
            for whole, owners in self.owners_by_box.items()
            if all(low <= start and stop <= high for (low, high), (start, stop) in zip(whole, wanted, strict=True))
        )
        return tuple(sorted(device for owners in held for device in owners))

    @property
    def nbytes(self) -> int:
        """Bytes of the array, counted once."""
        return prod(self.shape) * self.dtype.itemsize

    @cached_property
    def nbytes_per_device(self) -> int:
        """Bytes on each device; padding counts, because the compiler stores equal tiles."""
        if self.mesh is None or self.spec is None:
            return max((box_size(box) for _, box in self.placed), default=0) * self.dtype.itemsize
        parts = count_parts(self.spec, self.mesh, len(self.shape))
        return prod(-(-size // many) for size, many in zip(self.shape, parts, strict=True)) * self.dtype.itemsize

    @property
    def nbytes_stored(self) -> int:
        """Bytes on all devices together."""
        if self.mesh is None:
            return sum(box_size(box) for _, box in self.placed) * self.dtype.itemsize
        return self.nbytes_per_device * len(self.mesh.devices)

    @property
    def nbytes_waste(self) -> int:
        """Bytes stored beyond the array itself: further replicas, partial sums and padding."""
        return self.nbytes_stored - self.nbytes

    @property
    def replication(self) -> float:
        """Bytes stored per byte of the array; 1.0 for an array of no bytes."""
        return self.nbytes_stored / self.nbytes if self.nbytes else 1.0

    @property
    def is_replicated(self) -> bool:
        """Return whether several devices store the array and each stores all of it."""
        return self.device_count > 1 and self.nbytes_per_device == self.nbytes
