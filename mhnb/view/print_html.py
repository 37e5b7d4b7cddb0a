"""Print a document as HTML that is stored in the notebook and can be read without a kernel, script or style sheet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape

from mhnb.view.document import Code, Document, Drawing, Fold, Group, InHtml, Line, Part, Section, Table, Tone
from mhnb.view.html import QUIET_STYLE, format_fold, wrap_html, wrap_in_scroller
from mhnb.view.mime import format_pre
from mhnb.view.print_text import find_number_columns

_BEFORE: dict[Tone, str] = {
    "plain": "<div>",
    "heading": "<div>",
    "bad heading": '<div class="mhnb-bad">',
    "bad": '<div class="mhnb-bad">',
    "quiet": f'<div style="{QUIET_STYLE}">',
    "caption": f'<div style="{QUIET_STYLE}">',
    "advice": f'<div style="{QUIET_STYLE};padding-left:1em;white-space:pre-wrap">',
}
_SHORT_CHARS = 32
NO_BREAK_STYLE = ";white-space:nowrap"
"""Style of a cell that `find_widest_cells` returned."""
_LONG_STYLE = ";overflow-wrap:anywhere;min-width:8em"
"""Style of a longer cell: it may break inside a word, but has a minimum width.

Otherwise one long word would push the following cells out of sight, or the cell would become a narrow strip.
"""


def print_html(document: Document) -> str:
    """Return a document as HTML, with its outer element and the style sheet that it needs."""
    parts = print_parts(document)
    # Each section has an outer element of its own.
    return parts if document and all(isinstance(part, Section) for part in document) else wrap_html(parts)


def print_parts(document: Document) -> str:
    """Return a document as HTML for inside another view."""
    return "".join(map(_print_part, document))


def _print_part(part: Part) -> str:
    match part:
        case Line():
            return _print_line(part)
        case Table():
            return _print_table(part)
        case Code():
            return format_pre(part.text)
        case Fold():
            return format_fold(escape(part.label), print_parts(part.parts), is_open=part.is_open)
        case Section():
            return print_html(part.parts)
        case Drawing():
            return part.html
        case Group() | InHtml():
            return print_parts(part.parts)
        case _:
            return ""


def _print_line(line: Line) -> str:
    before = f'<div style="padding-left:{1.5 * line.indent}em">' if line.indent else _BEFORE[line.tone]
    text = escape(line.text, quote=False)
    return f"{before}<b>{text}</b></div>" if line.tone.endswith("heading") else f"{before}{text}</div>"


# -- tables


def _print_table(table: Table) -> str:
    """Return a table that keeps its alignment without a style sheet."""
    right, unbroken = find_number_columns(table.header, table.rows), find_widest_cells(table.rows)
    lines = [
        _print_row(table.header, right, set(), "th"),
        *(_print_row(row, right, unbroken[at], "td") for at, row in enumerate(table.rows)),
    ]
    return wrap_in_scroller(f'<table style="border-collapse:collapse;margin:2px 0">{"".join(lines)}</table>')


def _print_row(row: Sequence[str], right: set[int], unbroken: set[int], tag: str) -> str:
    top = ";vertical-align:top" if any(len(cell) > _SHORT_CHARS for cell in row) else ""
    cells = []
    for column, cell in enumerate(row):
        width = NO_BREAK_STYLE if column in unbroken else _LONG_STYLE if len(cell) > _SHORT_CHARS else ""
        style = f"text-align:{'right' if column in right else 'left'};padding:1px 10px 1px 0{top}{width}"
        # A heading without text would be announced as one.
        name = tag if cell else "td"
        cells.append(f'<{name} style="{style}">{escape(cell, quote=False)}</{name}>')
    return f"<tr>{''.join(cells)}</tr>"


def find_widest_cells(rows: Sequence[Sequence[str]]) -> Mapping[int, set[int]]:
    """Return, by row, the columns whose longest cell is in that row, if that cell is short.

    Such a cell does not wrap, so that its column is wide enough. Otherwise a long cell beside the short ones would squeeze them.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for column, cells in enumerate(zip(*rows, strict=True)):
        longest = max(range(len(cells)), key=lambda at: len(cells[at]))
        if len(cells[longest]) <= _SHORT_CHARS:
            found[longest].add(column)
    return found
