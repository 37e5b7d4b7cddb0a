"""Layout of an array: boxes by device, bytes, JSON and text.

A tree of layouts describes a pytree: the cost of each array, and which of them are replicated although others are sharded.
The encoding contains each mesh once, however many arrays use it. The text is the same on a rank, in a report and in a table.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from statistics import median
from typing import Any, Self

from mhnb.errors import InvalidRequest
from mhnb.sharding.boxes import Box, Dtype, Range, box_size, parse_dtype, partition_dim
from mhnb.sharding.mesh import MeshOrigin, MeshShape, format_axes
from mhnb.sharding.spec import Spec, check_spec, count_parts, parse_spec
from mhnb.types import DeviceRef


def compute_boxes(shape: Sequence[int], spec: Spec, mesh: MeshShape) -> dict[DeviceRef, Box]:
    """Return each device's box; indivisible dims are partitioned as by the compiler.

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
    """Sharding of an array over devices, compared by value."""

    shape: tuple[int, ...]
    dtype: Dtype
    mesh: MeshShape | None = None
    """None if the sharding is not over a mesh."""
    spec: Spec | None = None
    """None together with `mesh`."""
    placed: tuple[tuple[DeviceRef, Box], ...] = ()
    """The box of each device, if there is no mesh and spec to compute them from."""
    is_local: bool = field(default=False, compare=False, repr=False)
    """Whether the devices are those of the rank that shows it, so that no rank has to be named."""

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
            raise InvalidRequest(f"shape {sizes}: sizes must be integers >= 0", shape=sizes)
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
        """Return the distinct boxes in order, each with its sorted devices."""
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
        """Return the bytes stored per byte of the array; 1.0 if empty."""
        return self.nbytes_stored / self.nbytes if self.nbytes else 1.0

    @property
    def is_replicated(self) -> bool:
        """Return whether several devices each store all of the array."""
        return self.device_count > 1 and self.nbytes_per_device == self.nbytes


# -- layouts of a pytree's arrays


_COLUMNS = ("path", "shape", "dtype", "spec", "nbytes", "nbytes_per_device", "replication", "nbytes_waste", "remark")


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """One leaf of a pytree."""

    path: str
    """As `['layers'][0].w`; empty if the value itself is a leaf."""
    layout: Layout | None
    """None if the leaf is not an array on devices."""
    kind: str = ""
    """Description of a leaf that is not an array: `int 3`, `ndarray float32[4]`."""
    is_deleted: bool = False
    """Whether its data was deleted, as that of a donated array."""


@dataclass(frozen=True)
class LayoutTree:
    """All leaves of a pytree, in the tree's order."""

    rows: tuple[LayoutRow, ...]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Return the layouts of the arrays whose data exists."""
        return tuple(row.layout for row in self.rows if row.layout is not None and not row.is_deleted)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, each counted once."""
        return sum(layout.nbytes for layout in self.layouts)

    @property
    def nbytes_per_device(self) -> int:
        """Bytes on a device that stores a shard of each array."""
        return sum(layout.nbytes_per_device for layout in self.layouts)

    @property
    def nbytes_waste(self) -> int:
        """Bytes stored beyond the arrays themselves."""
        return sum(layout.nbytes_waste for layout in self.layouts)

    @cached_property
    def fallen_back(self) -> frozenset[str]:
        """Return paths of replicated arrays at least as large as sharded ones.

        A bias or a scale is replicated on purpose, and is small. A matrix whose spec got lost takes more memory per device than its
        sharded neighbours. The threshold is the median of the sharded arrays.
        """
        sharded = [layout.nbytes_per_device for layout in self.layouts if _is_sharded(layout)]
        if not sharded:
            return frozenset()
        limit = max(1.0, median(sharded))
        return frozenset(
            row.path
            for row in self.rows
            if row.layout is not None
            and not row.is_deleted
            and row.layout.is_replicated
            and row.layout.nbytes_per_device >= limit
        )

    def remark(self, row: LayoutRow) -> str:
        """Return a remark about an unusual row; empty for most rows."""
        if row.is_deleted:
            return "deleted"
        return "replicated: is this intended?" if row.path in self.fallen_back else ""

    def to_csv(self) -> str:
        r"""Format all rows as CSV, sizes in bytes.

        >>> LayoutTree((LayoutRow("w", Layout.of((4,), {"x": 2}, "P('x')")),)).to_csv().splitlines()[1]
        "w,4,float32,P('x'),16,8,1.0,0,"
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(self._cells(row) for row in self.rows)
        return text.getvalue()

    def _cells(self, row: LayoutRow) -> Sequence[object]:
        layout = row.layout
        if layout is None:
            return row.path, "", row.kind, "", "", "", "", "", ""
        shape, spec = "x".join(map(str, layout.shape)), str(layout.spec or "")
        costs = (layout.nbytes, layout.nbytes_per_device, layout.replication, layout.nbytes_waste)
        return row.path, shape, layout.dtype.name, spec, *costs, self.remark(row)


def _is_sharded(layout: Layout) -> bool:
    return layout.device_count > 1 and layout.nbytes_per_device < layout.nbytes


# -- encode as plain values for JSON


def encode_mesh(mesh: MeshShape) -> dict[str, Any]:
    """Encode a mesh for JSON.

    >>> encode_mesh(MeshShape.row_major({"x": 2}))
    {'axes': [['x', 2]], 'devices': [[0, 0], [0, 1]]}
    """
    origin = mesh.origin
    return {
        "axes": [list(axis) for axis in mesh.axes],
        "devices": [[device.rank, device.ordinal] for device in mesh.devices],
    } | ({"origin": [origin.slices, origin.axis_types, origin.has_all_devices]} if origin else {})


def decode_mesh(wire: Mapping[str, Any]) -> MeshShape:
    """Decode the result of `encode_mesh`.

    >>> decode_mesh(encode_mesh(MeshShape.row_major({"x": 2}))) == MeshShape.row_major({"x": 2})
    True
    """
    devices = tuple(DeviceRef(rank, ordinal) for rank, ordinal in wire["devices"])
    slices, axis_types, has_all = wire.get("origin") or ((), (), False)
    origin = MeshOrigin(tuple(slices), tuple(axis_types), has_all_devices=has_all) if "origin" in wire else None
    return MeshShape(tuple((name, size) for name, size in wire["axes"]), devices, origin)


def encode_tree(tree: LayoutTree) -> dict[str, Any]:
    """Encode a tree of layouts for JSON.

    >>> encode_tree(LayoutTree((LayoutRow("w", None, "int 3"),)))
    {'meshes': [], 'rows': [{'path': 'w', 'kind': 'int 3', 'deleted': False, 'array': None}]}
    """
    meshes: dict[MeshShape, int] = {}
    rows = [
        {
            "path": row.path,
            "kind": row.kind,
            "deleted": row.is_deleted,
            "array": None if row.layout is None else _encode_layout(row.layout, meshes),
        }
        for row in tree.rows
    ]
    return {"meshes": [encode_mesh(mesh) for mesh in meshes], "rows": rows}


def _encode_layout(layout: Layout, meshes: dict[MeshShape, int]) -> dict[str, Any]:
    array: dict[str, Any] = {
        "shape": list(layout.shape),
        "dtype": [layout.dtype.name, layout.dtype.itemsize],
        "mesh": None if layout.mesh is None else meshes.setdefault(layout.mesh, len(meshes)),
    }
    if layout.spec is not None:
        spec = layout.spec
        array["spec"] = [[list(entry) for entry in spec.dims], list(spec.unreduced), list(spec.reduced)]
    array["placed"] = [[device.rank, device.ordinal, [list(part) for part in box]] for device, box in layout.placed]
    return array


def decode_tree(wire: Mapping[str, Any]) -> LayoutTree:
    """Decode the result of `encode_tree`.

    >>> tree = LayoutTree((LayoutRow("w", Layout.of((4,), {"x": 2}, "P('x')")),))
    >>> decode_tree(encode_tree(tree)) == tree
    True
    """
    meshes = [decode_mesh(mesh) for mesh in wire["meshes"]]
    return LayoutTree(
        tuple(
            LayoutRow(
                row["path"],
                None if row["array"] is None else _decode_layout(row["array"], meshes),
                row["kind"],
                is_deleted=row["deleted"],
            )
            for row in wire["rows"]
        )
    )


def _decode_layout(array: Mapping[str, Any], meshes: list[MeshShape]) -> Layout:
    mesh = None if array["mesh"] is None else meshes[array["mesh"]]
    spec = None
    if "spec" in array:
        dims, unreduced, reduced = array["spec"]
        spec = Spec(tuple(map(tuple, dims)), tuple(unreduced), tuple(reduced))
    placed = tuple(
        (DeviceRef(rank, ordinal), tuple((start, stop) for start, stop in box))
        for rank, ordinal, box in array["placed"]
    )
    name, itemsize = array["dtype"]
    return Layout(tuple(array["shape"]), Dtype(name, itemsize), mesh, spec, placed)


# -- format as text


def format_nbytes(nbytes: int) -> str:
    """Format a size in binary units.

    >>> [format_nbytes(n) for n in (32, 32768, 13_000_000)]
    ['32 B', '32.0 KiB', '12.4 MiB']
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    size = float(nbytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def format_dtype_and_shape(layout: Layout) -> str:
    """Format element type and shape.

    >>> format_dtype_and_shape(Layout.of((8, 6), {"x": 2}, "P('x')", dtype="bfloat16"))
    'bf16[8,6]'
    """
    return f"{layout.dtype.short}[{','.join(map(str, layout.shape))}]"


def format_layout_devices(layout: Layout) -> str:
    """Format how many devices a layout has, and whose.

    >>> from dataclasses import replace
    >>> lone = Layout((8,), parse_dtype("float32"), placed=((DeviceRef(2, 0), ((0, 8),)),))
    >>> format_layout_devices(lone), format_layout_devices(replace(lone, is_local=True))
    ('1 device of rank 2', '1 device')
    """
    ranks = {device.rank for device in layout.devices}
    return format_device_count(layout.device_count, ranks.pop() if len(ranks) == 1 and not layout.is_local else None)


def format_device_count(count: int, holder: int | None) -> str:
    """Format a number of devices of one other rank.

    Args:
        holder: the rank that has them all; None if it is the own rank, or there are several.

    >>> format_device_count(1, 2), format_device_count(8, None)
    ('1 device of rank 2', '8 devices')
    """
    text = f"{count} device{'' if count == 1 else 's'}"
    return text if holder is None else f"{text} of rank {holder}"


def format_replicas(layout: Layout) -> str:
    """Format replicas per box, or axes of partial sums; empty without either.

    >>> format_replicas(Layout.of((8,), {"x": 4, "y": 2}, "P('x')"))
    '2 replicas'
    """
    if layout.spec is not None and layout.spec.unreduced:
        return f"partial sums over {', '.join(map(repr, layout.spec.unreduced))}"
    counts = sorted({len(owners) for owners in layout.owners_by_box.values()})
    if not counts or counts == [1]:
        return ""
    return f"{counts[0]} replicas" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} replicas"


def format_array_line(layout: Layout) -> str:
    """Format a global array's line in a cell, identical on every rank.

    >>> format_array_line(Layout.of((8, 8), {"data": 4, "model": 2}, "P('data', 'model')"))
    "f32[8,8] on mesh (data 4, model 2) spec P('data', 'model') · 256 B, 32 B per device"
    """
    where = f"on {format_layout_devices(layout)}"
    if layout.mesh is not None and layout.spec is not None:
        where = f"on mesh ({format_axes(layout.mesh.axes)}) spec {layout.spec}"
    size = f"{format_nbytes(layout.nbytes)}, {format_nbytes(layout.nbytes_per_device)} per device"
    return f"{format_dtype_and_shape(layout)} {where} · {size}"
