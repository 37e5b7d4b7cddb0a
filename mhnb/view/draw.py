"""Format a layout as text and as SVG, without a widget and without a style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mhnb.core.exchange.boxes import Range, format_box
from mhnb.sharding.layout import Layout
from mhnb.view.sharding.panes import LayoutGrid, Pane, Resolution, Tile, assign_hosts, build_grid
from mhnb.view.style import host_color
from mhnb.view.words import RankLocations

__all__ = ["format_layout_svg", "format_layout_text", "format_pane_position", "format_range", "tile_color"]

_TEXT_RESOLUTION = Resolution(rows=16, columns=6, panes=8, tiles=128)
_SVG_RESOLUTION = Resolution(rows=24, columns=24, panes=16, tiles=576)
_LABEL_WIDTH = 12


def format_range(span: Range, dimension: str = "") -> str:
    """Format a range of a dim, as `rows 0:2`."""
    return f"{dimension} {span[0]}:{span[1]}".strip()


def format_pane_position(pane: Pane, ndim: int) -> str:
    """Format a pane's position along the leading dims, as `[0:1, :, :]`; an empty string if there are no leading dims."""
    if not pane.leading:
        return ""
    return format_box(pane.leading)[:-1] + ", :" * min(2, ndim) + "]"


# -- text


def format_layout_text(
    layout: Layout, *, name: str = "", locations: RankLocations | None = None, notes: Sequence[str] = ()
) -> str:
    """Format a layout as text."""
    grid = build_grid(layout, _TEXT_RESOLUTION, name=name, locations=locations, notes=notes)
    lines = [f"{grid.title}     {grid.cost}"]
    for pane in grid.panes:
        lines += [label] if (label := format_pane_position(pane, grid.ndim)) else []
        lines += _pane_lines(pane, grid)
    return "\n".join([*lines, *grid.notes])


def _pane_lines(pane: Pane, grid: LayoutGrid) -> list[str]:
    labels = _row_labels(pane, grid)
    cells = [[tile.device_label if tile else "" for tile in row] for row in pane.tiles]
    heads = [format_range(span, "cols") for span in pane.columns]
    width = max(_LABEL_WIDTH, *(len(label) + 4 for label in labels))
    columns = range(len(cells[0]) if cells else 0)
    widths = [
        max(*(len(row[at]) + 5 for row in cells), *(len(head) + 2 for head in heads[at : at + 1]), 0) for at in columns
    ]
    lines = ["".join([" " * width, *(head.ljust(size) for head, size in zip(heads, widths, strict=False))]).rstrip()]
    for label, row, tiles in zip(labels, cells, pane.tiles, strict=True):
        text = label.ljust(width) + "".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        lines.append((text + _format_hosts_text(tiles)).rstrip())
    return lines if heads else lines[1:]


def _row_labels(pane: Pane, grid: LayoutGrid) -> list[str]:
    if grid.ndim == 0:
        return ["scalar"]
    return [format_range(span, "rows") if grid.ndim > 1 else f"[{format_range(span)}]" for span in pane.rows]


def _format_hosts_text(tiles: Sequence[Tile | None]) -> str:
    hosts = list(dict.fromkeys(host for tile in tiles if tile for host in tile.hosts))
    return " ".join(hosts) if len(hosts) <= 4 else f"{len(hosts)} hosts"


# -- SVG


_CELL_WIDTH, _CELL_HEIGHT, _HEAD_HEIGHT, _SIDE_WIDTH = 92, 30, 22, 84


def format_layout_svg(
    layout: Layout, *, name: str = "", locations: RankLocations | None = None, notes: Sequence[str] = ()
) -> str:
    """Format a layout as SVG.

    Each host has a colour, a replicated shard has a dashed second frame, and each tile has a title.
    """
    grid = build_grid(layout, _SVG_RESOLUTION, name=name, locations=locations, notes=notes)
    assigned = assign_hosts(layout.devices, locations)
    parts, y, right = [_svg_text(4, 15, f"{grid.title}     {grid.cost}")], 24, len(grid.title) + len(grid.cost) + 5
    width = max(
        7 * right, _SIDE_WIDTH + _CELL_WIDTH * max((len(pane.tiles[0]) for pane in grid.panes if pane.tiles), default=1)
    )
    for pane in grid.panes:
        drawn, height = _pane_svg(pane, grid, assigned)
        parts.append(f'<g transform="translate(0 {y})">{drawn}</g>')
        y += height
    for note in grid.notes:
        parts.append(_svg_text(4, y + 14, note))
        y += 18
    description = escape(format_layout_text(layout, name=name, locations=locations, notes=notes))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{y + 6}" '
        f'viewBox="0 0 {width} {y + 6}" font-family="monospace" font-size="12" fill="currentColor">'
        f"<title>{escape(grid.title)}</title><desc>{description}</desc>{''.join(parts)}</svg>"
    )


def _pane_svg(pane: Pane, grid: LayoutGrid, locations: RankLocations) -> tuple[str, int]:
    label, y = format_pane_position(pane, grid.ndim), 0
    parts = []
    if label:
        parts.append(_svg_text(4, 14, label))
        y += 20
    if pane.columns:
        parts += [
            _svg_text(_SIDE_WIDTH + at * _CELL_WIDTH + 4, y + 14, format_range(s)) for at, s in enumerate(pane.columns)
        ]
        y += _HEAD_HEIGHT
    for row, tiles in zip(_row_labels(pane, grid), pane.tiles, strict=True):
        parts.append(_svg_text(4, y + 19, row))
        parts += [
            _tile_svg(tile, _SIDE_WIDTH + at * _CELL_WIDTH, y, locations) for at, tile in enumerate(tiles) if tile
        ]
        y += _CELL_HEIGHT
    return "".join(parts), y + 6


def _tile_svg(tile: Tile, x: int, y: int, locations: RankLocations) -> str:
    color = tile_color(tile, locations)
    frame = ""
    if tile.replicas > 1:
        frame = (
            f'<rect x="{x + 3}" y="{y + 3}" width="{_CELL_WIDTH - 8}" height="{_CELL_HEIGHT - 8}" fill="none" '
            f'stroke="currentColor" stroke-dasharray="3 2"/>'
        )
    label = tile.device_label if len(tile.device_label) <= 11 else f"{tile.owners[0]} +{len(tile.owners) - 1}"
    return (
        f'<g tabindex="0"><title>{escape(tile.description)}</title>'
        f'<rect x="{x}" y="{y}" width="{_CELL_WIDTH - 2}" height="{_CELL_HEIGHT - 2}" fill="{color}" fill-opacity=".3" '
        f'stroke="{color}"/>{frame}{_svg_text(x + 7, y + 18, label)}</g>'
    )


def tile_color(tile: Tile, locations: RankLocations) -> str:
    """Return the colour of the host that holds a tile; grey for several hosts."""
    return host_color(locations, sorted({device.rank for device in tile.owners}))


def _svg_text(x: int, y: int, content: str) -> str:
    return f'<text x="{x}" y="{y}" xml:space="preserve">{escape(content, quote=False)}</text>'
