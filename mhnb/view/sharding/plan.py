"""Format a what-if plan as text and HTML: a table of the arrays, refusals with JAX's own reason, the shards, the collectives."""

from __future__ import annotations

from html import escape

from mhnb.sharding.mesh import axis_reach, format_axes, warn_chatty
from mhnb.sharding.plan import Plan, Refusal
from mhnb.sharding.report import Report
from mhnb.view.boards.collectives import format_collectives_html, format_collectives_text
from mhnb.view.draw import format_layout_text
from mhnb.view.sharding.drawhtml import format_layout_html
from mhnb.view.sharding.layouttable import format_tree_html, format_tree_text
from mhnb.view.style import QUIET, wrap

__all__ = ["format_plan_html", "format_plan_text"]

_DRAWN = 8
"""Maximum number of arrays whose shards are drawn; the table has all."""


def _title(plan: Plan) -> str:
    have = plan.hosts * plan.devices_per_host
    where = f"plan · {plan.hosts} hosts × {plan.devices_per_host} devices"
    if plan.mesh is None:
        return where
    return f"{where} · mesh ({format_axes(plan.mesh.axes)}) on {len(plan.mesh.devices)} of {have}"


def _refusals(plan: Plan) -> list[tuple[str, Refusal]]:
    return [*([("mesh", plan.refusal)] if plan.refusal else []), *plan.refused]


def _lines(plan: Plan) -> list[str]:
    """Format the lines about the mesh, which are shown beside the arrays."""
    if plan.mesh is None:
        return []
    reach = axis_reach(plan.mesh)
    crossing = [f"{axis.name} crosses {axis.hosts} hosts" for axis in reach if axis.crosses] or [
        "no axis crosses a host"
    ]
    return [" · ".join(crossing), *(f"warning: {text}" for text in warn_chatty(reach))]


def format_plan_text(plan: Plan, report: Report | None = None, *, problem: str = "") -> str:
    """Format a plan as text; `problem` explains why there is no report although one was requested."""
    parts = [_title(plan), *_lines(plan)]
    for name, refusal in _refusals(plan):
        parts.append(f"✗ {name}: {refusal.reason}" + (f"\n  JAX: … {refusal.jax_says}" if refusal.jax_says else ""))
    if plan.legal:
        parts += [format_tree_text(plan.tree), ""]
        parts += [format_layout_text(layout, name=name) for name, layout in plan.legal[:_DRAWN]]
    if report is not None:
        parts += ["", format_collectives_text([report])]
    return "\n".join([*parts, *([problem] if problem else [])])


def format_plan_html(plan: Plan, report: Report | None = None, *, problem: str = "", uid: str = "mhnb-0") -> str:
    """Format a plan as HTML; `uid` is unique in the notebook."""
    parts = [f"<div><b>{escape(_title(plan))}</b></div>"]
    parts += [f'<div style="{QUIET}">{escape(line)}</div>' for line in _lines(plan)]
    parts += [_refusal_html(name, refusal) for name, refusal in _refusals(plan)]
    if plan.legal:
        parts.append(format_tree_html(plan.tree))
    parts += [
        format_layout_html(layout, name=name, uid=f"{uid}-{at}")
        for at, (name, layout) in enumerate(plan.legal[:_DRAWN])
    ]
    if report is not None:
        parts.append(format_collectives_html([report]))
    if problem:
        parts.append(f'<div class="mhnb-bad">{escape(problem)}</div>')
    return wrap("".join(parts))


def _refusal_html(name: str, refusal: Refusal) -> str:
    says = f'<div style="{QUIET}">JAX: … {escape(refusal.jax_says)}</div>' if refusal.jax_says else ""
    return f'<div class="mhnb-bad" style="margin:3px 0">✗ <b>{escape(name)}</b>: {escape(refusal.reason)}{says}</div>'
