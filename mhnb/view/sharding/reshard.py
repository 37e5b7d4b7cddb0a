"""Format a reshard as two static layouts and a list of what moves between them."""

from __future__ import annotations

from html import escape
from itertools import islice

from mhnb.core.exchange.boxes import format_box
from mhnb.sharding.layout import Layout, format_dtype_and_shape, format_nbytes
from mhnb.sharding.reshard import Move, Reshard
from mhnb.view.draw import format_layout_text
from mhnb.view.mime import format_pre
from mhnb.view.sharding.drawhtml import format_layout_html
from mhnb.view.style import QUIET_STYLE, wrap_html
from mhnb.view.words import RankLocations

__all__ = ["format_reshard_html", "format_reshard_text"]

_MAX_LISTED_MOVES = 24


def _format_reshard_title(plan: Reshard, name: str) -> str:
    return f"{name}  {format_dtype_and_shape(plan.before)}  {plan.before.spec} → {plan.after.spec}".strip()


def _format_sums(plan: Reshard) -> str:
    words = [
        f"{format_nbytes(plan.nbytes_moved)} move",
        f"{format_nbytes(plan.nbytes_across_hosts)} of it across hosts",
    ]
    words.append(f"{format_nbytes(plan.nbytes_kept)} stay")
    chosen = plan.collective or "not known: nobody asked the compiler"
    return " · ".join([*words, f"collective: {chosen}"])


def _format_moves(plan: Reshard) -> list[str]:
    moves = list(islice(plan.moves(), _MAX_LISTED_MOVES + 1))
    lines = [_format_move(move, plan) for move in moves[:_MAX_LISTED_MOVES]]
    return [*lines, "… and more"] if len(moves) > _MAX_LISTED_MOVES else lines


def _format_move(move: Move, plan: Reshard) -> str:
    crosses = "  across hosts" if plan.host_of(move.source) != plan.host_of(move.target) else ""
    return f"  {move.source!s:>5} → {move.target!s:<5}  {format_box(move.box)}  {format_nbytes(move.nbytes)}{crosses}"


def format_reshard_text(plan: Reshard, *, name: str = "", locations: RankLocations | None = None) -> str:
    """Format a reshard as text: the sums, the layouts before and after, and the first slices that move."""
    layouts = [format_layout_text(layout, name=word, locations=locations) for word, layout in _layouts(plan)]
    return "\n".join([f"{_format_reshard_title(plan, name)}     {_format_sums(plan)}", *layouts, *_format_moves(plan)])


def _layouts(plan: Reshard) -> tuple[tuple[str, Layout], ...]:
    return ("before", plan.before), ("after", plan.after)


def format_reshard_html(
    plan: Reshard, *, name: str = "", locations: RankLocations | None = None, uid: str = "mhnb-0"
) -> str:
    """Format a reshard as HTML; `uid` is unique in the notebook."""
    layouts = "".join(
        f'<div style="margin:0 24px 0 0">{format_layout_html(layout, name=word, locations=locations, uid=f"{uid}-{word}")}</div>'
        for word, layout in _layouts(plan)
    )
    moves = format_pre("\n".join(_format_moves(plan)) or "nothing moves")
    return wrap_html(
        f'<div><b>{escape(_format_reshard_title(plan, name))}</b> <span style="{QUIET_STYLE}">{escape(_format_sums(plan))}</span></div>'
        f'<div style="display:flex;flex-wrap:wrap">{layouts}</div>'
        f'<details><summary style="cursor:pointer;{QUIET_STYLE}">what moves</summary>{moves}</details>'
    )
