"""A layout as panes of tiles, and these panes as text.

An array of more than two dims is divided into panes along its leading dims; each pane is a grid over the last two. Neighbouring shards
become one tile if the grid would be too fine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mhnb.core.ranks import describe_ranks
from mhnb.sharding.boxes import Box, Range, format_box
from mhnb.sharding.layout import Layout, format_dtype_and_shape, format_layout_devices, format_nbytes, format_replicas
from mhnb.sharding.mesh import format_axes
from mhnb.types import DeviceRef
from mhnb.view.html import RankLocations, format_hosts_short

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
        """Format the owners briefly; a plus joins parts of a sum."""
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
    """A grid over the last two dims, at one leading position."""

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
    """Return every rank's host, by default one host per rank."""
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
    return LayoutGrid(_format_title(layout, name), format_cost(layout), ndim, panes, tuple(len(group.spans) for group in leading),
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
        words.append(f"on {format_layout_devices(layout)}, without a mesh")
    return "  ".join(word for word in words if word)


def format_cost(layout: Layout) -> str:
    """Format a layout's bytes per device, and its replicas."""
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
    """Format devices one by one, or many by their ranks.

    >>> format_devices([DeviceRef(0, 0), DeviceRef(1, 0)])
    '0:0 1:0'
    """
    if len(devices) <= _MAX_LISTED_DEVICES:
        return between.join(map(str, devices))
    ranks = sorted({device.rank for device in devices})
    named = describe_ranks(ranks)
    return f"{len(devices)} devices of {named if len(named) <= _MAX_RANK_CHARS else f'{len(ranks)} ranks'}"


def format_range(span: Range, dimension: str = "") -> str:
    """Format a range of a dim, as `rows 0:2`."""
    return f"{dimension} {span[0]}:{span[1]}".strip()


def format_pane_position(pane: Pane, ndim: int) -> str:
    """Format a pane's position as `[0:1, :, :]`; empty without leading dims."""
    if not pane.leading:
        return ""
    return format_box(pane.leading)[:-1] + ", :" * min(2, ndim) + "]"


# -- as text


_TEXT_RESOLUTION = Resolution(rows=16, columns=6, panes=8, tiles=128)
_LABEL_WIDTH = 12


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
    labels = format_row_labels(pane, grid)
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
        lines.append((text + format_hosts_of_tiles(tiles)).rstrip())
    return lines if heads else lines[1:]


def format_row_labels(pane: Pane, grid: LayoutGrid) -> list[str]:
    """Format the label of each row of a pane."""
    if grid.ndim == 0:
        return ["scalar"]
    return [format_range(span, "rows") if grid.ndim > 1 else f"[{format_range(span)}]" for span in pane.rows]


def format_hosts_of_tiles(tiles: Sequence[Tile | None]) -> str:
    """Format the hosts that hold tiles."""
    return format_hosts_short([host for tile in tiles if tile for host in tile.hosts])
