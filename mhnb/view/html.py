"""A cell's result as HTML that is stored in the notebook and needs no kernel, script or style to be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Literal, TypeAlias

from mhnb.core.results import CellResult, RankResult
from mhnb.values import Output, RankError
from mhnb.view.digest import Block, Digest, Failure, clip_outputs, digest, missing_note, without_errors
from mhnb.view.mime import output_to_html, pre
from mhnb.view.style import QUIET, RED, TABS_CSS, host_color, wrap
from mhnb.view.text import failure_lines
from mhnb.view.trace import count_user_frames, fold_traceback, trim_traceback
from mhnb.view.words import Places, format_rank_label

__all__ = ["MAX_BLOCK_NBYTES", "MAX_CELL_NBYTES", "View", "format_cell_html"]

View: TypeAlias = Literal["fold", "tabs", "grid"]

MAX_BLOCK_NBYTES = 256 * 1024
"""Text that one block stores in the notebook; the beginning and the end stay, the log file has all."""
MAX_CELL_NBYTES = 4 * 2**20
"""Text that all blocks of a cell store together; each gets an equal part, and at least 4 KiB."""

_MAX_OPEN = 8
_MAX_ROWS = 64
_LONG_LINES = 200
_SCROLL = "max-height:36em;overflow:auto"


def format_cell_html(
    result: CellResult, *, view: View = "fold", uid: str = "mhnb-0", places: Places | None = None, badge: bool = False
) -> str:
    """Write what every rank said as HTML. Empty when there is nothing to say.

    `badge` says that the ranks ran it, also when they said nothing.
    `uid` is unique in the notebook: it names the group of tabs.
    """
    seen = digest(result)
    if badge:
        seen = replace(seen, heading=f"mhjax · {seen.heading}")
    if seen.empty:
        return wrap(_heading(seen)) if badge else ""
    where = places or Places()
    parts = [_failure_part(result, seen, where)] if seen.failures else []
    if view == "fold":
        parts += [_fold_part(seen, where)] if seen.blocks else []
        css = ""
    else:
        parts.append(_tabs_part(result, seen, where, uid, note=view == "grid"))
        css = TABS_CSS.format(uid=uid)
    parts += [f'<div style="margin-top:4px">{escape(note, quote=False)}</div>' for note in seen.notes]
    return wrap("".join(parts), css=css)


# -- folded


def _heading(seen: Digest) -> str:
    if seen.odd and seen.blocks[-1].outputs:  # that only some ranks speak is common and no alarm
        return f'<div><span style="{QUIET}">{escape(seen.heading)} ·</span> <b>{escape(seen.verdict)}</b></div>'
    return f'<div style="{QUIET}">{escape(" · ".join(filter(None, (seen.heading, seen.verdict))))}</div>'


def _fold_part(seen: Digest, places: Places) -> str:
    blocks = seen.blocks
    bodies = [_block_body(block, len(blocks), places) for block in blocks]
    if len(blocks) == 1:
        return _heading(seen) + (f'<div style="{_SCROLL}">{bodies[0]}</div>' if _is_long(blocks[0]) else bodies[0])
    if len(blocks) <= _MAX_ROWS and all(map(_is_short, blocks)):
        return _heading(seen) + "".join(_row(b, body, places) for b, body in zip(blocks, bodies, strict=True))
    opened = _open_indexes(len(blocks))
    return _heading(seen) + "".join(
        _fold(block, body, places, is_open=index in opened)
        for index, (block, body) in enumerate(zip(blocks, bodies, strict=True))
    )


def _open_indexes(count: int) -> set[int]:
    """The first blocks are the odd ones out, the last is the majority: those are seen without a click."""
    return set(range(count)) if count <= _MAX_OPEN else {*range(_MAX_OPEN - 1), count - 1}


def _is_long(block: Block) -> bool:
    lines: int = sum(o["text"].count("\n") for o in block.outputs if o["output_type"] == "stream")
    return lines > _LONG_LINES


def _is_short(block: Block) -> bool:
    """Whether a block is one line of text, so that it fits beside its label."""
    if block.omitted_nbytes or len(block.outputs) > 1:
        return False
    return all(map(_is_one_line, block.outputs))


def _is_one_line(output: Output) -> bool:
    if output["output_type"] == "stream":
        text, is_plain = str(output["text"]), output["name"] == "stdout"
    else:
        text, is_plain = str(output["data"].get("text/plain")), set(output["data"]) == {"text/plain"}
    return is_plain and len(text) <= 200 and "\n" not in text.removesuffix("\n")


def _row(block: Block, body: str, places: Places) -> str:
    bar = f"border-left:3px solid {host_color(places, block.ranks)}"
    return (
        f'<div style="display:flex;align-items:baseline;{bar};margin:1px 0;padding-left:8px">'
        f'<div style="min-width:9em">{_label(block.ranks, places)}</div>'
        f'<div style="flex:1;min-width:0">{body}</div></div>'
    )


def _fold(block: Block, body: str, places: Places, *, is_open: bool) -> str:
    return (
        f'<details{" open" if is_open else ""} style="margin:3px 0"><summary style="cursor:pointer">'
        f"{_label(block.ranks, places)}</summary>{_barred(body, host_color(places, block.ranks))}</details>"
    )


def _barred(body: str, color: str) -> str:
    return f'<div style="border-left:3px solid {color};padding-left:8px;margin-left:4px;{_SCROLL}">{body}</div>'


def _label(ranks: Sequence[int], places: Places) -> str:
    host = places.host_of(ranks)
    where = f' <span style="{QUIET}">{escape(host)}</span>' if host else ""
    return f"<b>{format_rank_label(ranks)}</b>{where}"


def _block_body(block: Block, blocks: int, places: Places) -> str:
    log = places.logs.get(block.ranks[0])
    limit = max(4096, min(MAX_BLOCK_NBYTES, MAX_CELL_NBYTES // blocks))
    body = "".join(map(output_to_html, clip_outputs(block.outputs, limit, where=log or "the log file")))
    missing = missing_note(block, log)
    if missing:
        body += f'<div style="{QUIET}">{escape(missing)}</div>'
    return body or f'<span style="{QUIET}">(no output)</span>'


# -- tabs


def _tabs_part(result: CellResult, seen: Digest, places: Places, uid: str, *, note: bool) -> str:
    tabs = [_tab(r, result, places, uid, odd=r.rank in seen.odd) for r in result.ranks]
    later = f'<div style="{QUIET}">grid is not there yet: shown as tabs</div>' if note else ""
    return f'{_heading(seen)}{later}<div class="{uid}">{"".join(tabs)}</div>'


def _tab(rank: RankResult, result: CellResult, places: Places, uid: str, *, odd: bool) -> str:
    block = Block((rank.rank,), without_errors(rank).outputs, rank.omitted_nbytes)
    body = _block_body(block, len(result.ranks), places)
    if rank.error is not None:
        body = _failure_summary(Failure((rank.rank,), rank.error.ename, rank.error), result.seq) + body
    is_open = " open" if rank is result.ranks[0] else ""
    mark = " ≠" if odd else " ✗" if rank.error else ""
    return (
        f'<details name="{uid}"{is_open} style="margin:3px 0"><summary style="cursor:pointer">'
        f"{_label((rank.rank,), places)}{mark}</summary>{_barred(body, host_color(places, (rank.rank,)))}</details>"
    )


# -- failures


def _failure_part(result: CellResult, seen: Digest, places: Places) -> str:
    parts = [f'<div style="color:{RED}"><b>{escape(seen.failure_heading)}</b></div>']
    several = len(seen.failures) > 1
    for index, failure in enumerate(seen.failures):
        label = f"<div>{_label(failure.ranks, places)}: {escape(failure.word)}</div>" if several else ""
        body = _failure_summary(failure, result.seq) + _trace(failure.error, first=index == 0)
        parts.append(f"{label}{_barred(body, RED)}" if body else label)
    return f'<div style="margin-bottom:4px">{"".join(parts)}</div>'


def _failure_summary(failure: Failure, seq: int) -> str:
    lines = "\n".join(failure_lines(failure, seq))
    return pre(lines) if lines else ""


def _trace(error: RankError | None, *, first: bool) -> str:
    if error is None or not error.traceback:
        return ""
    # the cell's own line is shown above; more frames of the user's are worth seeing without a click
    is_open = first and (error.line is None or count_user_frames(error.traceback) > 1)
    inner = "".join(_trace_part(part.text, part.label) for part in fold_traceback(trim_traceback(error)))
    summary = f'<summary style="cursor:pointer;{QUIET}">traceback</summary>'
    return f"<details{' open' if is_open else ''}>{summary}{inner}</details>"


def _trace_part(text: str, label: str) -> str:
    if not label:
        return pre(text)
    summary = f'<summary style="cursor:pointer;{QUIET};padding-left:2em">{escape(label)}</summary>'
    return f"<details>{summary}{pre(text)}</details>"
