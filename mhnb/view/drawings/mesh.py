"""Draw a mesh as a map of devices in their hosts' colors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from mhnb.types import DeviceRef
from mhnb.view.html import QUIET_STYLE, RankLocations, format_hosts_short, host_color

MAX_MAP_COLUMNS = 16
"""Maximum number of columns; those in the middle are left out, and the map says how many."""


def draw_mesh(
    rows: Sequence[tuple[str, tuple[DeviceRef, ...]]],
    locations: RankLocations,
    attributes: Mapping[DeviceRef, str] | None = None,
) -> str:
    """Draw the rows along the last axis, labelled with their positions.

    Args:
        rows: a label and devices.
        locations: host of each rank.
        attributes: of each device's element; None for a title with its host.
    """
    known = attributes or {
        device: f'title="{device} · {escape(locations.hosts[device.rank])}"' for _, row in rows for device in row
    }
    body = "".join(_format_mesh_row(label, devices, locations, known) for label, devices in rows)
    return f'<table class="mhnb-table" style="border-collapse:separate;border-spacing:2px;font-family:monospace">{body}</table>'


def _format_mesh_row(
    label: str, devices: Sequence[DeviceRef], locations: RankLocations, attributes: Mapping[DeviceRef, str]
) -> str:
    shown = devices if len(devices) <= MAX_MAP_COLUMNS else devices[: MAX_MAP_COLUMNS // 2]
    cells = "".join(_format_device_cell(device, locations, attributes[device]) for device in shown)
    if len(shown) < len(devices):
        cells += f"<td>… {len(devices) - 2 * len(shown)} more …</td>"
        cells += "".join(
            _format_device_cell(device, locations, attributes[device]) for device in devices[-len(shown) :]
        )
    return (
        f'<tr><th scope="row" style="text-align:left;padding-right:8px">{escape(label)}</th>{cells}'
        f'<td style="{QUIET_STYLE}">{escape(format_hosts_short([locations.hosts[device.rank] for device in devices]))}</td></tr>'
    )


def _format_device_cell(device: DeviceRef, locations: RankLocations, attributes: str) -> str:
    color = host_color(locations, (device.rank,))
    return f'<td {attributes} style="background:{color}40;border:1px solid {color};padding:1px 6px">{device}</td>'
