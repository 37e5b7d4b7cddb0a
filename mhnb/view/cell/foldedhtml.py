"""Format an output block as HTML that is stored: its lines, their numbers, its pictures, its differences from the majority."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import count, groupby
from typing import TypeAlias

from mhnb.core.output.alike import Picture, is_plain
from mhnb.core.output.differ import Row, Span
from mhnb.core.output.template import OWN, Slot
from mhnb.core.ranks import say_ranks
from mhnb.values import Output
from mhnb.view.ansi import ansi_to_html
from mhnb.view.cell.digest import Block
from mhnb.view.cell.folded import (
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
from mhnb.view.cell.nearby import near_changes, shorten
from mhnb.view.cell.recurring import Cells, Run, Table, find_runs, run_tables
from mhnb.view.logs import log_html
from mhnb.view.mime import STDERR_STYLE, output_to_html, pre_html
from mhnb.view.style import CHANGED, QUIET

__all__ = ["Pictures", "block_to_html"]

_TABLE_SLOTS, _TABLE_RANKS = 12, 16
_STEPS = 64
_CONTEXT = 3
_SMALL_NBYTES = 512
_CELL = "padding:0 .7em 0 0;text-align:right;border:0;background:none;font-weight:normal"


class Pictures:
    """The figures of a page. A figure that was shown already is named instead of stored again."""

    def __init__(self) -> None:
        self._seen: dict[bytes, str] = {}

    def show(self, output: Output, whose: str) -> str:
        """Format an output, or name the ranks that have the same figure."""
        html = output_to_html(output)
        if len(html) < _SMALL_NBYTES:
            return html
        key = hashlib.blake2b(html.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if (earlier := self._seen.setdefault(key, whose)) != whose:
            return f'<div style="{QUIET}">the same as on {escape(earlier)}</div>'
        return html

    def show_rich(self, output: Output, whose: str) -> str:
        """Format an output; only outputs other than plain text are remembered."""
        return output_to_html(output) if is_plain(output) else self.show(output, whose)


def block_to_html(
    block: Block, pictures: Pictures, *, limit_nbytes: int, where: str, folder: str = "", brief: bool = False
) -> str:
    """Format a block as HTML.

    Args:
        block: ranks and their output.
        pictures: those of the page so far.
        limit_nbytes: text it may store; the rest is in the log.
        where: the log file's path, or a word for it.
        folder: the notebook's folder, if it is known.
        brief: whether to show only the one progress bar that stands for all, for now.
    """
    if block.rows:
        return _pre_lines("stdout", clip_told(list(_row_lines(block)), limit_nbytes, where=escape(where)))
    items = find_runs(clip_items(block_items(block.folded), limit_nbytes, where=where), block.ranks)
    table = 0 < sum(len(item.slots) for item in items if isinstance(item, ShownLine)) <= _TABLE_SLOTS
    names, named, parts = map(letter, count()), [], []
    for (kind, channel), same in groupby(items, key=lambda item: (type(item), getattr(item, "channel", ""))):
        if kind is ShownLine:
            lines = [item for item in same if isinstance(item, ShownLine)]
            lines = [replace(line, each=()) for line in lines] if brief else lines
            taken = [[(next(names), slot) for slot in line.slots] for line in lines]
            named += [one for slots in taken for one in slots]
            html = _lines(lines, taken, block.ranks, table=table)
            parts.append(_note(html, where, folder) if channel == "note" else _pre_lines(channel, html))
            continue
        for item in same:
            if isinstance(item, Picture):
                parts.append(_picture(item, pictures))
            elif isinstance(item, Run):
                parts.append(_run(item, block.ranks, [next(names) for _ in item.columns]))
    return "".join(parts) + (_table(named, block.ranks) if table else _every_value(named, block.ranks))


def _pre_lines(channel: str, lines: Sequence[str]) -> str:
    return pre_html("\n".join(lines), style=STDERR_STYLE if channel == "stderr" else "")


def _note(lines: Sequence[str], where: str, folder: str) -> str:
    path = escape(where, quote=False)
    shown = "<br>".join(lines)
    shown = shown.replace(path, log_html(where, folder)) if where.startswith("/") else shown
    return f'<div style="{QUIET}">{shown}</div>'


_Named: TypeAlias = tuple[str, Slot]


def _lines(
    lines: Sequence[ShownLine], named: Sequence[Sequence[_Named]], ranks: Sequence[int], *, table: bool
) -> list[str]:
    """Format lines, and below each its numbers if no table has them. The names of slots continue from line to line."""
    # Converted together, because a colour may continue on the next line.
    plain = ansi_to_html("\n".join(line.text for line in lines)).split("\n")
    written: list[str] = []
    for line, html, slots in zip(lines, plain, named, strict=True):
        written.append(_marked(html, [name for name, _ in slots]))
        if not table:
            written += [f"  <b>{name}</b> {_told(slot, ranks)}" for name, slot in slots if not slot.is_bar]
        if line.each:
            written.append(f'<span style="{QUIET}">  each {escape(tell_each(line, ranks), quote=False)}</span>')
    return written


def _marked(html: str, names: Sequence[str]) -> str:
    """Replace the marks by names."""
    shown = html.replace(OWN_MARK, f"<i>{OWN}</i>")
    for name in names:
        shown = shown.replace(SLOT_MARK, f"<b>‹{name}›</b>", 1)
    return shown


def _told(slot: Slot, ranks: Sequence[int]) -> str:
    told = f"{sparkline(slot)}  {summarise_slot(slot, ranks) or tell_values(slot, ranks)}"
    return f'<span style="{QUIET}">{escape(told, quote=False)}</span>'


def _every_value(named: Sequence[_Named], ranks: Sequence[int]) -> str:
    """Format every value of slots that were only summarised above."""
    return _closed(
        [
            f"<b>{name}</b> {escape(tell_values(slot, ranks), quote=False)}"
            for name, slot in named
            if not slot.is_bar and summarise_slot(slot, ranks)
        ]
    )


def _closed(rows: Sequence[str]) -> str:
    """Format the rows of every value, collapsed because there are many."""
    if not rows:
        return ""
    summary = f'<summary style="cursor:pointer;{QUIET}">every value of every rank</summary>'
    return f"<details>{summary}{_pre_lines('stdout', rows)}</details>"


def _picture(picture: Picture, pictures: Pictures) -> str:
    parts = []
    for ranks, output in picture.variants:
        label = say_ranks(ranks)
        head = f"<div><b>{label}</b></div>" if len(picture.variants) > 1 else ""
        parts.append(f'<div style="min-width:0">{head}{pictures.show(output, label)}</div>')
    if len(parts) == 1:
        return parts[0]
    grid = "display:grid;grid-template-columns:repeat(auto-fill,minmax(14em,1fr));gap:8px"
    return f'<div style="{grid}">{"".join(parts)}</div>'


# -- the numbers of a template


_TABLE = "border-collapse:collapse;margin:2px 0 4px 1em;font-family:monospace;font-size:1em;border:0"


def _table(named: Sequence[_Named], ranks: Sequence[int]) -> str:
    rows = "".join(_table_row(name, slot, ranks) for name, slot in named if not slot.is_bar)
    head = ""
    if len(ranks) <= _TABLE_RANKS:
        cells = "".join(f'<th scope="col" style="{_CELL};{QUIET}">{rank}</th>' for rank in ranks)
        head = f'<tr><th scope="col" style="{_CELL};{QUIET}">rank</th><td style="{_CELL}"></td>{cells}</tr>'
    return f'<div style="overflow-x:auto"><table style="{_TABLE}">{head}{rows}</table></div>'


def _table_row(name: str, slot: Slot, ranks: Sequence[int]) -> str:
    start = (
        f'<tr><th scope="row" style="{_CELL};vertical-align:top"><b>{name}</b></th><td style="{_CELL};text-align:left'
    )
    if len(ranks) <= _TABLE_RANKS:
        return f'{start}">{sparkline(slot)}</td>{"".join(_values(slot))}</tr>'
    summary, values = summarise_slot(slot, ranks), escape(tell_values(slot, ranks), quote=False)
    told = f"<details><summary>{escape(summary)}</summary>{values}</details>" if summary else values
    return f'{start};white-space:normal">{_beside(sparkline(slot), told)}</td></tr>'


def _beside(steps: str, told: str) -> str:
    """Place text beside the steps of many ranks if there is room, otherwise below. A line has steps for at most 64 ranks."""
    lines = "<br>".join(steps[at : at + _STEPS] for at in range(0, len(steps), _STEPS))
    return f'<div style="display:flex;flex-wrap:wrap;gap:0 1em"><div style="white-space:pre">{lines}</div><div>{told}</div></div>'


def _run(run: Run, ranks: Sequence[int], names: Sequence[str]) -> str:
    """Format lines of one form: the form, the number of lines, and a table per field."""
    form = f'{_marked(ansi_to_html(run.text), names)}   <span style="{QUIET}">× {run.count} lines</span>'
    tables = "".join(_run_table(table) for table in run_tables(run, ranks, names))
    flex = "display:flex;flex-wrap:wrap;gap:0 1.5em;overflow-x:auto"
    return f'{_pre_lines(run.channel, [form])}<div style="{flex}">{tables}</div>'


def _run_table(table: Table) -> str:
    heads = "".join(f'<th scope="col">{head}</th>' for head in table.labels)
    columns = "".join(f'<th scope="col">{rank}</th>' for rank in table.ranks) or "<td></td>"
    head = f'<tr>{heads}<td style="text-align:left"><b>{table.name}</b></td>{columns}</tr>'
    rows = "".join(f"<tr>{_run_row(row)}</tr>" for row in table.rows)
    label = f"{', '.join(table.labels)} " if table.labels else ""
    every = [
        f"{escape(' '.join(row.label), quote=False)}  {escape(row.told, quote=False)}" for row in table.rows if row.told
    ]
    shown = f'<table class="mhnb-run" style="{_TABLE}">{head}{rows}</table>'
    return f"<div>{shown}{_closed([f'<b>{label}{table.name}</b>', *every] if every else [])}</div>"


def _run_row(row: Cells) -> str:
    labels = "".join(f'<th scope="row">{escape(text, quote=False)}</th>' for text in row.label)
    values = [escape(value, quote=False) for value in row.values]
    if not row.told and len(values) > 1:
        marked = (f"<b>{text}&nbsp;≠</b>" if at in row.odd else text for at, text in enumerate(values))
        return f"{labels}<td>{row.steps}</td>{''.join(f'<td>{text}</td>' for text in marked)}"
    return f'{labels}<td colspan="2" style="text-align:left">{_beside(row.steps, values[0])}</td>'


def _values(slot: Slot) -> Iterator[str]:
    odd = slot.odd
    for at, value in enumerate(slot.values):
        text = escape(value.strip(), quote=False)
        yield f'<td style="{_CELL}">{f"<b>{text}&nbsp;≠</b>" if at in odd else text}</td>'


# -- differences


def _row_lines(block: Block) -> Iterator[str]:
    marked = any(row.kind in ("added", "missing") for row in block.rows)
    indent, lines, at = "  " if marked else "", said_lines(block.folded), 0
    for row in block.rows:
        if row.kind == "same" and row.count > _CONTEXT:
            yield f'<span style="{QUIET}">… {row.count} lines as on {say_ranks(block.usual)} …</span>'
        elif row.kind == "same":
            yield from (f"{indent}{_line_html(*line)}" for line in lines[at : at + row.count])
        elif row.kind == "added":
            yield f"+ <b>{_line_html(row.channel, row.here)}</b>"
        elif row.kind == "missing":
            yield f'<span style="{QUIET}">- {_line_html(row.channel, shorten(row.there))}   ← elsewhere</span>'
        else:
            yield from _changed(row, indent)
        at += 0 if row.kind == "missing" else row.count


def _line_html(channel: str, text: str) -> str:
    if channel == "picture":
        return "<i>(a figure)</i>"
    shown = escape(text, quote=False).replace(OWN, f"<i>{OWN}</i>")
    return f'<span style="{STDERR_STYLE}">{shown}</span>' if channel == "stderr" else shown


def _changed(row: Row, indent: str) -> Iterator[str]:
    spans = near_changes(row)
    changed = [span for span in spans if span.there is not None]
    here = indent + "".join(map(_span, spans))
    if len(changed) == 1 and changed[0].here and changed[0].there:
        yield f'{here} <span style="{QUIET}">← {escape(changed[0].there, quote=False)} elsewhere</span>'
    else:
        yield here
        there = "".join(span.here if span.there is None else span.there for span in spans)
        yield f'<span style="{QUIET}">{indent}← {escape(there, quote=False)} elsewhere</span>'


def _span(span: Span) -> str:
    text = _line_html("", span.here)
    return text if span.there is None or not text else f'<b style="{CHANGED}">{text}</b>'
