"""A folded block as HTML that is stored: its lines, the numbers in it, its pictures, and how it differs from the majority."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import groupby
from urllib.parse import quote

from mhnb.core.alike import Picture, is_plain
from mhnb.core.differ import Row, Span
from mhnb.core.template import OWN, Slot
from mhnb.values import Output
from mhnb.view.ansi import ansi_to_html
from mhnb.view.digest import Block
from mhnb.view.folded import (
    OWN_MARK,
    SLOT_MARK,
    ShownLine,
    block_items,
    clip_items,
    clip_told,
    letter,
    said_lines,
    sparkline,
    summarise_slot,
    tell_each,
    tell_values,
)
from mhnb.view.mime import STDERR_STYLE, output_to_html, pre_html
from mhnb.view.style import CHANGED, QUIET
from mhnb.view.words import format_rank_label

__all__ = ["Pictures", "block_to_html"]

_TABLE_SLOTS, _TABLE_RANKS = 12, 16
_CONTEXT = 3
_SMALL_NBYTES = 512
_CELL = "padding:0 .7em 0 0;text-align:right;border:0;background:none;font-weight:normal"


class Pictures:
    """The figures of a page: one that was shown already is named instead of stored again."""

    def __init__(self) -> None:
        self._seen: dict[bytes, str] = {}

    def show(self, output: Output, whose: str) -> str:
        """Write an output, or say whose figure it equals."""
        html = output_to_html(output)
        if len(html) < _SMALL_NBYTES:
            return html
        key = hashlib.blake2b(html.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if (earlier := self._seen.setdefault(key, whose)) != whose:
            return f'<div style="{QUIET}">the same as on {escape(earlier)}</div>'
        return html

    def show_rich(self, output: Output, whose: str) -> str:
        """Write an output; only what is not mere text is remembered."""
        return output_to_html(output) if is_plain(output) else self.show(output, whose)


def block_to_html(block: Block, pictures: Pictures, *, limit_nbytes: int, where: str, brief: bool = False) -> str:
    """Write a block.

    Args:
        block: what its ranks said.
        pictures: those of the page so far.
        limit_nbytes: text it may store; the rest is in the log.
        where: the log file's path, or a word for it.
        brief: whether of progress bars the one that stands for all is enough, for now.
    """
    if block.rows:
        return _pre_lines("stdout", clip_told(list(_row_lines(block)), limit_nbytes, where=escape(where)))
    items = clip_items(block_items(block.folded), limit_nbytes, where=where)
    slots = [slot for item in items if isinstance(item, ShownLine) for slot in item.slots]
    table = 0 < len(slots) <= _TABLE_SLOTS
    parts, named = [], 0
    for is_picture, run in groupby(items, key=lambda item: isinstance(item, Picture)):
        for item in run if is_picture else ():
            assert isinstance(item, Picture)
            parts.append(_picture(item, pictures))
        lines = [] if is_picture else [item for item in run if isinstance(item, ShownLine)]
        lines = [replace(line, each=()) for line in lines] if brief else lines
        for channel, same in groupby(lines, key=lambda line: line.channel):
            html, named = _lines(list(same), block.ranks, named, table=table)
            parts.append(_note(html, where) if channel == "note" else _pre_lines(channel, html))
    return "".join(parts) + (_table(slots, block.ranks) if table else _every_value(slots, block.ranks))


def _pre_lines(channel: str, lines: Sequence[str]) -> str:
    return pre_html("\n".join(lines), style=STDERR_STYLE if channel == "stderr" else "")


def _note(lines: Sequence[str], where: str) -> str:
    path = escape(where, quote=False)
    link = f'<a href="file://{quote(where)}">{path}</a>' if where.startswith("/") else path
    return f'<div style="{QUIET}">{"<br>".join(lines).replace(path, link)}</div>'


def _lines(lines: Sequence[ShownLine], ranks: Sequence[int], named: int, *, table: bool) -> tuple[list[str], int]:
    """Write lines, and below each its numbers where no table has them. The names of slots go on from line to line."""
    # Together, since a colour may go on at the next line's beginning.
    plain = ansi_to_html("\n".join(line.text for line in lines)).split("\n")
    written: list[str] = []
    for line, html in zip(lines, plain, strict=True):
        shown = html.replace(OWN_MARK, f"<i>{OWN}</i>")
        names = [letter(named + at) for at in range(len(line.slots))]
        named += len(names)
        for name in names:
            shown = shown.replace(SLOT_MARK, f"<b>‹{name}›</b>", 1)
        written.append(shown)
        if not table:
            told = zip(names, line.slots, strict=True)
            written += [f"  <b>{name}</b> {_told(slot, ranks)}" for name, slot in told if not slot.is_bar]
        if line.each:
            written.append(f'<span style="{QUIET}">  each {escape(tell_each(line, ranks), quote=False)}</span>')
    return written, named


def _told(slot: Slot, ranks: Sequence[int]) -> str:
    told = f"{sparkline(slot)}  {summarise_slot(slot, ranks) or tell_values(slot, ranks)}"
    return f'<span style="{QUIET}">{escape(told, quote=False)}</span>'


def _every_value(slots: Sequence[Slot], ranks: Sequence[int]) -> str:
    """Every value of slots that were only summarised above; closed, since they are many."""
    rows = [
        f"<b>{letter(at)}</b> {escape(tell_values(slot, ranks), quote=False)}"
        for at, slot in enumerate(slots)
        if not slot.is_bar and summarise_slot(slot, ranks)
    ]
    if not rows:
        return ""
    summary = f'<summary style="cursor:pointer;{QUIET}">every value of every rank</summary>'
    return f"<details>{summary}{_pre_lines('stdout', rows)}</details>"


def _picture(picture: Picture, pictures: Pictures) -> str:
    parts = []
    for ranks, output in picture.variants:
        label = format_rank_label(ranks)
        head = f"<div><b>{label}</b></div>" if len(picture.variants) > 1 else ""
        parts.append(f'<div style="min-width:0">{head}{pictures.show(output, label)}</div>')
    if len(parts) == 1:
        return parts[0]
    grid = "display:grid;grid-template-columns:repeat(auto-fill,minmax(14em,1fr));gap:8px"
    return f'<div style="{grid}">{"".join(parts)}</div>'


# -- the numbers of a template


def _table(slots: Sequence[Slot], ranks: Sequence[int]) -> str:
    rows = "".join(_table_row(letter(at), slot, ranks) for at, slot in enumerate(slots) if not slot.is_bar)
    head = ""
    if len(ranks) <= _TABLE_RANKS:
        cells = "".join(f'<th scope="col" style="{_CELL};{QUIET}">{rank}</th>' for rank in ranks)
        head = f'<tr><th scope="col" style="{_CELL};{QUIET}">rank</th><td style="{_CELL}"></td>{cells}</tr>'
    style = "border-collapse:collapse;margin:2px 0 4px 1em;font-family:monospace;font-size:1em;border:0"
    return f'<div style="overflow-x:auto"><table style="{style}">{head}{rows}</table></div>'


def _table_row(name: str, slot: Slot, ranks: Sequence[int]) -> str:
    start = (
        f'<th scope="row" style="{_CELL}"><b>{name}</b></th><td style="{_CELL};text-align:left">{sparkline(slot)}</td>'
    )
    if len(ranks) <= _TABLE_RANKS:
        return f"<tr>{start}{''.join(_values(slot))}</tr>"
    wide = f'<td style="{_CELL};text-align:left;white-space:normal">'
    summary, values = summarise_slot(slot, ranks), escape(tell_values(slot, ranks), quote=False)
    if not summary:
        return f"<tr>{start}{wide}{values}</td></tr>"
    return f"<tr>{start}{wide}<details><summary>{escape(summary)}</summary>{values}</details></td></tr>"


def _values(slot: Slot) -> Iterator[str]:
    odd = slot.odd
    for at, value in enumerate(slot.values):
        text = escape(value.strip(), quote=False)
        yield f'<td style="{_CELL}">{f"<b>{text}&nbsp;≠</b>" if at in odd else text}</td>'


# -- a difference


def _row_lines(block: Block) -> Iterator[str]:
    marked = any(row.kind in ("added", "missing") for row in block.rows)
    indent, lines, at = "  " if marked else "", said_lines(block.folded), 0
    for row in block.rows:
        if row.kind == "same" and row.count > _CONTEXT:
            yield f'<span style="{QUIET}">… {row.count} lines as on {format_rank_label(block.usual)} …</span>'
        elif row.kind == "same":
            yield from (f"{indent}{_line_html(*line)}" for line in lines[at : at + row.count])
        elif row.kind == "added":
            yield f"+ <b>{_line_html(row.channel, row.here)}</b>"
        elif row.kind == "missing":
            yield f'<span style="{QUIET}">- {_line_html(row.channel, row.there)}   ← elsewhere</span>'
        else:
            yield from _changed(row, indent)
        at += 0 if row.kind == "missing" else row.count


def _line_html(channel: str, text: str) -> str:
    if channel == "picture":
        return "<i>(a figure)</i>"
    shown = escape(text, quote=False).replace(OWN, f"<i>{OWN}</i>")
    return f'<span style="{STDERR_STYLE}">{shown}</span>' if channel == "stderr" else shown


def _changed(row: Row, indent: str) -> Iterator[str]:
    changed = [span for span in row.spans if span.there is not None]
    here = indent + "".join(map(_span, row.spans))
    if len(changed) == 1 and changed[0].here and changed[0].there:
        yield f'{here} <span style="{QUIET}">← {escape(changed[0].there, quote=False)} elsewhere</span>'
    else:
        yield here
        yield f'<span style="{QUIET}">{indent}← {escape(row.there, quote=False)} elsewhere</span>'


def _span(span: Span) -> str:
    text = _line_html("", span.here)
    return text if span.there is None or not text else f'<b style="{CHANGED}">{text}</b>'
