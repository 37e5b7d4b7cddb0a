"""Format a cell's result as HTML that is stored in the notebook and can be read without a kernel, script or style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Literal, TypeAlias

from mhnb.core.output.outputs import GAP
from mhnb.core.output.results import CellResult, RankResult, group_by_outputs
from mhnb.core.ranks import say_ranks
from mhnb.values import Output
from mhnb.view.cell.card import failure_card, label_html
from mhnb.view.cell.digest import Block, Digest, clip_outputs, digest, noise_label, without_errors
from mhnb.view.cell.folded import block_items
from mhnb.view.cell.foldedhtml import Pictures, block_to_html
from mhnb.view.logs import log_html
from mhnb.view.mime import output_to_html, plain_nbytes, pre
from mhnb.view.style import GRID, GRID_CARD, QUIET, TABS_CSS, host_color, wrap
from mhnb.view.words import Places, format_error, format_hosts_of

__all__ = ["MAX_CELL_NBYTES", "MAX_EACH_NBYTES", "View", "format_cell_html", "rank_body_html"]

View: TypeAlias = Literal["fold", "tabs", "grid"]

MAX_CELL_NBYTES = 128 * 1024
"""Text that a cell stores as HTML, beside its figures.

Each block gets an equal part, and at least 1 KiB. The log files have all of it.
"""
MAX_EACH_NBYTES = 24 * 1024
"""If blocks are merged, each rank's verbatim output is stored too, up to this much text."""

_MAX_OPEN = 8
_MAX_ROWS = 64
_LONG_LINES = 200
_SHORT_LINES, _SHORT_CHARS = 6, 200
_SCROLL = "max-height:36em;overflow:auto"


def format_cell_html(
    result: CellResult,
    *,
    view: View = "fold",
    uid: str = "mhnb-0",
    places: Places | None = None,
    badge: bool = False,
    seen: Digest | None = None,
) -> str:
    """Format every rank's output as HTML. Return an empty string if there is nothing to show.

    `badge` adds a line saying that the ranks ran the cell, also if they have no output.
    `uid` is unique in the notebook: it names the group of tabs.
    `seen` is the result's summary, if the caller has it.
    """
    seen = seen or digest(result)
    if badge:
        seen = replace(seen, heading=f"mhjax · {seen.heading}")
    if seen.empty:
        return wrap(_heading(seen)) if badge else ""
    where = places or Places()
    parts = [failure_card(result, seen, where)] if seen.failures else []
    if view == "fold":
        pictures = Pictures()
        folded = _fold_part(seen, where, pictures) if seen.blocks else ""
        each = _each_part(result, seen, where, uid, pictures) if seen.blocks else ""
        parts.append(folded + each)
        css = TABS_CSS.format(uid=uid) if each else ""
    else:
        parts.append(_heading(seen) + (_tabs if view == "tabs" else _grid)(result, seen, where, uid, Pictures()))
        css = TABS_CSS.format(uid=uid) if view == "tabs" else ""
    parts += [_noise_part(result, seen)] if seen.noise else []
    parts += [
        f'<div style="margin-top:4px;white-space:pre-wrap">{escape(note, quote=False)}</div>' for note in seen.notes
    ]
    return wrap("".join(parts), css=css)


# -- merged blocks


def _heading(seen: Digest) -> str:
    """Format which ranks ran the cell and how they differ. The cell's number is the tooltip.

    A panel shows the ranks in its own head, so its heading is empty.
    """
    tip = f' title="{seen.name}"' if seen.name else ""
    if seen.alarming:
        head = f'<span style="{QUIET}">{escape(seen.heading)} ·</span> ' if seen.heading else ""
        return f"<div{tip}>{head}<b>{escape(seen.verdict)}</b></div>"
    words = " · ".join(filter(None, (seen.heading, seen.verdict)))
    return f'<div{tip} style="{QUIET}">{escape(words)}</div>' if words else ""


def _fold_part(seen: Digest, places: Places, pictures: Pictures) -> str:
    blocks = seen.blocks
    bodies = [_block_body(block, len(blocks), places, pictures) for block in blocks]
    if len(blocks) == 1:
        return _heading(seen) + (_scroll(bodies[0]) if _is_long(blocks[0]) else bodies[0])
    if len(blocks) <= _MAX_ROWS and all(map(_is_short, blocks)):
        widest = max(len(say_ranks(b.ranks) + format_hosts_of(places, b.ranks)) for b in blocks)
        rows = (
            _row(b, body, places, odd=b.ranks[0] in seen.alarming, width_em=min(24, 2.5 + 0.55 * widest))
            for b, body in zip(blocks, bodies, strict=True)
        )
        return _heading(seen) + "".join(rows)
    opened = _open_indexes(len(blocks))
    return _heading(seen) + "".join(
        _fold(block, body, places, is_open=index in opened, mark=" ≠" if block.ranks[0] in seen.alarming else "")
        for index, (block, body) in enumerate(zip(blocks, bodies, strict=True))
    )


def _open_indexes(count: int) -> set[int]:
    """Return the blocks that are seen without a click: the first ones, which differ, and the last one, the majority."""
    return set(range(count)) if count <= _MAX_OPEN else {*range(_MAX_OPEN - 1), count - 1}


def _is_long(block: Block) -> bool:
    return len(block_items(block.folded)) > _LONG_LINES


def _is_short(block: Block) -> bool:
    """Return whether a block is a few lines of text, so that it fits beside its label."""
    if block.omitted_nbytes:
        return False
    if block.rows:
        shown = sum(min(row.count, 3) for row in block.rows)
        return shown <= _SHORT_LINES and all(len(row.here) <= _SHORT_CHARS for row in block.rows)
    lines = block_items(block.folded)
    texts = [getattr(line, "text", "x" * 999) for line in lines]
    return len(lines) <= _SHORT_LINES and max(map(len, texts), default=0) <= _SHORT_CHARS


def _scroll(body: str) -> str:
    return f'<div tabindex="0" style="{_SCROLL}">{body}</div>'


def _row(block: Block, body: str, places: Places, *, odd: bool, width_em: float) -> str:
    bar = f"border-left:3px {'double' if odd else 'solid'} {host_color(places, block.ranks)}"
    mark = " ≠" if odd else ""
    beside = f"flex:0 0 {width_em:.1f}em;padding-right:.8em;overflow-wrap:anywhere"
    return (
        f'<div class="mhnb-block{" mhnb-odd" if odd else ""}" style="display:flex;align-items:baseline;{bar};margin:1px 0;'
        f'padding-left:8px"><div style="{beside}">{label_html(block.ranks, places)}{mark}</div>'
        f'<div style="flex:1;min-width:0">{body}</div></div>'
    )


def _fold(block: Block, body: str, places: Places, *, is_open: bool, mark: str) -> str:
    name = f"mhnb-block{' mhnb-odd' if mark else ''}"
    return (
        f'<details class="{name}"{" open" if is_open else ""} style="margin:3px 0"><summary style="cursor:pointer">'
        f"{label_html(block.ranks, places)}{mark}</summary>{_barred(body, host_color(places, block.ranks))}</details>"
    )


def _barred(body: str, color: str) -> str:
    bar = f"border-left:3px solid {color};padding-left:8px;margin-left:4px"
    return f'<div tabindex="0" style="{bar};{_SCROLL}">{body}</div>'


def _block_body(block: Block, blocks: int, places: Places, pictures: Pictures) -> str:
    log = places.logs.get(block.ranks[0])
    limit = max(1024, MAX_CELL_NBYTES // blocks)
    body = block_to_html(block, pictures, limit_nbytes=limit, where=log or "the log file", folder=places.folder)
    return body or f'<span style="{QUIET}">(no output)</span>'


def _noise_part(result: CellResult, seen: Digest) -> str:
    """Format what C++ libraries printed: counted and collapsed."""
    lines = "".join(f"<div>{say_ranks(ranks)}</div>{pre(text.rstrip())}" for ranks, text in seen.noise)
    return f'<details><summary style="cursor:pointer;{QUIET}">{noise_label(result)}</summary>{lines}</details>'


# -- each rank


def _each_part(result: CellResult, seen: Digest, places: Places, uid: str, pictures: Pictures) -> str:
    """Format each rank's verbatim output, collapsed, if the blocks show it in another form."""
    if seen.is_literal:
        return ""
    if sum(plain_nbytes(r.outputs) for r in result.ranks) > MAX_EACH_NBYTES:
        return f'<div style="{QUIET}">word for word: each rank\'s log file{_log_dir(places, result)}</div>'
    summary = f'<summary style="cursor:pointer;{QUIET}">each rank word for word</summary>'
    return f'<details style="margin-top:3px">{summary}{_tabs(result, seen, places, uid, pictures)}</details>'


def _log_dir(places: Places, result: CellResult) -> str:
    log = places.logs.get(result.ranks[0].rank, "")
    return f", as {log_html(log, places.folder)}" if log else ""


def _tabs(result: CellResult, seen: Digest, places: Places, uid: str, pictures: Pictures) -> str:
    bodies = _rank_bodies(result, places, pictures)
    first = _first_seen(result, seen)
    tabs = [_tab(r, body, seen, places, uid, is_open=r.rank == first) for r, body in zip(result, bodies, strict=True)]
    return f'<div class="{uid}">{"".join(tabs)}</div>'


def _first_seen(result: CellResult, seen: Digest) -> int:
    """Return the rank whose tab is open: one that differs, else one that failed, else the first."""
    failed = (r.rank for r in result.ranks if r.failure is not None)
    return min(seen.odd, default=next(failed, result.ranks[0].rank))


def _tab(rank: RankResult, body: str, seen: Digest, places: Places, uid: str, *, is_open: bool) -> str:
    name = "mhnb-block mhnb-odd" if rank.rank in seen.alarming else "mhnb-block"
    return (
        f'<details class="{name}" name="{uid}"{" open" if is_open else ""} style="margin:3px 0">'
        f'<summary style="cursor:pointer">{label_html((rank.rank,), places)}{_mark(rank, seen)}</summary>'
        f"{_failed(rank, seen)}{_barred(body, host_color(places, (rank.rank,)))}</details>"
    )


def _grid(result: CellResult, seen: Digest, places: Places, _uid: str, pictures: Pictures) -> str:
    cards = [
        _card(r, body, seen, places) for r, body in zip(result, _rank_bodies(result, places, pictures), strict=True)
    ]
    return f'<div style="{GRID}">{"".join(cards)}</div>'


def _card(rank: RankResult, body: str, seen: Digest, places: Places) -> str:
    name = "mhnb-block mhnb-odd" if rank.rank in seen.alarming else "mhnb-block"
    top = f"border-top:3px solid {host_color(places, (rank.rank,))}"
    head = f"<div>{label_html((rank.rank,), places)}{_mark(rank, seen)}</div>"
    scroll = f'<div tabindex="0" style="max-height:14em;overflow:auto">{_failed(rank, seen)}{body}</div>'
    return f'<div class="{name}" style="{GRID_CARD};{top}">{head}{scroll}</div>'


def _mark(rank: RankResult, seen: Digest) -> str:
    return " ✗" if rank.failure else " ≠" if rank.rank in seen.alarming else ""


def _failed(rank: RankResult, seen: Digest) -> str:
    """Format the error in one line; the failure report above has the rest."""
    if rank.failure is None:
        return ""
    waited = any(failure.waited and rank.rank in failure.ranks for failure in seen.failures)
    word = "waited for a rank that had failed" if waited else format_error(rank.failure)
    return f'<div class="mhnb-bad">{escape(word, quote=False)}</div>'


def _rank_bodies(result: CellResult, places: Places, pictures: Pictures) -> list[str]:
    """Format each rank's outputs; if there is too much, store equal ones once."""
    ranks = [without_errors(r) for r in result.ranks]
    limit = max(1024, MAX_CELL_NBYTES // len(ranks))
    first = {r.rank: r.rank for r in ranks}
    if sum(plain_nbytes(r.outputs) for r in ranks) > MAX_CELL_NBYTES:
        groups = group_by_outputs(ranks)
        first = {rank: group.ranks[0] for group in groups for rank in group.ranks}
        limit = max(1024, MAX_CELL_NBYTES // len(groups))
    same = f'<span style="{QUIET}">the same as rank {{}}</span>'
    return [
        same.format(first[r.rank])
        if first[r.rank] != r.rank
        else rank_body_html(r, places, pictures=pictures, limit_nbytes=limit)
        for r in ranks
    ]


def rank_body_html(
    rank: RankResult, places: Places, *, pictures: Pictures | None = None, limit_nbytes: int = MAX_CELL_NBYTES
) -> str:
    """Format one rank's output verbatim, without errors."""
    log = places.logs.get(rank.rank)
    shown: Sequence[Output] = clip_outputs(without_errors(rank).outputs, limit_nbytes, where=log or "the log file")
    label = say_ranks((rank.rank,))
    body = "".join(output_to_html(o) if pictures is None else pictures.show_rich(o, label) for o in shown)
    if log:
        body = GAP.sub(lambda gap: gap[0].replace("the rank's log file", log_html(log, places.folder)), body)
    return body or f'<span style="{QUIET}">(no output)</span>'
