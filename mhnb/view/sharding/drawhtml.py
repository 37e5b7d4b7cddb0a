"""Format a layout as an HTML table that is readable without a style sheet or a script, and better with both.

An untrusted notebook loses `<style>`, `tabindex` and the script of a slider. Then the panes are blocks to open one by one;
the colours, the titles and the text form stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mhnb.sharding.layout import Layout
from mhnb.view.draw import format_layout_text, pane_label, range_label, tile_color
from mhnb.view.mime import pre
from mhnb.view.sharding.panes import Card, Fineness, Pane, Tile, make_card, place_hosts
from mhnb.view.style import QUIET, TABS_CSS, host_color, wrap
from mhnb.view.words import Places

__all__ = ["format_layout_html"]

_HTML = Fineness(rows=24, columns=24, panes=16, tiles=576)
_MAX_STOPS = 64
"""Maximum number of tiles with a tab stop; more would trap a keyboard user.

With more tiles the names are not coloured either, because that takes space.
"""
_STRIPES = 4

_CSS = (
    ".mhnb .lay td{padding:2px 7px;text-align:left;border:1px solid transparent;white-space:nowrap}"
    ".mhnb .lay th{font-weight:normal;text-align:left;padding:2px 8px 2px 0;white-space:nowrap}"
    ".mhnb .lay td:focus{outline:2px solid var(--jp-brand-color1,#3f7fd0);outline-offset:-2px}"
    ".mhnb .lay td:focus::after{content:attr(title);position:absolute;left:8px;bottom:-1.5em;padding:0 6px;z-index:9;"
    "color:var(--jp-ui-font-color1,#111);background:var(--jp-layout-color2,#eee)}"
    ".mhnb .lay{position:relative}"
)
_SLIDE = (
    "var b=this.closest('.nd'),i=0;b.querySelectorAll('input').forEach(function(s){i=i*(+s.max+1)+ +s.value});"
    "b.querySelectorAll('.pane').forEach(function(d,n){d.open=n==i})"
)


def format_layout_html(
    layout: Layout, *, name: str = "", places: Places | None = None, notes: Sequence[str] = (), uid: str = "mhnb-0"
) -> str:
    """Format a layout as HTML; `uid` is unique in the notebook."""
    card = make_card(layout, _HTML, name=name, places=places, notes=notes)
    where = place_hosts(layout.devices, places)
    head = f'<div><b>{escape(card.title)}</b> <span style="{QUIET}">{escape(card.cost)}</span></div>'
    said = "".join(f'<div style="{QUIET}">{escape(note)}</div>' for note in card.notes)
    text = pre(format_layout_text(layout, name=name, places=places, notes=notes))
    words = f'<details><summary style="cursor:pointer;{QUIET}">as text</summary>{text}</details>'
    return wrap(
        head + _panes(card, where, uid) + said + words, css=_CSS + TABS_CSS.format(uid=uid) * (len(card.panes) > 1)
    )


def _panes(card: Card, places: Places, uid: str) -> str:
    stops = sum(len(row) for pane in card.panes for row in pane.tiles) <= _MAX_STOPS
    tables = [_table(pane, card, places, stops=stops) for pane in card.panes]
    if len(tables) == 1:
        return tables[0]
    blocks = [
        f'<details class="pane" name="{uid}"{" open" if at == 0 else ""}><summary style="cursor:pointer">'
        f"{pane_label(pane, card.ndim)}</summary>{table}</details>"
        for at, (pane, table) in enumerate(zip(card.panes, tables, strict=True))
    ]
    return f'<div class="nd">{_sliders(card)}<div class="{uid}">{"".join(blocks)}</div></div>'


def _sliders(card: Card) -> str:
    return "".join(
        f'<label style="margin-right:12px">dim {dim} <input type="range" min="0" max="{steps - 1}" value="0" step="1" '
        f'aria-label="place along dim {dim}" data-lm-suppress-shortcuts="true" oninput="{escape(_SLIDE)}"'
        f"{' disabled' if steps == 1 else ''}></label>"
        for dim, steps in enumerate(card.steps)
    )


def _table(pane: Pane, card: Card, places: Places, *, stops: bool) -> str:
    rows = []
    if pane.columns:
        heads = "".join(f'<th scope="col">{range_label(span, "cols")}</th>' for span in pane.columns)
        rows.append(f"<tr><th></th>{heads}<th></th></tr>")
    for at, tiles in enumerate(pane.tiles):
        label = range_label(pane.rows[at], "rows" if card.ndim > 1 else "") if pane.rows else "scalar"
        cells = "".join(_cell(tile, places, stops=stops, short=len(tiles) > 8) for tile in tiles)
        rows.append(f'<tr><th scope="row">{label}</th>{cells}<td style="{QUIET}">{_hosts(tiles)}</td></tr>')
    return (
        '<div class="lay" style="overflow-x:auto;padding-bottom:1.6em"><table style="border-collapse:separate;'
        f'border-spacing:2px;font-family:monospace;margin:2px 0">{"".join(rows)}</table></div>'
    )


def _cell(tile: Tile | None, places: Places, *, stops: bool, short: bool) -> str:
    if tile is None:
        return "<td></td>"
    color = tile_color(tile, places)
    frame = f"border:3px double {color}" if tile.replicas > 1 else f"border:1px solid {color}"
    words, fill = tile.devices, _fill(tile, places)
    if short and len(words) > 12:
        words = f"{tile.owners[0]} +{len(tile.owners) - 1}"
    elif stops and len(tile.hosts) > 1 and str(tile.owners[-1]) in words.split():
        # Each name is listed and has the colour of its host, which stripes across the whole tile would not match.
        colors = {str(device): host_color(places, (device.rank,)) for device in tile.owners}
        words, fill = " ".join(_colored(word, colors.get(word)) for word in words.split()), "none"
    mark = f' <small style="{QUIET}">×{tile.replicas}</small>' if tile.replicas > 1 and not tile.partial else ""
    stop = ' tabindex="0"' if stops else ""
    return f'<td{stop} title="{escape(tile.about)}" style="background:{fill};{frame}">{words}{mark}</td>'


def _colored(word: str, color: str | None) -> str:
    return f'<span style="background:{color}40;padding:2px 3px">{word}</span>' if color else word


def _fill(tile: Tile, places: Places) -> str:
    """Return a background with one stripe per host; grey if there are too many to distinguish."""
    ranks = list({places.hosts[device.rank]: device.rank for device in tile.owners}.values())
    if not 1 < len(ranks) <= _STRIPES:
        return f"{tile_color(tile, places)}40"
    share = 100 / len(ranks)
    stripes = ",".join(
        f"{host_color(places, (rank,))}40 {at * share:g}% {(at + 1) * share:g}%" for at, rank in enumerate(ranks)
    )
    return f"linear-gradient(90deg,{stripes})"


def _hosts(tiles: Sequence[Tile | None]) -> str:
    hosts = list(dict.fromkeys(host for tile in tiles if tile for host in tile.hosts))
    return escape(" ".join(hosts)) if len(hosts) <= 4 else f"{len(hosts)} hosts"
