"""Format a mesh as a map: devices by host, axes as directions, which axis crosses hosts and which of those should not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from mhnb.sharding.mesh import AxisReach, MeshShape, find_axis_reach, format_axes, warn_cross_host_axes
from mhnb.values import DeviceRef
from mhnb.view.mime import format_pre
from mhnb.view.sharding.panes import assign_hosts
from mhnb.view.style import QUIET_STYLE, host_color, wrap_html
from mhnb.view.words import RankLocations

__all__ = ["format_mesh_html", "format_mesh_text"]

_MAX_MAP_ROWS, _MAX_MAP_COLUMNS = 64, 16
"""Maximum numbers of rows and columns. Further rows, and columns in the middle, are left out; the map says how many."""


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
    """Return the lines along the last axis, each with its position along the others."""
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
    found = list(dict.fromkeys(hosts[device.rank] for device in devices))
    return " ".join(found) if len(found) <= 4 else f"{len(found)} hosts"


def _format_directions(mesh: MeshShape) -> str:
    *outer, last = mesh.names or ("",)
    return f"{last} →" + (f"   {' '.join(outer)} ↓" if outer else "")


def _format_device_list(devices: Sequence[DeviceRef]) -> list[str]:
    if len(devices) <= _MAX_MAP_COLUMNS:
        return list(map(str, devices))
    half = _MAX_MAP_COLUMNS // 2
    return [*map(str, devices[:half]), f"… {len(devices) - 2 * half} more …", *map(str, devices[-half:])]


def format_mesh_text(mesh: MeshShape, *, name: str = "", locations: RankLocations | None = None) -> str:
    """Format a mesh as text."""
    hosts = assign_hosts(mesh.devices, locations).hosts
    reach = find_axis_reach(mesh, hosts)
    rows = _rows(mesh)
    shown = rows[:_MAX_MAP_ROWS]
    width = max(12, *(len(label) + 4 for label, _ in shown))
    cells = [" ".join(_format_device_list(devices)) for _, devices in shown]
    wide = max(map(len, cells)) + 5
    lines = [_format_mesh_title(mesh, hosts, name), " " * width + _format_directions(mesh)]
    for (label, devices), cell in zip(shown, cells, strict=True):
        lines.append(f"{label:{width}}{cell:{wide}}{_format_hosts(devices, hosts)}")
    lines += [f"… {len(rows) - len(shown)} more lines"] if len(rows) > len(shown) else []
    return "\n".join([*lines, _format_reach(reach), *(f"warning: {text}" for text in warn_cross_host_axes(reach))])


def format_mesh_html(mesh: MeshShape, *, name: str = "", locations: RankLocations | None = None) -> str:
    """Format a mesh as HTML."""
    assigned = assign_hosts(mesh.devices, locations)
    reach = find_axis_reach(mesh, assigned.hosts)
    rows = _rows(mesh)
    body = "".join(_format_mesh_row(label, devices, assigned) for label, devices in rows[:_MAX_MAP_ROWS])
    more = f"<div>… {len(rows) - _MAX_MAP_ROWS} more lines</div>" if len(rows) > _MAX_MAP_ROWS else ""
    warned = "".join(f'<div class="mhnb-bad">{escape(text)}</div>' for text in warn_cross_host_axes(reach))
    text = format_pre(format_mesh_text(mesh, name=name, locations=locations))
    return wrap_html(
        f"<div><b>{escape(_format_mesh_title(mesh, assigned.hosts, name))}</b></div>"
        f'<div style="{QUIET_STYLE}">{escape(_format_directions(mesh))}</div>'
        f'<table style="border-collapse:separate;border-spacing:2px;font-family:monospace">{body}</table>{more}'
        f'<div style="{QUIET_STYLE}">{escape(_format_reach(reach))}</div>{warned}'
        f'<details><summary style="cursor:pointer;{QUIET_STYLE}">as text</summary>{text}</details>'
    )


def _format_mesh_row(label: str, devices: Sequence[DeviceRef], locations: RankLocations) -> str:
    shown = devices if len(devices) <= _MAX_MAP_COLUMNS else devices[: _MAX_MAP_COLUMNS // 2]
    cells = "".join(_format_device_cell(device, locations) for device in shown)
    if len(shown) < len(devices):
        cells += f"<td>… {len(devices) - 2 * len(shown)} more …</td>"
        cells += "".join(_format_device_cell(device, locations) for device in devices[-len(shown) :])
    return (
        f'<tr><th scope="row" style="font-weight:normal;text-align:left;padding-right:8px">{escape(label)}</th>{cells}'
        f'<td style="{QUIET_STYLE}">{escape(_format_hosts(devices, locations.hosts))}</td></tr>'
    )


def _format_device_cell(device: DeviceRef, locations: RankLocations) -> str:
    color = host_color(locations, (device.rank,))
    host = escape(locations.hosts[device.rank])
    return f'<td title="{device} · {host}" style="background:{color}40;border:1px solid {color};padding:1px 6px">{device}</td>'
