"""A mesh as a map, and a pytree's arrays as a table.

The map shows devices by host, axes as directions, which axis crosses hosts and which of those should not.
The columns of the HTML table can be sorted where scripts run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhnb.core.ranks import pluralize
from mhnb.sharding.layout import LayoutRow, LayoutTree, format_dtype_and_shape, format_layout_devices, format_nbytes
from mhnb.sharding.mesh import AxisReach, MeshShape, find_axis_reach, format_axes, warn_cross_host_axes
from mhnb.types import DeviceRef
from mhnb.view.document import (
    Code,
    Document,
    Drawing,
    Drawn,
    Fold,
    InHtml,
    InText,
    Line,
    SortableTable,
    Table,
    split_rows,
)
from mhnb.view.drawings.mesh import MAX_MAP_COLUMNS, draw_mesh
from mhnb.view.html import RankLocations, format_hosts_short
from mhnb.view.layout_grid import assign_hosts

_MAX_MAP_ROWS = 64
"""Maximum number of rows. Further ones are left out; the map says how many."""


def _format_mesh_title(mesh: MeshShape, hosts: Mapping[int, str], name: str) -> str:
    count = len({hosts[device.rank] for device in mesh.devices})
    where = f"{len(mesh.devices)} devices on {count} host{'' if count == 1 else 's'}"
    return f"{name or 'mesh'} ({format_axes(mesh.axes)}) · {where}"


def _format_reach(reach: Sequence[AxisReach]) -> str:
    words = []
    for axis in reach:
        extent = f"crosses {axis.hosts} hosts" if axis.crosses else "stays inside a host" if axis.size > 1 else "is 1"
        words.append(f"{axis.name} {extent}")
    return " · ".join(words)


def _rows(mesh: MeshShape) -> list[tuple[str, tuple[DeviceRef, ...]]]:
    """Return the mesh's rows along the last axis, with their positions."""
    if not mesh.axes:
        return [("", mesh.devices)]
    size, outer = mesh.axes[-1][1], mesh.axes[:-1]
    rows = []
    for at in range(len(mesh.devices) // size):
        position, rest = [], at
        for name, count in reversed(outer):
            rest, index = divmod(rest, count)
            position.append(f"{name} {index}")
        rows.append((" ".join(reversed(position)), mesh.devices[at * size : (at + 1) * size]))
    return rows


def _format_hosts(devices: Sequence[DeviceRef], hosts: Mapping[int, str]) -> str:
    return format_hosts_short([hosts[device.rank] for device in devices])


def _format_directions(mesh: MeshShape) -> str:
    *outer, last = mesh.names or ("",)
    return f"{last} →" + (f"   {' '.join(outer)} ↓" if outer else "")


def _format_device_list(devices: Sequence[DeviceRef]) -> list[str]:
    if len(devices) <= MAX_MAP_COLUMNS:
        return list(map(str, devices))
    half = MAX_MAP_COLUMNS // 2
    return [*map(str, devices[:half]), f"… {len(devices) - 2 * half} more …", *map(str, devices[-half:])]


def build_mesh(mesh: MeshShape, *, name: str = "", locations: RankLocations | None = None) -> Document:
    """Build a map of a mesh."""
    text = format_mesh_text(mesh, name=name, locations=locations)

    def draw() -> Document:
        hosts = assign_hosts(mesh.devices, locations).hosts
        heading = Line(_format_mesh_title(mesh, hosts, name), "heading")
        return [heading, *build_map(mesh, locations), Fold("as text", [Code(text)])]

    return [InText([Code(text)]), Drawn(draw)]


def build_map(
    mesh: MeshShape, locations: RankLocations | None = None, attributes: Mapping[DeviceRef, str] | None = None
) -> Document:
    """Build a map; `attributes` are those of each device's element."""
    assigned = assign_hosts(mesh.devices, locations)
    shown, rest = split_rows(_rows(mesh)[:_MAX_MAP_ROWS])
    folded = Fold(pluralize(len(rest), "more line"), [Drawing(draw_mesh(rest, assigned, attributes))])
    return [
        Line(_format_directions(mesh), "quiet"),
        Drawing(draw_mesh(shown, assigned, attributes)),
        *([folded] if rest else []),
        *map(Line, _format_more(mesh)),
        Line(_format_reach(find_axis_reach(mesh, assigned.hosts)), "quiet"),
        *(Line(warning, "bad") for warning in warn_cross_host_axes(mesh, assigned.hosts)),
    ]


def _format_more(mesh: MeshShape) -> list[str]:
    more = len(_rows(mesh)) - _MAX_MAP_ROWS
    return [f"… {more} more lines"] if more > 0 else []


def format_mesh_text(mesh: MeshShape, *, name: str = "", locations: RankLocations | None = None) -> str:
    """Format a mesh as text."""
    hosts = assign_hosts(mesh.devices, locations).hosts
    shown = _rows(mesh)[:_MAX_MAP_ROWS]
    width = max(12, *(len(label) + 4 for label, _ in shown))
    cells = [" ".join(_format_device_list(devices)) for _, devices in shown]
    wide = max(map(len, cells)) + 5
    lines = [_format_mesh_title(mesh, hosts, name), " " * width + _format_directions(mesh)]
    for (label, devices), cell in zip(shown, cells, strict=True):
        lines.append(f"{label:{width}}{cell:{wide}}{_format_hosts(devices, hosts)}")
    warnings = [f"warning: {text}" for text in warn_cross_host_axes(mesh, hosts)]
    return "\n".join([*lines, *_format_more(mesh), _format_reach(find_axis_reach(mesh, hosts)), *warnings])


# -- a pytree's arrays as a table


_HEADER = ("path", "array", "spec", "bytes", "bytes/device", "replication", "waste", "")
_MAX_ROWS = 300
"""Maximum number of rows in HTML, about 180 KB; `to_csv()` has all."""


def _cells(row: LayoutRow, tree: LayoutTree) -> tuple[str, ...]:
    layout = row.layout
    if layout is None:
        return row.path, row.kind, "", "", "", "", "", ""
    spec = str(layout.spec) if layout.spec is not None else format_layout_devices(layout)
    sizes = (format_nbytes(layout.nbytes), format_nbytes(layout.nbytes_per_device))
    waste = format_nbytes(layout.nbytes_waste) if layout.nbytes_waste else ""
    return row.path, format_dtype_and_shape(layout), spec, *sizes, f"{layout.replication:g}", waste, tree.remark(row)


def _sort_keys(row: LayoutRow) -> tuple[float | None, ...]:
    """Return what numeric columns sort by; None for text columns."""
    layout = row.layout
    if layout is None:
        return (None, None, None, -1, -1, -1, -1, None)
    return (None, None, None, layout.nbytes, layout.nbytes_per_device, layout.replication, layout.nbytes_waste, None)


def _format_totals(tree: LayoutTree) -> str:
    count = len(tree.layouts)
    words = [f"{count} array{'' if count == 1 else 's'}", format_nbytes(tree.nbytes)]
    words += [
        f"{format_nbytes(tree.nbytes_per_device)} per device",
        f"{format_nbytes(tree.nbytes_waste)} waste",
    ]
    return " · ".join(words)


def _format_tree_title(name: str, tree: LayoutTree) -> str:
    return f"{name}  {_format_totals(tree)}" if name else _format_totals(tree)


def build_tree(tree: LayoutTree, *, name: str = "", notes: Sequence[str] = ()) -> Document:
    """Build the table; the waste of replicated arrays stands out."""
    rows = [_cells(row, tree) for row in tree.rows]
    marked = frozenset(at for at, row in enumerate(tree.rows) if row.path in tree.fallen_back)
    keys = [_sort_keys(row) for row in tree.rows[:_MAX_ROWS]]
    more = len(rows) - len(keys)
    left_out = [Line(f"{more} more rows: mhnb.layout(...).to_csv() lists all", "quiet")] if more else []
    return [
        Line(_format_tree_title(name, tree), "heading"),
        InText([Table(("", *_HEADER), [("→" if at in marked else "", *cells) for at, cells in enumerate(rows)])]),
        InHtml(
            [SortableTable(_HEADER, rows[:_MAX_ROWS], keys, frozenset((at, _HEADER.index("waste")) for at in marked))]
        ),
        *(Line(note, "quiet") for note in notes),
        InHtml(left_out),
    ]
