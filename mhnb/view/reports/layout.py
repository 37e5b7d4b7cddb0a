"""Layouts as text, SVG and HTML: panes of tiles, built once as a value and then formatted.

The panes decide which shards are merged if there are too many to take in. An array of more than two dims is divided into panes
along its leading dims; each pane is a grid over the last two. Neighbouring shards become one tile if the grid would be too fine.

Text and SVG need no widget and no style sheet. The HTML is a table that is readable without a style sheet or a script, and better
with both. An untrusted notebook loses `<style>`, `tabindex` and the script of a slider. Then the panes are blocks to open one by
one; the colours, the titles and the text form stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import prod

from mhnb.core.ranks import describe_ranks
from mhnb.sharding.boxes import Box, Range, format_box
from mhnb.sharding.layout import Layout, format_device_count, format_dtype_and_shape, format_nbytes, format_replicas
from mhnb.sharding.mesh import format_axes
from mhnb.types import DeviceRef
from mhnb.view.document import Code, Document, Drawing, Fold, InHtml, InText, Line, Span
from mhnb.view.html import QUIET_STYLE, TABS_CSS, RankLocations, format_hosts_short, host_color

_MAX_LISTED_DEVICES = 8
"""Maximum number of devices that are listed one by one; more are named by their ranks."""
_MAX_RANK_CHARS = 24
"""Characters in which ranks are named; longer lists are counted."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """How much one output form can show."""

    rows: int
    columns: int
    panes: int
    tiles: int
    """Total over all panes."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One shard, or several neighbouring ones, with the devices that hold them."""

    box: Box
    owners: tuple[DeviceRef, ...]
    hosts: tuple[str, ...]
    """Host labels, in the order of the owners."""
    shard_count: int
    nbytes: int
    """Bytes of one shard."""
    is_partial: bool
    """Whether the owners hold parts of a sum instead of replicas."""

    @property
    def replicas(self) -> int:
        """Return the number of devices that hold each shard."""
        return len(self.owners) // max(1, self.shard_count)

    @property
    def device_label(self) -> str:
        """Format the owners briefly; devices that hold parts of a sum are joined by a plus."""
        return format_devices(self.owners, " + " if self.is_partial else " ")

    @property
    def description(self) -> str:
        """Format everything about the tile in one line, for hover and keyboard."""
        shards = f"{self.shard_count} shards of " if self.shard_count > 1 else ""
        kind = "sum of " if self.is_partial else f"{self.replicas} replicas on " if self.replicas > 1 else ""
        hosts = f" ({', '.join(self.hosts)})" if len(self.hosts) <= 4 else f" ({len(self.hosts)} hosts)"
        return f"{format_box(self.box)} · {shards}{format_nbytes(self.nbytes)} · {kind}{self.device_label}{hosts}"


@dataclass(frozen=True, slots=True)
class Pane:
    """A grid over the last two dims, at one position of the dims before them."""

    leading: Box
    """Empty for an array of at most two dims."""
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    tiles: tuple[tuple[Tile | None, ...], ...]
    """Tiles by row and column; None if no device holds anything there."""


@dataclass(frozen=True, slots=True)
class LayoutGrid:
    """Everything that is shown of a layout."""

    title: str
    """As `x  f32[8,6]  P('data', None) on mesh (data 4, model 2)`."""
    cost: str
    """As `48 B per device · 2 replicas`."""
    ndim: int
    panes: tuple[Pane, ...]
    steps: tuple[int, ...]
    """Positions along each leading dim; their product is the number of panes."""
    notes: tuple[str, ...] = ()


def assign_hosts(layout_devices: Sequence[DeviceRef], locations: RankLocations | None) -> RankLocations:
    """Return a host for every rank: the known one, otherwise one host per rank."""
    known = locations.hosts if locations is not None else {}
    ranks = {device.rank for device in layout_devices}
    return RankLocations({rank: known.get(rank, f"host{rank}") for rank in ranks})


def build_grid(
    layout: Layout,
    resolution: Resolution,
    *,
    name: str = "",
    locations: RankLocations | None = None,
    notes: Sequence[str] = (),
) -> LayoutGrid:
    """Build the panes that show a layout."""
    ndim = len(layout.shape)
    ranges = [sorted({box[dim] for box in layout.owners_by_box}) for dim in range(ndim)]
    groups = [
        _group_ranges(found, many) for found, many in zip(ranges, _position_limits(ranges, resolution), strict=True)
    ]
    assigned = assign_hosts(layout.devices, locations)
    tiles = _build_tiles(layout, groups, assigned)
    leading, inner = groups[:-2], groups[-2:]
    panes = tuple(
        _build_pane(place, [group.spans for group in leading], inner, tiles) for place in _list_positions(leading)
    )
    return LayoutGrid(_format_title(layout, name), _format_cost(layout), ndim, panes, tuple(len(group.spans) for group in leading),
                (*_grouping_note(layout, tiles), *_padding_note(layout), *notes))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Group:
    """The ranges of a dim, some of them merged."""

    spans: tuple[Range, ...]
    index: dict[Range, int]
    """The index in `spans` that contains each range."""


def _group_ranges(ranges: Sequence[Range], max_groups: int) -> _Group:
    min_size = -(-len(ranges) // max_groups) if ranges else 1
    # Groups of equal size read better than the fewest possible groups.
    size = next((size for size in range(min_size, 2 * min_size) if len(ranges) % size == 0), min_size)
    parts = [ranges[start : start + size] for start in range(0, len(ranges), size)]
    spans = tuple((part[0][0], max(stop for _, stop in part)) for part in parts)
    return _Group(spans, {found: at for at, part in enumerate(parts) for found in part})


def _position_limits(ranges: Sequence[Sequence[Range]], resolution: Resolution) -> list[int]:
    """Return how many positions each dim may have at most."""
    counts = [max(1, len(found)) for found in ranges]
    inner = len(counts) - 2
    if counts:
        counts[-1] = min(counts[-1], resolution.columns if len(counts) > 1 else resolution.rows)
    if len(counts) > 1:
        counts[-2] = min(counts[-2], resolution.rows)
    while inner > 0 and prod(counts[:inner]) > resolution.panes:
        _halve(counts, range(inner))
    while prod(counts) > resolution.tiles:
        _halve(counts, range(len(counts)))
    return counts


def _halve(counts: list[int], dims: range) -> None:
    largest = max(dims, key=counts.__getitem__)
    counts[largest] = -(-counts[largest] // 2)


def _build_tiles(layout: Layout, groups: Sequence[_Group], assigned: RankLocations) -> dict[tuple[int, ...], Tile]:
    merged: dict[tuple[int, ...], list[tuple[DeviceRef, ...]]] = {}
    for box, owners in layout.owners_by_box.items():
        position = tuple(group.index[part] for group, part in zip(groups, box, strict=True))
        merged.setdefault(position, []).append(owners)
    partial = layout.spec is not None and bool(layout.spec.unreduced)
    found = {}
    for position, owner_groups in merged.items():
        owners = (
            owner_groups[0]
            if len(owner_groups) == 1
            else tuple(sorted(device for part in owner_groups for device in part))
        )
        labels = tuple(dict.fromkeys(assigned.hosts[device.rank] for device in owners))
        span = tuple(group.spans[at] for group, at in zip(groups, position, strict=True))
        found[position] = Tile(span, owners, labels, len(owner_groups), layout.nbytes_per_device, partial)
    return found


def _list_positions(groups: Sequence[_Group]) -> list[tuple[int, ...]]:
    positions: list[tuple[int, ...]] = [()]
    for group in groups:
        positions = [(*place, at) for place in positions for at in range(len(group.spans))]
    return positions


def _build_pane(
    position: tuple[int, ...],
    leading: Sequence[tuple[Range, ...]],
    inner: Sequence[_Group],
    tiles: dict[tuple[int, ...], Tile],
) -> Pane:
    spans = tuple(ranges[at] for ranges, at in zip(leading, position, strict=True))
    if not inner:
        return Pane(spans, (), (), ((tiles.get(()),),))
    if len(inner) == 1:
        rows = inner[0].spans
        return Pane(spans, rows, (), tuple((tiles.get((*position, at)),) for at in range(len(rows))))
    rows, columns = (group.spans for group in inner)
    grid = tuple(tuple(tiles.get((*position, r, c)) for c in range(len(columns))) for r in range(len(rows)))
    return Pane(spans, rows, columns, grid)


def _format_title(layout: Layout, name: str) -> str:
    words = [name, format_dtype_and_shape(layout)]
    if layout.mesh is not None and layout.spec is not None:
        words.append(f"{layout.spec} on mesh ({format_axes(layout.mesh.axes)})")
    else:
        words.append(f"on {format_device_count(layout)}, without a mesh")
    return "  ".join(word for word in words if word)


def _format_cost(layout: Layout) -> str:
    return " · ".join(
        word for word in (f"{format_nbytes(layout.nbytes_per_device)} per device", format_replicas(layout)) if word
    )


def _grouping_note(layout: Layout, tiles: dict[tuple[int, ...], Tile]) -> list[str]:
    boxes = len(layout.owners_by_box)
    return [f"{boxes:,} shards shown as {len(tiles):,} groups"] if boxes > len(tiles) else []


def _padding_note(layout: Layout) -> list[str]:
    padding = layout.nbytes_per_device * len(layout.owners_by_box) - layout.nbytes
    if layout.mesh is None or padding <= 0:
        return []
    return [f"uneven: the compiler pads each shard to {format_nbytes(layout.nbytes_per_device)}"]


def format_devices(devices: Sequence[DeviceRef], between: str = " ") -> str:
    """Format devices one by one or, if there are many, by their ranks.

    >>> format_devices([DeviceRef(0, 0), DeviceRef(1, 0)])
    '0:0 1:0'
    """
    if len(devices) <= _MAX_LISTED_DEVICES:
        return between.join(map(str, devices))
    ranks = sorted({device.rank for device in devices})
    named = describe_ranks(ranks)
    return f"{len(devices)} devices of {named if len(named) <= _MAX_RANK_CHARS else f'{len(ranks)} ranks'}"


# -- a layout as text and SVG


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
    return format_hosts_short([host for tile in tiles if tile for host in tile.hosts])


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


# -- a layout as an HTML table


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


def build_layout(
    layout: Layout,
    *,
    name: str = "",
    locations: RankLocations | None = None,
    notes: Sequence[str] = (),
    uid: str = "mhnb-0",
) -> Document:
    """Build a layout; `uid` is unique in the notebook."""
    grid = build_grid(layout, _HTML_RESOLUTION, name=name, locations=locations, notes=notes)
    panes = _format_panes(grid, assign_hosts(layout.devices, locations), uid)
    text = format_layout_text(layout, name=name, locations=locations, notes=notes)
    css = _CSS + TABS_CSS.format(uid=uid) * (len(grid.panes) > 1)
    drawn: Document = [
        Line(grid.title, "heading", beside=[Span(grid.cost, is_quiet=True)]),
        Drawing(panes),
        *(Line(note, "quiet") for note in grid.notes),
        Fold("as text", [Code(text)]),
    ]
    return [InText([Code(text)]), InHtml(drawn), Drawing("", css)]


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
        rows.append(f"<tr><td></td>{heads}<td></td></tr>")
    for at, tiles in enumerate(pane.tiles):
        label = format_range(pane.rows[at], "rows" if grid.ndim > 1 else "") if pane.rows else "scalar"
        cells = "".join(
            _format_tile_html(tile, locations, has_stops=has_stops, is_short=len(tiles) > 8) for tile in tiles
        )
        rows.append(
            f'<tr><th scope="row">{label}</th>{cells}<td style="{QUIET_STYLE}">{escape(_format_hosts_text(tiles))}</td></tr>'
        )
    return (
        '<div class="lay" tabindex="0" style="overflow-x:auto;padding-bottom:1.6em"><table style="border-collapse:separate;'
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
    mark = f" <small>×{tile.replicas}</small>" if tile.replicas > 1 and not tile.is_partial else ""
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
