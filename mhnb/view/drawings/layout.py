"""Draw a layout as SVG, or as an HTML table of tiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from mhnb.sharding.boxes import Box, format_box
from mhnb.sharding.layout import Layout
from mhnb.types import DeviceRef
from mhnb.view.html import QUIET_STYLE, TABS_CSS, RankLocations, host_color
from mhnb.view.layout_grid import (
    LayoutGrid,
    Pane,
    Resolution,
    Tile,
    assign_hosts,
    build_grid,
    format_hosts_of_tiles,
    format_layout_text,
    format_pane_position,
    format_range,
    format_row_labels,
)

_SVG_RESOLUTION = Resolution(rows=24, columns=24, panes=16, tiles=576)
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
    for row, tiles in zip(format_row_labels(pane, grid), pane.tiles, strict=True):
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
    """Return the colour of a tile's host; grey for several hosts."""
    return host_color(locations, sorted({device.rank for device in tile.owners}))


def _svg_text(x: int, y: int, content: str) -> str:
    return f'<text x="{x}" y="{y}" xml:space="preserve">{escape(content, quote=False)}</text>'


# -- as an HTML table


HTML_RESOLUTION = Resolution(rows=24, columns=24, panes=16, tiles=576)
_MAX_TAB_STOPS = 64
"""Maximum number of tiles with a tab stop; more would trap a keyboard user.

With more tiles the names are not coloured either, because that takes space.
"""
_MAX_STRIPES = 4

_CSS = (
    ".mhnb .lay td{padding:2px 7px;text-align:left;border:1px solid transparent;white-space:nowrap}"
    ".mhnb .lay th{font-weight:var(--mhnb-plain);text-align:left;padding:2px 8px 2px 0;white-space:nowrap}"
    ".mhnb .lay td:focus{outline:2px solid var(--jp-brand-color1,#3f7fd0);outline-offset:-2px}"
    ".mhnb .lay td:focus::after{content:attr(title);position:absolute;left:8px;bottom:-1.5em;padding:0 6px;z-index:9;"
    "color:var(--jp-ui-font-color1,#111);background:var(--jp-layout-color2,#eee)}"
    ".mhnb .lay{position:relative}"
)
_SLIDER_SCRIPT = (
    "var b=this.closest('.nd'),i=0;b.querySelectorAll('input').forEach(function(s){i=i*(+s.max+1)+ +s.value});"
    "b.querySelectorAll('.pane').forEach(function(d,n){d.open=n==i})"
)


def format_panes_css(grid: LayoutGrid, uid: str) -> str:
    """Return the style sheet of `draw_panes`."""
    return _CSS + format_tabs_css(grid, uid)


def format_tabs_css(grid: LayoutGrid, uid: str) -> str:
    """Return the part that depends on the panes."""
    return TABS_CSS.format(uid=uid) * (len(grid.panes) > 1)


def draw_panes(grid: LayoutGrid, locations: RankLocations, uid: str, *, links: Mapping[Box, str] | None = None) -> str:
    """Draw a layout's panes as tables.

    Args:
        grid: the panes.
        locations: host of each rank.
        uid: unique in the notebook.
        links: the class of each tile by its box, for `format_links_css`.
    """
    has_stops = _count_tiles(grid) <= _MAX_TAB_STOPS
    tables = [_format_pane_html(pane, grid, locations, links, has_stops=has_stops) for pane in grid.panes]
    if len(tables) == 1:
        return tables[0]
    blocks = [
        f'<details class="pane" name="{uid}"{" open" if at == 0 else ""}><summary style="cursor:pointer">'
        f"{format_pane_position(pane, grid.ndim)}</summary>{table}</details>"
        for at, (pane, table) in enumerate(zip(grid.panes, tables, strict=True))
    ]
    return f'<div class="nd">{_format_sliders(grid)}<div class="{uid}">{"".join(blocks)}</div></div>'


def _count_tiles(grid: LayoutGrid) -> int:
    return sum(len(row) for pane in grid.panes for row in pane.tiles)


# -- a drawing that follows the pointer


_LINKS_CSS = (
    ".{uid} .tips{{position:relative;padding-bottom:1.7em}}.{uid} .tips .lay{{position:static;padding-bottom:0!important}}"
    ".{uid} [data-tip]{{cursor:default}}.{uid} .tips [data-tip]:focus::after{{content:none}}"
    ".{uid} .tips [data-tip]:is(:hover,:focus-visible)::after{{content:attr(data-tip);position:absolute;left:0;bottom:0;max-width:100%;"
    "white-space:normal;padding:0 6px;z-index:9;color:var(--jp-ui-font-color1,#111);background:var(--jp-layout-color2,#eee)}}"
)
_LINK_CSS = (
    ".{uid}:has(.on.{link}:is(:hover,:focus-visible)) .part.{link},.{uid}:has(.part.{link}:is(:hover,:focus-visible)) .on.{link}"
    "{{outline:3px solid var(--jp-brand-color1,#0072b2);outline-offset:-1px;font-weight:bold}}"
)


def link_tiles(grid: LayoutGrid, name: str) -> dict[Box, str]:
    """Return a class for each tile, empty if there are too many."""
    if _count_tiles(grid) > _MAX_TAB_STOPS:
        return {}
    tiles = [tile for pane in grid.panes for row in pane.tiles for tile in row if tile]
    return {tile.box: f"{name}-{at}" for at, tile in enumerate(tiles)}


def link_devices(grid: LayoutGrid, links: Mapping[Box, str], name: str) -> dict[DeviceRef, tuple[str, str]]:
    """Return the class of each device's tile, and what the device holds."""
    return {
        owner: (links.get(tile.box, ""), f"{name}{format_box(tile.box)}")
        for pane in grid.panes
        for row in pane.tiles
        for tile in row
        if tile
        for owner in tile.owners
    }


def format_link(links: str, tip: str, kind: str = "part", *, has_stop: bool = False) -> str:
    """Format the attributes of a part, or of a device (`on`)."""
    stop = 'tabindex="0" ' if has_stop else ""
    return f'{stop}class="{kind} {links}" data-tip="{escape(tip)}"'


def format_links_css(uid: str, links: Iterable[str]) -> str:
    """Return a style by which what a device holds stands out.

    Args:
        uid: class of the element that contains both.
        links: the classes of all tiles.
    """
    return _CSS + _LINKS_CSS.format(uid=uid) + "".join(_LINK_CSS.format(uid=uid, link=link) for link in links)


def _format_sliders(grid: LayoutGrid) -> str:
    return "".join(
        f'<label style="margin-right:12px">dim {dim} <input type="range" min="0" max="{steps - 1}" value="0" step="1" '
        f'aria-label="place along dim {dim}" data-lm-suppress-shortcuts="true" oninput="{escape(_SLIDER_SCRIPT)}"'
        f"{' disabled' if steps == 1 else ''}></label>"
        for dim, steps in enumerate(grid.steps)
    )


def _format_pane_html(
    pane: Pane, grid: LayoutGrid, locations: RankLocations, links: Mapping[Box, str] | None, *, has_stops: bool
) -> str:
    rows = []
    if pane.columns:
        heads = "".join(f'<th scope="col">{format_range(span, "cols")}</th>' for span in pane.columns)
        rows.append(f"<tr><td></td>{heads}<td></td></tr>")
    for at, tiles in enumerate(pane.tiles):
        label = format_range(pane.rows[at], "rows" if grid.ndim > 1 else "") if pane.rows else "scalar"
        cells = "".join(
            _format_tile_html(tile, locations, links, has_stops=has_stops, is_short=len(tiles) > 8) for tile in tiles
        )
        rows.append(
            f'<tr><th scope="row">{label}</th>{cells}<td style="{QUIET_STYLE}">{escape(format_hosts_of_tiles(tiles))}</td></tr>'
        )
    return (
        '<div class="lay" tabindex="0" style="overflow-x:auto;padding-bottom:1.6em"><table style="border-collapse:separate;'
        f'border-spacing:2px;font-family:monospace;margin:2px 0">{"".join(rows)}</table></div>'
    )


def _format_tile_html(
    tile: Tile | None, locations: RankLocations, links: Mapping[Box, str] | None, *, has_stops: bool, is_short: bool
) -> str:
    if tile is None:
        return "<td></td>"
    color = tile_color(tile, locations)
    frame = f"border:3px double {color}" if tile.replicas > 1 else f"border:1px solid {color}"
    words, fill = tile.device_label, _tile_background(tile, locations)
    if is_short and len(words) > 12:
        words = f"{tile.owners[0]} +{len(tile.owners) - 1}"
    elif has_stops and len(tile.hosts) > 1 and str(tile.owners[-1]) in words.split():
        # Each name is listed and has the colour of its host, which stripes across the whole tile would not match.
        colors = {str(device): host_color(locations, (device.rank,)) for device in tile.owners}
        words, fill = " ".join(_color_name(word, colors.get(word)) for word in words.split()), "none"
    mark = f" <small>×{tile.replicas}</small>" if tile.replicas > 1 and not tile.is_partial else ""
    stop = ' tabindex="0"' if has_stops else ""
    told = (
        f'title="{escape(tile.description)}"'
        if links is None
        else format_link(links.get(tile.box, ""), tile.description)
    )
    return f'<td{stop} {told} style="background:{fill};{frame}">{words}{mark}</td>'


def _color_name(word: str, color: str | None) -> str:
    return f'<span style="background:{color}40;padding:2px 3px">{word}</span>' if color else word


def _tile_background(tile: Tile, locations: RankLocations) -> str:
    """Return a background with a stripe per host; grey for too many."""
    ranks = list({locations.hosts[device.rank]: device.rank for device in tile.owners}.values())
    if not 1 < len(ranks) <= _MAX_STRIPES:
        return f"{tile_color(tile, locations)}40"
    share = 100 / len(ranks)
    stripes = ",".join(
        f"{host_color(locations, (rank,))}40 {at * share:g}% {(at + 1) * share:g}%" for at, rank in enumerate(ranks)
    )
    return f"linear-gradient(90deg,{stripes})"
