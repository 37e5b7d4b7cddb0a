"""What-if plans and reshards.

A plan shows a table of the arrays, refusals with JAX's own reason, the shards, the memory, the collectives and the code.
A reshard shows two static layouts and a list of what moves between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from mhnb.core.ranks import pluralize
from mhnb.sharding.boxes import format_box
from mhnb.sharding.explorer import format_plan_code
from mhnb.sharding.layout import format_dtype_and_shape, format_nbytes
from mhnb.sharding.machines import parse_machine
from mhnb.sharding.mesh import find_axis_reach, format_axes, warn_cross_host_axes
from mhnb.sharding.plan import Move, Plan, Refusal, Reshard
from mhnb.sharding.report import Report
from mhnb.types import DeviceRef
from mhnb.view.document import (
    Code,
    Columns,
    Document,
    Drawing,
    Fold,
    InHtml,
    InText,
    Line,
    Part,
    Problem,
    Section,
    Span,
    Table,
)
from mhnb.view.drawings.layout import (
    HTML_RESOLUTION,
    draw_panes,
    format_link,
    format_links_css,
    format_tabs_css,
    link_devices,
    link_tiles,
)
from mhnb.view.drawings.plan import COPY_CSS, draw_bars, draw_beside, draw_code, draw_with_tips
from mhnb.view.html import RankLocations
from mhnb.view.layout_grid import assign_hosts, build_grid, format_cost, format_layout_text
from mhnb.view.print_html import print_parts
from mhnb.view.reports.collectives import build_collectives
from mhnb.view.reports.layout import build_layout
from mhnb.view.reports.mesh import build_map, build_tree

# -- a what-if plan


_MAX_DRAWN = 8
"""Maximum number of arrays with a drawing or a bar; the table has all."""
_MAX_DEVICE_STOPS = 64
"""Maximum number of devices with a tab stop; more would trap a keyboard user."""
_BAR_CHARS = 24


def format_plan_title(plan: Plan) -> str:
    """Format the hosts, the devices and the mesh in one line."""
    device_count = plan.hosts * plan.devices_per_host
    heading = f"plan · {pluralize(plan.hosts, 'host')} × {pluralize(plan.devices_per_host, 'device')}"
    if plan.mesh is None:
        return heading
    return f"{heading} · mesh ({format_axes(plan.mesh.axes)}) on {len(plan.mesh.devices)} of {device_count}"


def _list_refusals(plan: Plan) -> list[tuple[str, Refusal]]:
    return [*([("mesh", plan.refusal)] if plan.refusal else []), *plan.refused]


def _format_mesh_lines(plan: Plan) -> list[str]:
    """Format the lines about the mesh, which are shown beside the arrays."""
    if plan.mesh is None:
        return []
    reach = find_axis_reach(plan.mesh)
    crossing = [f"{axis.name} crosses {axis.hosts} hosts" for axis in reach if axis.crosses] or [
        "no axis crosses a host"
    ]
    return [" · ".join(crossing), *(f"warning: {text}" for text in warn_cross_host_axes(plan.mesh))]


def build_plan(
    plan: Plan,
    report: Report | None = None,
    *,
    problem: str = "",
    device_nbytes: int | None = None,
    machine: str = "",
    uid: str = "mhnb-0",
) -> Document:
    """Build a plan.

    Args:
        plan: the plan.
        report: the collectives of its program; None if there is no report.
        problem: the reason why there is no report although one was requested.
        device_nbytes: memory of a device; None if it is unknown.
        machine: that the plan is for; may be empty.
        uid: unique in the notebook.
    """
    parts: list[Part] = [
        Line(format_plan_title(plan), "heading"),
        *build_machine(machine),
        InText([Line(line, "quiet") for line in _format_mesh_lines(plan)]),
        *(Problem(name, refusal.reason, "JAX", refusal.jax_says) for name, refusal in _list_refusals(plan)),
    ]
    if plan.legal:
        texts = [Code(format_layout_text(layout, name=name)) for name, layout in plan.legal[:_MAX_DRAWN]]
        parts += [Section(build_tree(plan.tree)), _GAP, InText(texts)]
    drawings = draw_plan_parts(plan, uid)
    arrays = [
        print_parts([Line(f"{name} · {layout.spec} · {format_cost(layout)}")]) + drawings.arrays[name]
        for name, layout in plan.legal
        if name in drawings.arrays
    ]
    parts += [Drawing(draw_beside(uid, drawings.devices, arrays), drawings.css)] if plan.mesh else []
    return [*parts, *build_results(plan, report, problem=problem, device_nbytes=device_nbytes, machine=machine)]


def build_machine(machine: str) -> Document:
    """Build a machine's figures and their source; empty without one."""
    if not machine:
        return []
    known = parse_machine(machine)
    source = [Line(f"Figures: {known.chip.source}", "quiet")] if known.chip.source else []
    return [Line(known.format_summary(), "quiet"), *source]


_GAP = InText([Line("")])


def build_results(
    plan: Plan,
    report: Report | None = None,
    *,
    problem: str = "",
    device_nbytes: int | None = None,
    machine: str = "",
) -> Document:
    """Build what follows from a plan: memory, collectives and code."""
    blocks: list[Document] = [_build_memory(plan, device_nbytes)] if plan.legal else []
    blocks += [build_collectives([report])] if report is not None else []
    blocks += [[Line(problem, "bad")]] if problem else []
    if code := format_plan_code(plan, machine):
        blocks.append([Drawing(draw_code(code), COPY_CSS), InText([Code(code)])])
    return [Columns([[_GAP, *block] for block in blocks])]


def _build_memory(plan: Plan, device_nbytes: int | None) -> Document:
    """Build a bar for each large array, and one for all."""
    total = plan.tree.nbytes_per_device
    sizes = [(name, layout.nbytes_per_device) for name, layout in plan.legal]
    if len(sizes) > _MAX_DRAWN:
        sizes.sort(key=lambda item: -item[1])
        rest = sizes[_MAX_DRAWN:]
        sizes = [*sizes[:_MAX_DRAWN], (f"{len(rest)} more", sum(nbytes for _, nbytes in rest))]
    scale = max(total, device_nbytes or 0, 1)
    limit = "" if device_nbytes is None else f" of {format_nbytes(device_nbytes)} ({100 * total / device_nbytes:.3g} %)"
    rows = [(name, nbytes / scale, format_nbytes(nbytes)) for name, nbytes in sizes]
    rows.append(("in all", total / scale, format_nbytes(total) + limit))
    is_over = device_nbytes is not None and total > device_nbytes
    heading = f"Memory of each of {len(plan.mesh.devices) if plan.mesh else 0} devices"
    over = f"✗ does not fit: {format_nbytes(total - (device_nbytes or 0))} too much on each device"
    bars = [(name, size, "█" * round(_BAR_CHARS * share)) for name, share, size in rows]
    return [
        InHtml([Line(heading, "heading"), Drawing(draw_bars(rows, is_over=is_over))]),
        InText([Table((heading, "", ""), bars)]),
        *([Line(over, "bad")] if is_over else []),
    ]


@dataclass(frozen=True, slots=True)
class PlanDrawings:
    """Drawings in which what belongs together stands out under the pointer."""

    devices: str
    """Empty without a mesh."""
    arrays: Mapping[str, str]
    """By name; only the first few."""
    css: str
    """Its rules are for drawings inside an element of the class `uid`."""


def draw_plan_parts(plan: Plan, uid: str) -> PlanDrawings:
    """Draw devices and arrays; `uid` is unique in the notebook."""
    if plan.mesh is None:
        return PlanDrawings("", {}, "")
    locations = assign_hosts(plan.mesh.devices, None)
    arrays: dict[str, str] = {}
    classes: list[str] = []
    css = ""
    held: dict[DeviceRef, list[tuple[str, str]]] = {device: [] for device in plan.mesh.devices}
    for at, (name, layout) in enumerate(plan.legal[:_MAX_DRAWN]):
        grid = build_grid(layout, HTML_RESOLUTION, name=name)
        links = link_tiles(grid, f"{uid}-{at}") if len(held) <= _MAX_DEVICE_STOPS else {}
        panes = draw_panes(grid, locations, f"{uid}-pane{at}", links=links)
        arrays[name] = draw_with_tips(panes) + print_parts([Line(note, "quiet") for note in grid.notes])
        css += format_tabs_css(grid, f"{uid}-pane{at}")
        classes += links.values()
        for device, link in link_devices(grid, links, name).items():
            held[device].append(link)
    attributes = {
        device: format_link(
            " ".join(link for link, _ in links),
            f"{device} on {locations.hosts[device.rank]} · " + (", ".join(tip for _, tip in links) or "no array"),
            "on",
            has_stop=len(held) <= _MAX_DEVICE_STOPS,
        )
        for device, links in held.items()
    }
    devices = draw_with_tips(print_parts(build_map(plan.mesh, None, attributes)), is_map=True)
    return PlanDrawings(devices, arrays, css + format_links_css(uid, classes))


# -- a reshard


_MAX_LISTED_MOVES = 24


def _format_reshard_title(plan: Reshard, name: str) -> str:
    return f"{name}  {format_dtype_and_shape(plan.before)}  {plan.before.spec} → {plan.after.spec}".strip()


def _format_sums(plan: Reshard) -> str:
    words = [
        f"{format_nbytes(plan.nbytes_moved)} move",
        f"{format_nbytes(plan.nbytes_across_hosts)} of it across hosts",
    ]
    words.append(f"{format_nbytes(plan.nbytes_kept)} stay")
    # Only a compiled program says it.
    return " · ".join([*words, f"collective: {plan.collective or 'unknown, not compiled'}"])


def _format_moves(plan: Reshard) -> list[str]:
    moves = list(islice(plan.moves(), _MAX_LISTED_MOVES + 1))
    lines = [_format_move(move, plan) for move in moves[:_MAX_LISTED_MOVES]]
    return [*lines, "… and more"] if len(moves) > _MAX_LISTED_MOVES else lines


def _format_move(move: Move, plan: Reshard) -> str:
    crosses = "  across hosts" if plan.host_of(move.source) != plan.host_of(move.target) else ""
    return f"  {move.source!s:>5} → {move.target!s:<5}  {format_box(move.box)}  {format_nbytes(move.nbytes)}{crosses}"


def build_reshard(
    plan: Reshard, *, name: str = "", locations: RankLocations | None = None, uid: str = "mhnb-0"
) -> Document:
    """Build a reshard's sums, layouts and moves; `uid` is unique per notebook."""
    layouts = [
        build_layout(layout, name=word, locations=locations, uid=f"{uid}-{word}")
        for word, layout in (("before", plan.before), ("after", plan.after))
    ]
    moves = _format_moves(plan)
    return [
        Line(_format_reshard_title(plan, name), "heading", beside=[Span(_format_sums(plan), is_quiet=True, gap=5)]),
        Columns(layouts),
        InText([*map(Line, moves)]),
        InHtml([Fold("what moves", [Code("\n".join(moves) or "nothing moves")])]),
    ]
