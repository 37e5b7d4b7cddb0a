"""Format a reshard as two static layouts and a list of what moves between them."""

from __future__ import annotations

from html import escape
from itertools import islice

from mhnb.sharding.boxes import format_box
from mhnb.sharding.layout import Layout
from mhnb.sharding.reshard import Move, Reshard
from mhnb.sharding.words import format_kind, format_nbytes
from mhnb.view.draw import format_layout_text
from mhnb.view.mime import pre
from mhnb.view.sharding.drawhtml import format_layout_html
from mhnb.view.style import QUIET, wrap
from mhnb.view.words import Places

__all__ = ["format_reshard_html", "format_reshard_text"]

_LISTED = 24


def _title(plan: Reshard, name: str) -> str:
    return f"{name}  {format_kind(plan.before)}  {plan.before.spec} → {plan.after.spec}".strip()


def _sums(plan: Reshard) -> str:
    words = [
        f"{format_nbytes(plan.nbytes_moved)} move",
        f"{format_nbytes(plan.nbytes_across_hosts)} of it across hosts",
    ]
    words.append(f"{format_nbytes(plan.nbytes_kept)} stay")
    chosen = plan.collective or "not known: nobody asked the compiler"
    return " · ".join([*words, f"collective: {chosen}"])


def _lines(plan: Reshard) -> list[str]:
    moves = list(islice(plan.moves(), _LISTED + 1))
    lines = [_line(move, plan) for move in moves[:_LISTED]]
    return [*lines, "… and more"] if len(moves) > _LISTED else lines


def _line(move: Move, plan: Reshard) -> str:
    crosses = "  across hosts" if plan.host_of(move.source) != plan.host_of(move.target) else ""
    return f"  {move.source!s:>5} → {move.target!s:<5}  {format_box(move.box)}  {format_nbytes(move.nbytes)}{crosses}"


def format_reshard_text(plan: Reshard, *, name: str = "", places: Places | None = None) -> str:
    """Format a reshard as text: the sums, the layouts before and after, and the first slices that move."""
    stills = [format_layout_text(layout, name=word, places=places) for word, layout in _stills(plan)]
    return "\n".join([f"{_title(plan, name)}     {_sums(plan)}", *stills, *_lines(plan)])


def _stills(plan: Reshard) -> tuple[tuple[str, Layout], ...]:
    return ("before", plan.before), ("after", plan.after)


def format_reshard_html(plan: Reshard, *, name: str = "", places: Places | None = None, uid: str = "mhnb-0") -> str:
    """Format a reshard as HTML; `uid` is unique in the notebook."""
    stills = "".join(
        f'<div style="margin:0 24px 0 0">{format_layout_html(layout, name=word, places=places, uid=f"{uid}-{word}")}</div>'
        for word, layout in _stills(plan)
    )
    moves = pre("\n".join(_lines(plan)) or "nothing moves")
    return wrap(
        f'<div><b>{escape(_title(plan, name))}</b> <span style="{QUIET}">{escape(_sums(plan))}</span></div>'
        f'<div style="display:flex;flex-wrap:wrap">{stills}</div>'
        f'<details><summary style="cursor:pointer;{QUIET}">what moves</summary>{moves}</details>'
    )
