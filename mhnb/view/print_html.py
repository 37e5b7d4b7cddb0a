"""Print a document as HTML that needs no kernel, script or style."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from mhnb.view.document import (
    Card,
    CardTone,
    Cell,
    Code,
    Columns,
    Document,
    Drawing,
    Drawn,
    FieldLook,
    Fields,
    Fold,
    Frame,
    Group,
    HeadedRows,
    InHtml,
    InText,
    Line,
    Part,
    Problem,
    Progress,
    Section,
    SortableTable,
    Span,
    Table,
    Tiles,
    Tone,
    read_cell,
)
from mhnb.view.html import (
    BAR_CLASS,
    CHANGED_STYLE,
    QUIET_STYLE,
    STATE_COLORS,
    format_fold,
    format_sign,
    wrap_html,
    wrap_in_scroller,
)
from mhnb.view.mime import format_pre
from mhnb.view.print_text import find_number_columns

_CODE_STYLE = "font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere"
_INLINE_CODE_STYLE = "white-space:pre-wrap;overflow-wrap:anywhere"
_BEFORE: dict[Tone, str] = {
    "plain": "<div>",
    "heading": "<div>",
    "bad heading": '<div class="mhnb-bad">',
    "bad": '<div class="mhnb-bad">',
    "quiet": f'<div style="{QUIET_STYLE}">',
    "caption": f'<div style="{QUIET_STYLE}">',
    "advice": f'<div style="{QUIET_STYLE};padding-left:1em;white-space:pre-wrap">',
    "code": f'<div style="{_CODE_STYLE}">',
    "below a card": '<div style="padding:2px 0 2px 14px">',
}
_LINK_STYLE = "color:inherit;text-decoration:underline"
"""A page's own color of links may be readable on one background only."""
_CARD_STYLES: dict[CardTone, str] = {
    "right": STATE_COLORS["ended"],
    "not yet": f"{STATE_COLORS['waiting']};background-color:rgba(230,159,0,.12)",
    "open": STATE_COLORS["unknown"],
    "failed": STATE_COLORS["failed"],
}
"""The color of the line beside a card, never of text, and a tint."""
_FIELD_STYLE = "text-align:left;vertical-align:baseline;border:0;background:none;padding:1px 1em 1px 0"
_LABEL_STYLES: dict[FieldLook, str] = {
    "word": f";{QUIET_STYLE}",
    "words": f";{QUIET_STYLE};white-space:nowrap",
    "code": ";font-family:monospace;white-space:nowrap",
    "title": "",
}
_FRAME_STYLE = "margin:3px 0;padding-left:8px;font-family:monospace"
_PLACE_STYLE = "text-align:left;vertical-align:top;border:0;background:none;padding:0 1em 0 0"
_CHAR_EM = 0.52
"""Width of a character of a label, about, in most fonts of pages."""
_SHORT_CHARS = 32
_MARKED_STYLE = f";{CHANGED_STYLE}"
_NO_BREAK_STYLE = ";white-space:nowrap"
"""Style of a cell that `_find_widest_cells` returned."""
_LONG_STYLE = ";overflow-wrap:anywhere;min-width:8em"
"""Style of a longer cell: it may break inside a word, but has a minimum width.

Otherwise one long word would push the following cells out of sight, or the cell would become a narrow strip.
"""


def print_html(document: Document) -> str:
    """Return a document as HTML with its outer element and style sheet."""
    parts = list(_list_shown(document))
    if parts and all(isinstance(part, Section) for part in parts):
        # Each section has an outer element of its own.
        return print_parts(parts)
    return wrap_html(print_parts(parts), css="".join(part.css for part in parts if isinstance(part, Drawing)))


def _list_shown(document: Document) -> Iterator[Part]:
    """Yield the parts of a document, and those of the HTML only."""
    for part in document:
        if isinstance(part, InHtml | Drawn):
            yield from _list_shown(part.parts if isinstance(part, InHtml) else part.build())
        elif not isinstance(part, InText):
            yield part


def print_parts(document: Document) -> str:
    """Return a document as HTML for inside another view."""
    return "".join(map(_print_part, document))


def _print_part(part: Part) -> str:
    return _PRINTERS[type(part)](part)


def _print_inner(part: Group | InHtml) -> str:
    return print_parts(part.parts)


def _print_frame(frame: Frame) -> str:
    line = f"border-left:3px solid {STATE_COLORS['waiting' if frame.is_alarm else 'unknown']}"
    return f'<div class="mhnb-hang {BAR_CLASS}" style="{line};{_FRAME_STYLE}">{print_parts(frame.parts)}</div>'


def _print_card(card: Card) -> str:
    style = f"border-left:3px solid {_CARD_STYLES[card.tone]};padding:3px 10px;margin:2px 0 4px;overflow-wrap:anywhere"
    return f'<div class="{BAR_CLASS}" style="{style}">{print_parts(card.parts)}</div>'


def _print_columns(columns: Columns) -> str:
    style = "margin:0 24px 6px 0;min-width:0;max-width:100%"
    parts = "".join(f'<div style="{style}">{print_html(document)}</div>' for document in columns.documents)
    return f'<div style="display:flex;flex-wrap:wrap">{parts}</div>'


def _print_progress(progress: Progress) -> str:
    done = progress.done if isinstance(progress.done, int) else f"{progress.done:.3f}"
    bar = f'<progress max="{progress.total}" value="{done}"></progress>'
    return f"<div>{escape(progress.text, quote=False)} {bar}</div>"


def _print_line(line: Line) -> str:
    style = _format_bar(line.color) if line.color else f"padding-left:{1.5 * line.indent}em" if line.indent else ""
    before = f'<div style="{style}">' if style else _BEFORE[line.tone]
    return f"{before}{_print_words(line)}</div>"


def _print_words(line: Line) -> str:
    text = escape(line.text, quote=False) if line.tone == "advice" else _print_breaks(line.text)
    if line.sign:
        text = f"{format_sign(line.sign)} {text}".rstrip()
    if line.tone.endswith("heading"):
        # Beside a bar it is the label of a row.
        text = f"<b>{text}</b>" if line.color else f'<b class="mhnb-title">{text}</b>'
    return text + "".join(f"{' ' if span.gap else ''}{_print_span(span)}" for span in line.beside)


def _print_breaks(text: str) -> str:
    # A blank line would end the HTML where a notebook is converted to Markdown.
    return escape(text, quote=False).replace("\n", "<br>")


def _print_span(span: Span) -> str:
    text = escape(span.text, quote=False)
    if span.link:
        return f'<a href="{escape(span.link)}" style="{_LINK_STYLE}">{text}</a>'
    text = f"<b>{text}</b>" if span.is_strong else text
    text = f'<code style="{_INLINE_CODE_STYLE}">{text}</code>' if span.is_code else text
    return f'<span style="{QUIET_STYLE}">{text}</span>' if span.is_quiet else text


def _format_bar(color: str) -> str:
    return f"border-left:3px solid {color};padding-left:8px"


def _print_fold(fold: Fold) -> str:
    inner = print_parts(fold.parts)
    if isinstance(fold.label, str):
        return format_fold(escape(fold.label), inner, is_open=fold.is_open)
    height = ";padding:3px 0" if fold.is_high else ""
    summary = f'<summary style="cursor:pointer{height}">{_print_words(fold.label)}</summary>'
    return f"<details{' open' if fold.is_open else ''}>{summary}{inner}</details>"


def _print_tiles(tiles: Tiles) -> str:
    # As wide as the longest, so that they stand in columns although the number of a rank may have more digits.
    width = f"min-width:{max(map(len, tiles.texts)) * _CHAR_EM:.0f}em;font-variant-numeric:tabular-nums"
    # Block elements, so that they stay lines where styles are dropped.
    texts = "".join(
        f'<div style="{_format_bar(color)};{width};margin-right:14px;display:inline-block">{escape(text, quote=False)}</div> '
        for text, color in zip(tiles.texts, tiles.colors, strict=True)
    )
    return f"<div>{texts}</div>"


def _print_problem(problem: Problem) -> str:
    name, reason, source, message = (
        escape(text, quote=False) for text in (problem.name, problem.reason, problem.source, problem.message)
    )
    said = f'<div style="{QUIET_STYLE}">{source}: … {message}</div>' if message else ""
    return f'<div style="margin:3px 0"><div class="mhnb-bad">✗ <b>{name}</b>: {reason}</div>{said}</div>'


# -- tables


def _print_table(table: Table) -> str:
    """Return a table that keeps its alignment without a style sheet."""
    if table.numbers is not None:
        return _print_aligned_table(table, table.numbers)
    rows = [[read_cell(cell) for cell in row] for row in table.rows]
    right, unbroken = find_number_columns(table.header, rows), _find_widest_cells(rows)
    lines = [
        _print_row(table.header, right, set(), "th"),
        *(_print_row(row, right, unbroken[at], "td") for at, row in enumerate(table.rows)),
    ]
    return wrap_in_scroller(
        f'<table class="mhnb-table" style="border-collapse:collapse;margin:2px 0">{"".join(lines)}</table>'
    )


def _print_row(row: Sequence[str | Cell], right: set[int], unbroken: set[int], tag: str) -> str:
    lengths = [len(read_cell(cell)) for cell in row]
    top = ";vertical-align:top" if max(lengths) > _SHORT_CHARS else ""
    cells = []
    for column, (cell, length) in enumerate(zip(row, lengths, strict=True)):
        width = _NO_BREAK_STYLE if column in unbroken else _LONG_STYLE if length > _SHORT_CHARS else ""
        style = f"text-align:{'right' if column in right else 'left'};padding:1px 10px 1px 0{top}{width}"
        cells.append(_wrap_cell(_print_cell(cell), tag, style))
    # The color of errors is not readable on the stripes of every theme.
    plain = ' style="background:none"' if any(isinstance(cell, Cell) and cell.is_bad for cell in row) else ""
    return f"<tr{plain}>{''.join(cells)}</tr>"


def _wrap_cell(html: str, tag: str, style: str) -> str:
    # A heading without text would be announced as one.
    name = tag if html else "td"
    scope = ' scope="col"' if name == "th" else ""
    return f'<{name}{scope} style="{style}">{html}</{name}>'


def _print_aligned_table(table: Table, numbers: frozenset[int]) -> str:
    """Return a table whose first column alone wraps, for long details."""
    lines = []
    for tag, row in [("th", table.header), *(("td", row) for row in table.rows)]:
        cells = (
            _wrap_cell(
                _print_cell(cell),
                tag,
                f"text-align:{'right' if column in numbers else 'left'};vertical-align:baseline;padding:1px 10px 1px 0"
                f"{_NO_BREAK_STYLE if column else ''}",
            )
            for column, cell in enumerate(row)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return wrap_in_scroller(
        f'<table class="mhnb-table" style="border-collapse:collapse;margin:2px 0">{"".join(lines)}</table>'
    )


def _print_cell(cell: str | Cell) -> str:
    text = _print_breaks(read_cell(cell))
    if isinstance(cell, str):
        return text
    text = f"<b>{text}</b>" if cell.is_strong else text
    text = f'<span class="mhnb-bad">{text}</span>' if cell.is_bad and text else text
    opening = "<details open>" if cell.is_open else "<details>"
    return f"{opening}<summary>{text}</summary>{escape(cell.detail, quote=False)}</details>" if cell.detail else text


def _print_headed_rows(part: HeadedRows) -> str:
    rows = []
    for heading, texts in part.groups:
        bad = ' class="mhnb-bad"' if heading == part.bad_heading else ""
        style = f"{_PLACE_STYLE};white-space:nowrap"
        head = f'<th scope="rowgroup" rowspan="{len(texts)}" style="{style}">{escape(heading, quote=False)}</th>'
        rows += [
            f'<tr{bad} style="background:none">{"" if at else head}'
            f'<td style="{_PLACE_STYLE};white-space:pre-wrap;overflow-wrap:anywhere">{escape(text, quote=False)}</td></tr>'
            for at, text in enumerate(texts)
        ]
    if part.ending:
        first, *words = (escape(word, quote=False) for word in part.ending)
        ending = first + "".join(f' · <span style="white-space:nowrap">{word}</span>' for word in words)
        rows.append(f'<tr style="background:none"><td colspan="2" style="{_PLACE_STYLE}">{ending}</td></tr>')
    return f'<table class="mhnb-table" style="border-collapse:collapse;border:0;margin:0">{"".join(rows)}</table>'


def _print_fields(fields: Fields) -> str:
    heads = "".join(
        f'<th scope="col" style="{_FIELD_STYLE}">{escape(word, quote=False)}</th>'
        if word
        else f'<td style="{_FIELD_STYLE}"></td>'
        for word in fields.header
    )
    rows = [heads] if heads else []
    label_style = f"{_FIELD_STYLE}{_LABEL_STYLES[fields.look]}"
    for label, *values in fields.rows:
        cells = "".join(_print_value(value, fields.look) for value in values)
        rows.append(f'<th scope="row" style="{label_style}">{escape(read_cell(label), quote=False)}</th>{cells}')
    lines = "".join(f'<tr style="background:none">{row}</tr>' for row in rows)
    table = f'<table class="mhnb-table" style="border-collapse:collapse;border:0;margin:3px 0">{lines}</table>'
    return wrap_in_scroller(table) if fields.look == "title" else table


def _print_value(value: str | Span, look: FieldLook) -> str:
    if isinstance(value, Span):
        return f'<td style="{_FIELD_STYLE}">{_print_span(value)}</td>'
    style = _NO_BREAK_STYLE if look == "title" else f";{_CODE_STYLE}"
    return f'<td style="{_FIELD_STYLE}{style}">{_print_breaks(value)}</td>'


def _find_widest_cells(rows: Sequence[Sequence[str]]) -> Mapping[int, set[int]]:
    """Return the columns by the row of their longest cell, if short.

    Such a cell does not wrap, so that its column is wide enough. Otherwise a long cell beside the short ones would squeeze them.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for column, cells in enumerate(zip(*rows, strict=True)):
        longest = max(range(len(cells)), key=lambda at: len(cells[at]))
        if len(cells[longest]) <= _SHORT_CHARS:
            found[longest].add(column)
    return found


# -- tables that a click sorts


SORT_SCRIPT = (
    "var h=this.parentNode,n=h.cellIndex,t=h.closest('table').tBodies[0],u=h.getAttribute('aria-sort')!='ascending';"
    "h.parentNode.querySelectorAll('th').forEach(function(e){e.removeAttribute('aria-sort')});"
    "h.setAttribute('aria-sort',u?'ascending':'descending');"
    "function k(r){var c=r.cells[n],v=c.getAttribute('data-v');return v==null?c.textContent:+v}"
    "Array.from(t.rows).sort(function(a,b){var x=k(a),y=k(b);return (x<y?-1:x>y?1:0)*(u?1:-1)})"
    ".forEach(function(r){t.appendChild(r)})"
)
KEY_SCRIPT = "if(event.key=='Enter'||event.key==' '){event.preventDefault();this.onclick()}"


def _print_sortable_table(table: SortableTable) -> str:
    numbers = [any(key is not None for key in column) for column in zip(*table.keys, strict=True)]
    heads = "".join(
        _print_sort_heading(word, is_number=is_number)
        for word, is_number in zip(table.header, numbers or [False] * len(table.header), strict=True)
    )
    widest = _find_widest_cells(table.rows)
    rows = "".join(_print_sortable_row(table, at, widest[at]) for at in range(len(table.rows)))
    return wrap_in_scroller(
        f'<table class="mhnb-table" style="border-collapse:collapse"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _print_sort_heading(word: str, *, is_number: bool) -> str:
    if not word:
        return "<td></td>"
    act = f'role="button" tabindex="0" onclick="{escape(SORT_SCRIPT)}" onkeydown="{escape(KEY_SCRIPT)}"'
    side = "right" if is_number else "left"
    name = f'<span {act} title="sort">{escape(word, quote=False)}</span>'
    return f'<th scope="col" style="text-align:{side};padding:1px 10px 1px 0">{name}</th>'


def _print_sortable_row(table: SortableTable, at: int, unbroken: set[int]) -> str:
    cells = []
    for column, (cell, key) in enumerate(zip(table.rows[at], table.keys[at], strict=True)):
        style = f"text-align:{'left' if key is None else 'right'};padding:1px 10px 1px 0"
        style += _NO_BREAK_STYLE if column in unbroken else ""
        style += _MARKED_STYLE if (at, column) in table.marked else ""
        cells.append(f'<td style="{style}"{_format_key(key)}>{escape(cell, quote=False)}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _format_key(key: float | None) -> str:
    return "" if key is None else f' data-v="{key}"'


_PRINTERS: Mapping[type[Part], Callable[[Any], str]] = {
    Line: _print_line,
    Table: _print_table,
    SortableTable: _print_sortable_table,
    HeadedRows: _print_headed_rows,
    Fields: _print_fields,
    Code: lambda code: format_pre(code.text),
    Fold: _print_fold,
    Group: _print_inner,
    Frame: _print_frame,
    Card: _print_card,
    Columns: _print_columns,
    Section: lambda section: print_html(section.parts),
    Problem: _print_problem,
    Progress: _print_progress,
    Tiles: _print_tiles,
    Drawing: lambda drawing: drawing.html,
    InText: lambda _: "",
    InHtml: _print_inner,
    Drawn: lambda drawn: print_parts(drawn.build()),
}
