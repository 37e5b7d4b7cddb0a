"""Format a what-if plan as text and HTML: a table of the arrays, refusals with JAX's own reason, the shards, the collectives."""

from __future__ import annotations

from html import escape

from mhnb.sharding.mesh import find_axis_reach, format_axes, warn_cross_host_axes
from mhnb.sharding.report import Report
from mhnb.sharding.reshard import Plan, Refusal
from mhnb.view.boards.collectives import format_collectives_html, format_collectives_text
from mhnb.view.draw import format_layout_text
from mhnb.view.sharding.drawhtml import format_layout_html
from mhnb.view.sharding.layouttable import format_tree_html, format_tree_text
from mhnb.view.style import QUIET_STYLE, wrap_html

__all__ = ["format_plan_html", "format_plan_text"]

_MAX_DRAWN = 8
"""Maximum number of arrays whose shards are drawn; the table has all."""


def _format_plan_title(plan: Plan) -> str:
    device_count = plan.hosts * plan.devices_per_host
    heading = f"plan · {plan.hosts} hosts × {plan.devices_per_host} devices"
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
    return [" · ".join(crossing), *(f"warning: {text}" for text in warn_cross_host_axes(reach))]


def format_plan_text(plan: Plan, report: Report | None = None, *, problem: str = "") -> str:
    """Format a plan as text; `problem` explains why there is no report although one was requested."""
    parts = [_format_plan_title(plan), *_format_mesh_lines(plan)]
    for name, refusal in _list_refusals(plan):
        parts.append(f"✗ {name}: {refusal.reason}" + (f"\n  JAX: … {refusal.jax_says}" if refusal.jax_says else ""))
    if plan.legal:
        parts += [format_tree_text(plan.tree), ""]
        parts += [format_layout_text(layout, name=name) for name, layout in plan.legal[:_MAX_DRAWN]]
    if report is not None:
        parts += ["", format_collectives_text([report])]
    return "\n".join([*parts, *([problem] if problem else [])])


def format_plan_html(plan: Plan, report: Report | None = None, *, problem: str = "", uid: str = "mhnb-0") -> str:
    """Format a plan as HTML; `uid` is unique in the notebook."""
    parts = [f"<div><b>{escape(_format_plan_title(plan))}</b></div>"]
    parts += [f'<div style="{QUIET_STYLE}">{escape(line)}</div>' for line in _format_mesh_lines(plan)]
    parts += [_format_refusal_html(name, refusal) for name, refusal in _list_refusals(plan)]
    if plan.legal:
        parts.append(format_tree_html(plan.tree))
    parts += [
        format_layout_html(layout, name=name, uid=f"{uid}-{at}")
        for at, (name, layout) in enumerate(plan.legal[:_MAX_DRAWN])
    ]
    if report is not None:
        parts.append(format_collectives_html([report]))
    if problem:
        parts.append(f'<div class="mhnb-bad">{escape(problem)}</div>')
    return wrap_html("".join(parts))


def _format_refusal_html(name: str, refusal: Refusal) -> str:
    jax_message = f'<div style="{QUIET_STYLE}">JAX: … {escape(refusal.jax_says)}</div>' if refusal.jax_says else ""
    return f'<div class="mhnb-bad" style="margin:3px 0">✗ <b>{escape(name)}</b>: {escape(refusal.reason)}{jax_message}</div>'
