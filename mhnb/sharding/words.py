"""Format layouts as text, the same on a rank, in a report and in a table."""

from __future__ import annotations

from mhnb.sharding.layout import Layout
from mhnb.sharding.mesh import format_axes

__all__ = ["format_array_line", "format_device_count", "format_dtype_and_shape", "format_nbytes", "format_replicas"]


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


def format_device_count(layout: Layout) -> str:
    """Format the number of devices of a layout.

    >>> format_device_count(Layout.of((8,), {"x": 1}, "P('x')"))
    '1 device'
    """
    return f"{layout.device_count} device{'' if layout.device_count == 1 else 's'}"


def format_replicas(layout: Layout) -> str:
    """Format how many devices store each box, or over which axes partial sums remain; empty if each box is on one device.

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
    """Format the line that a cell shows for a global array, identical on every rank.

    >>> format_array_line(Layout.of((8, 8), {"data": 4, "model": 2}, "P('data', 'model')"))
    "f32[8,8] on mesh (data 4, model 2) spec P('data', 'model') · 256 B, 32 B a device"
    """
    where = f"on {format_device_count(layout)}"
    if layout.mesh is not None and layout.spec is not None:
        where = f"on mesh ({format_axes(layout.mesh.axes)}) spec {layout.spec}"
    return f"{format_dtype_and_shape(layout)} {where} · {format_nbytes(layout.nbytes)}, {format_nbytes(layout.nbytes_per_device)} a device"
