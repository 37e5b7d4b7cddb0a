"""Format a layout as text and as SVG, without a widget and without a style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mhnb.sharding.boxes import Range, format_box
from mhnb.sharding.layout import Layout
from mhnb.view.sharding.panes import Card, Fineness, Pane, Tile, make_card, place_hosts
from mhnb.view.style import host_color
from mhnb.view.words import Places

__all__ = ["format_layout_svg", "format_layout_text", "pane_label", "range_label", "tile_color"]

_TEXT = Fineness(rows=16, columns=6, panes=8, tiles=128)
_SVG = Fineness(rows=24, columns=24, panes=16, tiles=576)
_LABEL_WIDTH = 12


def range_label(span: Range, what: str = "") -> str:
    """Format a range of a dim, as `rows 0:2`."""
    return f"{what} {span[0]}:{span[1]}".strip()


def pane_label(pane: Pane, ndim: int) -> str:
    """Format a pane's position along the leading dims, as `[0:1, :, :]`; an empty string if there are no leading dims."""
    if not pane.leading:
        return ""
    return format_box(pane.leading)[:-1] + ", :" * min(2, ndim) + "]"


# -- text


def format_layout_text(
    layout: Layout, *, name: str = "", places: Places | None = None, notes: Sequence[str] = ()
) -> str:
    """Format a layout as text."""
    card = make_card(layout, _TEXT, name=name, places=places, notes=notes)
    lines = [f"{card.title}     {card.cost}"]
    for pane in card.panes:
        lines += [label] if (label := pane_label(pane, card.ndim)) else []
        lines += _pane_lines(pane, card)
    return "\n".join([*lines, *card.notes])


def _pane_lines(pane: Pane, card: Card) -> list[str]:
    labels = _row_labels(pane, card)
    cells = [[tile.devices if tile else "" for tile in row] for row in pane.tiles]
    heads = [range_label(span, "cols") for span in pane.columns]
    width = max(_LABEL_WIDTH, *(len(label) + 4 for label in labels))
    columns = range(len(cells[0]) if cells else 0)
    widths = [
        max(*(len(row[at]) + 5 for row in cells), *(len(head) + 2 for head in heads[at : at + 1]), 0) for at in columns
    ]
    lines = ["".join([" " * width, *(head.ljust(size) for head, size in zip(heads, widths, strict=False))]).rstrip()]
    for label, row, tiles in zip(labels, cells, pane.tiles, strict=True):
        text = label.ljust(width) + "".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        lines.append((text + _hosts_of(tiles)).rstrip())
    return lines if heads else lines[1:]


def _row_labels(pane: Pane, card: Card) -> list[str]:
    if card.ndim == 0:
        return ["scalar"]
    return [range_label(span, "rows") if card.ndim > 1 else f"[{range_label(span)}]" for span in pane.rows]


def _hosts_of(tiles: Sequence[Tile | None]) -> str:
    hosts = list(dict.fromkeys(host for tile in tiles if tile for host in tile.hosts))
    return " ".join(hosts) if len(hosts) <= 4 else f"{len(hosts)} hosts"


# -- SVG


_CELL_W, _CELL_H, _HEAD, _SIDE = 92, 30, 22, 84


def format_layout_svg(
    layout: Layout, *, name: str = "", places: Places | None = None, notes: Sequence[str] = ()
) -> str:
    """Format a layout as SVG.

    Each host has a colour, a replicated shard has a dashed second frame, and each tile has a title.
    """
    card = make_card(layout, _SVG, name=name, places=places, notes=notes)
    where = place_hosts(layout.devices, places)
    parts, y, right = [_text(4, 15, f"{card.title}     {card.cost}")], 24, len(card.title) + len(card.cost) + 5
    width = max(7 * right, _SIDE + _CELL_W * max((len(pane.tiles[0]) for pane in card.panes if pane.tiles), default=1))
    for pane in card.panes:
        drawn, height = _pane_svg(pane, card, where)
        parts.append(f'<g transform="translate(0 {y})">{drawn}</g>')
        y += height
    for note in card.notes:
        parts.append(_text(4, y + 14, note))
        y += 18
    about = escape(format_layout_text(layout, name=name, places=places, notes=notes))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{y + 6}" '
        f'viewBox="0 0 {width} {y + 6}" font-family="monospace" font-size="12" fill="currentColor">'
        f"<title>{escape(card.title)}</title><desc>{about}</desc>{''.join(parts)}</svg>"
    )


def _pane_svg(pane: Pane, card: Card, places: Places) -> tuple[str, int]:
    label, y = pane_label(pane, card.ndim), 0
    parts = []
    if label:
        parts.append(_text(4, 14, label))
        y += 20
    if pane.columns:
        parts += [_text(_SIDE + at * _CELL_W + 4, y + 14, range_label(s)) for at, s in enumerate(pane.columns)]
        y += _HEAD
    for row, tiles in zip(_row_labels(pane, card), pane.tiles, strict=True):
        parts.append(_text(4, y + 19, row))
        parts += [_tile_svg(tile, _SIDE + at * _CELL_W, y, places) for at, tile in enumerate(tiles) if tile]
        y += _CELL_H
    return "".join(parts), y + 6


def _tile_svg(tile: Tile, x: int, y: int, places: Places) -> str:
    color = tile_color(tile, places)
    frame = ""
    if tile.replicas > 1:
        frame = (
            f'<rect x="{x + 3}" y="{y + 3}" width="{_CELL_W - 8}" height="{_CELL_H - 8}" fill="none" '
            f'stroke="currentColor" stroke-dasharray="3 2"/>'
        )
    words = tile.devices if len(tile.devices) <= 11 else f"{tile.owners[0]} +{len(tile.owners) - 1}"
    return (
        f'<g tabindex="0"><title>{escape(tile.about)}</title>'
        f'<rect x="{x}" y="{y}" width="{_CELL_W - 2}" height="{_CELL_H - 2}" fill="{color}" fill-opacity=".3" '
        f'stroke="{color}"/>{frame}{_text(x + 7, y + 18, words)}</g>'
    )


def tile_color(tile: Tile, places: Places) -> str:
    """Return the colour of the host that holds a tile; grey for several hosts."""
    return host_color(places, sorted({device.rank for device in tile.owners}))


def _text(x: int, y: int, words: str) -> str:
    return f'<text x="{x}" y="{y}" xml:space="preserve">{escape(words, quote=False)}</text>'
