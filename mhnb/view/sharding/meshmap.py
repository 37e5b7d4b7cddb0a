"""Format a mesh as a map: devices by host, axes as directions, which axis crosses hosts and which of those should not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from mhnb.sharding.mesh import AxisReach, MeshShape, axis_reach, format_axes, warn_chatty
from mhnb.values import DeviceRef
from mhnb.view.mime import pre
from mhnb.view.sharding.panes import place_hosts
from mhnb.view.style import QUIET, host_color, wrap
from mhnb.view.words import Places

__all__ = ["format_mesh_html", "format_mesh_text"]

_ROWS, _COLUMNS = 64, 16
"""Maximum numbers of rows and columns. Further rows, and columns in the middle, are left out; the map says how many."""


def _title(mesh: MeshShape, hosts: Mapping[int, str], name: str) -> str:
    count = len({hosts[device.rank] for device in mesh.devices})
    where = f"{len(mesh.devices)} devices on {count} host{'' if count == 1 else 's'}"
    return f"{name or 'mesh'} ({format_axes(mesh.axes)}) · {where}"


def _say_reach(reach: Sequence[AxisReach]) -> str:
    words = []
    for axis in reach:
        how = f"crosses {axis.hosts} hosts" if axis.crosses else "stays inside a host" if axis.size > 1 else "is 1"
        words.append(f"{axis.name} {how}")
    return " · ".join(words)


def _rows(mesh: MeshShape) -> list[tuple[str, tuple[DeviceRef, ...]]]:
    """Return the lines along the last axis, each with its position along the others."""
    if not mesh.axes:
        return [("", mesh.devices)]
    size, outer = mesh.axes[-1][1], mesh.axes[:-1]
    rows = []
    for at in range(len(mesh.devices) // size):
        place, rest = [], at
        for name, count in reversed(outer):
            rest, here = divmod(rest, count)
            place.append(f"{name} {here}")
        rows.append((" ".join(reversed(place)), mesh.devices[at * size : (at + 1) * size]))
    return rows


def _hosts_in(devices: Sequence[DeviceRef], hosts: Mapping[int, str]) -> str:
    found = list(dict.fromkeys(hosts[device.rank] for device in devices))
    return " ".join(found) if len(found) <= 4 else f"{len(found)} hosts"


def _directions(mesh: MeshShape) -> str:
    *outer, last = mesh.names or ("",)
    return f"{last} →" + (f"   {' '.join(outer)} ↓" if outer else "")


def _shorten(devices: Sequence[DeviceRef]) -> list[str]:
    if len(devices) <= _COLUMNS:
        return list(map(str, devices))
    half = _COLUMNS // 2
    return [*map(str, devices[:half]), f"… {len(devices) - 2 * half} more …", *map(str, devices[-half:])]


def format_mesh_text(mesh: MeshShape, *, name: str = "", places: Places | None = None) -> str:
    """Format a mesh as text."""
    hosts = place_hosts(mesh.devices, places).hosts
    reach = axis_reach(mesh, hosts)
    rows = _rows(mesh)
    shown = rows[:_ROWS]
    width = max(12, *(len(label) + 4 for label, _ in shown))
    cells = [" ".join(_shorten(devices)) for _, devices in shown]
    wide = max(map(len, cells)) + 5
    lines = [_title(mesh, hosts, name), " " * width + _directions(mesh)]
    for (label, devices), cell in zip(shown, cells, strict=True):
        lines.append(f"{label:{width}}{cell:{wide}}{_hosts_in(devices, hosts)}")
    lines += [f"… {len(rows) - len(shown)} more lines"] if len(rows) > len(shown) else []
    return "\n".join([*lines, _say_reach(reach), *(f"warning: {text}" for text in warn_chatty(reach))])


def format_mesh_html(mesh: MeshShape, *, name: str = "", places: Places | None = None) -> str:
    """Format a mesh as HTML."""
    where = place_hosts(mesh.devices, places)
    reach = axis_reach(mesh, where.hosts)
    rows = _rows(mesh)
    body = "".join(_row(label, devices, where) for label, devices in rows[:_ROWS])
    more = f"<div>… {len(rows) - _ROWS} more lines</div>" if len(rows) > _ROWS else ""
    warned = "".join(f'<div class="mhnb-bad">{escape(text)}</div>' for text in warn_chatty(reach))
    text = pre(format_mesh_text(mesh, name=name, places=places))
    return wrap(
        f"<div><b>{escape(_title(mesh, where.hosts, name))}</b></div>"
        f'<div style="{QUIET}">{escape(_directions(mesh))}</div>'
        f'<table style="border-collapse:separate;border-spacing:2px;font-family:monospace">{body}</table>{more}'
        f'<div style="{QUIET}">{escape(_say_reach(reach))}</div>{warned}'
        f'<details><summary style="cursor:pointer;{QUIET}">as text</summary>{text}</details>'
    )


def _row(label: str, devices: Sequence[DeviceRef], places: Places) -> str:
    shown = devices if len(devices) <= _COLUMNS else devices[: _COLUMNS // 2]
    cells = "".join(_cell(device, places) for device in shown)
    if len(shown) < len(devices):
        cells += f"<td>… {len(devices) - 2 * len(shown)} more …</td>"
        cells += "".join(_cell(device, places) for device in devices[-len(shown) :])
    return (
        f'<tr><th scope="row" style="font-weight:normal;text-align:left;padding-right:8px">{escape(label)}</th>{cells}'
        f'<td style="{QUIET}">{escape(_hosts_in(devices, places.hosts))}</td></tr>'
    )


def _cell(device: DeviceRef, places: Places) -> str:
    color = host_color(places, (device.rank,))
    host = escape(places.hosts[device.rank])
    return f'<td title="{device} · {host}" style="background:{color}40;border:1px solid {color};padding:1px 6px">{device}</td>'
