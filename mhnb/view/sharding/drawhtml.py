"""Format a layout as an HTML table that is readable without a style sheet or a script, and better with both.

An untrusted notebook loses `<style>`, `tabindex` and the script of a slider. Then the panes are blocks to open one by one;
the colours, the titles and the text form stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mhnb.sharding.layout import Layout
from mhnb.view.draw import format_layout_text, format_pane_position, format_range, tile_color
from mhnb.view.mime import format_pre
from mhnb.view.sharding.panes import LayoutGrid, Pane, Resolution, Tile, assign_hosts, build_grid
from mhnb.view.style import QUIET_STYLE, TABS_CSS, host_color, wrap_html
from mhnb.view.words import RankLocations

__all__ = ["format_layout_html"]

_HTML_RESOLUTION = Resolution(rows=24, columns=24, panes=16, tiles=576)
_MAX_TAB_STOPS = 64
"""Maximum number of tiles with a tab stop; more would trap a keyboard user.

With more tiles the names are not coloured either, because that takes space.
"""
_MAX_STRIPES = 4

_CSS = (
    ".mhnb .lay td{padding:2px 7px;text-align:left;border:1px solid transparent;white-space:nowrap}"
    ".mhnb .lay th{font-weight:normal;text-align:left;padding:2px 8px 2px 0;white-space:nowrap}"
    ".mhnb .lay td:focus{outline:2px solid var(--jp-brand-color1,#3f7fd0);outline-offset:-2px}"
    ".mhnb .lay td:focus::after{content:attr(title);position:absolute;left:8px;bottom:-1.5em;padding:0 6px;z-index:9;"
    "color:var(--jp-ui-font-color1,#111);background:var(--jp-layout-color2,#eee)}"
    ".mhnb .lay{position:relative}"
)
_SLIDER_SCRIPT = (
    "var b=this.closest('.nd'),i=0;b.querySelectorAll('input').forEach(function(s){i=i*(+s.max+1)+ +s.value});"
    "b.querySelectorAll('.pane').forEach(function(d,n){d.open=n==i})"
)


def format_layout_html(
    layout: Layout,
    *,
    name: str = "",
    locations: RankLocations | None = None,
    notes: Sequence[str] = (),
    uid: str = "mhnb-0",
) -> str:
    """Format a layout as HTML; `uid` is unique in the notebook."""
    grid = build_grid(layout, _HTML_RESOLUTION, name=name, locations=locations, notes=notes)
    assigned = assign_hosts(layout.devices, locations)
    head = f'<div><b>{escape(grid.title)}</b> <span style="{QUIET_STYLE}">{escape(grid.cost)}</span></div>'
    notes_html = "".join(f'<div style="{QUIET_STYLE}">{escape(note)}</div>' for note in grid.notes)
    text = format_pre(format_layout_text(layout, name=name, locations=locations, notes=notes))
    text_html = f'<details><summary style="cursor:pointer;{QUIET_STYLE}">as text</summary>{text}</details>'
    return wrap_html(
        head + _format_panes(grid, assigned, uid) + notes_html + text_html,
        css=_CSS + TABS_CSS.format(uid=uid) * (len(grid.panes) > 1),
    )


def _format_panes(grid: LayoutGrid, locations: RankLocations, uid: str) -> str:
    has_stops = sum(len(row) for pane in grid.panes for row in pane.tiles) <= _MAX_TAB_STOPS
    tables = [_format_pane_html(pane, grid, locations, has_stops=has_stops) for pane in grid.panes]
    if len(tables) == 1:
        return tables[0]
    blocks = [
        f'<details class="pane" name="{uid}"{" open" if at == 0 else ""}><summary style="cursor:pointer">'
        f"{format_pane_position(pane, grid.ndim)}</summary>{table}</details>"
        for at, (pane, table) in enumerate(zip(grid.panes, tables, strict=True))
    ]
    return f'<div class="nd">{_format_sliders(grid)}<div class="{uid}">{"".join(blocks)}</div></div>'


def _format_sliders(grid: LayoutGrid) -> str:
    return "".join(
        f'<label style="margin-right:12px">dim {dim} <input type="range" min="0" max="{steps - 1}" value="0" step="1" '
        f'aria-label="place along dim {dim}" data-lm-suppress-shortcuts="true" oninput="{escape(_SLIDER_SCRIPT)}"'
        f"{' disabled' if steps == 1 else ''}></label>"
        for dim, steps in enumerate(grid.steps)
    )


def _format_pane_html(pane: Pane, grid: LayoutGrid, locations: RankLocations, *, has_stops: bool) -> str:
    rows = []
    if pane.columns:
        heads = "".join(f'<th scope="col">{format_range(span, "cols")}</th>' for span in pane.columns)
        rows.append(f"<tr><th></th>{heads}<th></th></tr>")
    for at, tiles in enumerate(pane.tiles):
        label = format_range(pane.rows[at], "rows" if grid.ndim > 1 else "") if pane.rows else "scalar"
        cells = "".join(
            _format_tile_html(tile, locations, has_stops=has_stops, is_short=len(tiles) > 8) for tile in tiles
        )
        rows.append(
            f'<tr><th scope="row">{label}</th>{cells}<td style="{QUIET_STYLE}">{_format_hosts_html(tiles)}</td></tr>'
        )
    return (
        '<div class="lay" style="overflow-x:auto;padding-bottom:1.6em"><table style="border-collapse:separate;'
        f'border-spacing:2px;font-family:monospace;margin:2px 0">{"".join(rows)}</table></div>'
    )


def _format_tile_html(tile: Tile | None, locations: RankLocations, *, has_stops: bool, is_short: bool) -> str:
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
    mark = (
        f' <small style="{QUIET_STYLE}">×{tile.replicas}</small>' if tile.replicas > 1 and not tile.is_partial else ""
    )
    stop = ' tabindex="0"' if has_stops else ""
    return f'<td{stop} title="{escape(tile.description)}" style="background:{fill};{frame}">{words}{mark}</td>'


def _color_name(word: str, color: str | None) -> str:
    return f'<span style="background:{color}40;padding:2px 3px">{word}</span>' if color else word


def _tile_background(tile: Tile, locations: RankLocations) -> str:
    """Return a background with one stripe per host; grey if there are too many to distinguish."""
    ranks = list({locations.hosts[device.rank]: device.rank for device in tile.owners}.values())
    if not 1 < len(ranks) <= _MAX_STRIPES:
        return f"{tile_color(tile, locations)}40"
    share = 100 / len(ranks)
    stripes = ",".join(
        f"{host_color(locations, (rank,))}40 {at * share:g}% {(at + 1) * share:g}%" for at, rank in enumerate(ranks)
    )
    return f"linear-gradient(90deg,{stripes})"


def _format_hosts_html(tiles: Sequence[Tile | None]) -> str:
    hosts = list(dict.fromkeys(host for tile in tiles if tile for host in tile.hosts))
    return escape(" ".join(hosts)) if len(hosts) <= 4 else f"{len(hosts)} hosts"
