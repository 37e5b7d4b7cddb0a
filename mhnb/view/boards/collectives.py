"""Format the communication report as text and HTML: a table per program, totals, and the meaning of marks that are used."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mhnb.sharding.layout import format_nbytes
from mhnb.sharding.report import Collective, Report
from mhnb.view.mime import format_pre
from mhnb.view.style import QUIET_STYLE, wrap_html

__all__ = ["format_collectives_html", "format_collectives_text"]

_HEADER = ("axis", "count", "bytes/device", "across hosts", "line")
_IS_RIGHT_ALIGNED = (False, False, False, True, True, True, False)
_DEFINITION = "bytes/device: what one device puts in, each time; across hosts: the part of it for another host. Totals count the runs."
_NOT_JITTED = "not jitted: this is the program that jax.jit would make of it; called as it is, it launches its operations one by one"
_PRINTED_HEADING = "printed while it was traced (nothing has run):"
_RowCells = tuple[str, str, str, str, str, str, str]
"""op, shape, axis, count, bytes per device, bytes across hosts, line."""


def format_collectives_text(reports: Sequence[Report], *, why: bool = False) -> str:
    """Format reports as text.

    >>> print(format_collectives_text([Report("jit(f)", ())]))
    jit(f)  launches no collective
    """
    parts = [_format_report(report, why=why) for report in reports]
    notes = [*_format_mark_notes([row for report in reports for row in report.rows]), *_format_not_jitted_note(reports)]
    printed = [_PRINTED_HEADING, *(f"  {line}" for line in _printed_lines(reports))] if _printed_lines(reports) else []
    return "\n".join([*parts, *notes, *printed]) if parts else "no program of several ranks was launched"


def _format_not_jitted_note(reports: Sequence[Report]) -> list[str]:
    return [_NOT_JITTED] if any(report.is_plain for report in reports) else []


def _printed_lines(reports: Sequence[Report]) -> list[str]:
    return [line for report in reports for line in report.printed]


def _format_report(report: Report, *, why: bool) -> str:
    if not report.rows:
        return f"{_format_title(report)}  launches no collective"
    rows = [_row_cells(row) for row in report.rows]
    table: list[_RowCells] = [(_format_title(report), "", *_HEADER), *rows, *_total_rows(report)]
    widths = [max(len(cells[column]) for cells in table[1:]) for column in range(len(_IS_RIGHT_ALIGNED))]
    # The title may extend over the first two columns.
    widths = [max(width, len(table[0][column])) if column > 1 else width for column, width in enumerate(widths)]
    title_width = max(widths[0] + widths[1] + 5, len(table[0][0]))
    widths[1] += title_width - (widths[0] + widths[1] + 5)
    lines = [
        _align_row((table[0][0].ljust(title_width), *table[0][2:]), (title_width, *widths[2:]), _IS_RIGHT_ALIGNED[1:])
    ]
    for index, cells in enumerate(table[1:]):
        lines.append("  " + _align_row(cells, widths, _IS_RIGHT_ALIGNED))
        if why and index < len(report.rows) and (reason := report.rows[index].why) is not None:
            lines.append(f"      {reason}")
    return "\n".join(lines)


def _align_row(cells: Sequence[str], widths: Sequence[int], right_aligned: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right_aligned, strict=True)
    ]
    return "   ".join(padded).rstrip()


def _format_title(report: Report) -> str:
    return report.name if report.launches == 1 else f"{report.name}, launched {report.launches} times"


def _row_cells(row: Collective) -> _RowCells:
    mark = "≈ " if row.is_estimate else ""
    return (
        row.op + (" (async)" if row.is_async else ""),
        row.shape,
        _format_axis(row),
        _format_count(row),
        mark + format_nbytes(row.nbytes_per_device),
        (mark if row.nbytes_across_hosts else "") + format_nbytes(row.nbytes_across_hosts),
        "not known" if row.source is None else str(row.source),
    )


def _format_axis(row: Collective) -> str:
    name = ", ".join(row.axes)
    if not name:
        name = f"groups of {' and '.join(map(str, sorted({len(group) for group in row.groups})))}"
    part = "" if row.whole_axes or not row.axes else "part of "
    return f"{part}{name} ({'hosts' if row.crosses else 'inside'})"


def _format_count(row: Collective) -> str:
    if row.count is None:
        return f"{row.times} × ?" if row.times > 1 else "?"
    return f"≤ {row.count}" if row.at_most else str(row.count)


def _total_rows(report: Report) -> list[_RowCells]:
    mark, sizes = _total_mark(report.rows), (report.nbytes_per_device, report.nbytes_across_hosts)
    inside, across = (mark + format_nbytes(nbytes) for nbytes in sizes)
    totals: list[_RowCells] = [("total", "", "", "", inside, across, "")]
    if report.launches > 1:
        inside, across = (mark + format_nbytes(report.launches * nbytes) for nbytes in sizes)
        totals.append((f"of {report.launches} launches", "", "", "", inside, across, ""))
    return totals


def _total_mark(rows: Sequence[Collective]) -> str:
    more, less = any(row.count is None for row in rows), any(row.at_most for row in rows)
    if any(row.is_estimate for row in rows) or (more and less):
        return "≈ "
    return "≥ " if more else "≤ " if less else ""


def _format_mark_notes(rows: Sequence[Collective]) -> list[str]:
    """Format an explanation of each mark that is used."""
    notes = []
    if any(row.count is None for row in rows):
        notes.append("?  in a loop whose length XLA does not state: counted once in the total")
    if any(row.at_most for row in rows):
        notes.append("≤  in a branch that may not be taken: counted in the total")
    if any(row.is_estimate and row.op != "ragged-all-to-all" for row in rows):
        notes.append("≈  an estimate: CPU sends 16-bit floats as f32, other devices send half")
    if any(row.op == "ragged-all-to-all" for row in rows):
        notes.append("≈  an estimate: a ragged all-to-all moves at most this, how much is known at run time")
    return notes


def format_collectives_html(reports: Sequence[Report], *, why: bool = False) -> str:
    """Format reports as HTML.

    The table is readable without a style sheet. Each row opens to show why the collective is there.

    Args:
        reports: of programs.
        why: whether the rows are open from the start.
    """
    if not reports:
        return wrap_html(f'<span style="{QUIET_STYLE}">no program of several ranks was launched</span>')
    body = "".join(_format_report_html(report, why=why) for report in reports)
    rows = [row for report in reports for row in report.rows]
    # Without a row there are no columns to explain.
    notes = [
        *_format_mark_notes(rows),
        *_format_not_jitted_note(reports),
        *([_DEFINITION] if rows else []),
        *_format_ring_note(reports),
    ]
    quiet = "".join(f"<div>{escape(note, quote=False)}</div>" for note in notes)
    printed = (
        f'<div style="{QUIET_STYLE}">{_PRINTED_HEADING}</div>{format_pre(chr(10).join(_printed_lines(reports)))}'
        if _printed_lines(reports)
        else ""
    )
    return wrap_html(f'{body}<div style="{QUIET_STYLE}">{quiet}</div>{printed}')


def _format_ring_note(reports: Sequence[Report]) -> list[str]:
    sent, across = (sum(report.launches * report.ring_nbytes[part] for report in reports) for part in (0, 1))
    if not sent:
        return []
    return [
        f"If done in rings, a device sends {format_nbytes(sent)} in all, {format_nbytes(across)} of it to another host."
    ]


def _format_report_html(report: Report, *, why: bool) -> str:
    title = f"<b>{escape(_format_title(report), quote=False)}</b>"
    if not report.rows:
        return f"<div>{title} launches no collective</div>"
    head = _format_row_html(("", "", *_HEADER), "th")
    rows = "".join(_format_row_html(_row_cells(row), "td", row, why=why) for row in report.rows)
    totals = "".join(_format_row_html(cells, "td") for cells in _total_rows(report))
    return f'<div>{title}</div><table style="border-collapse:collapse;margin:2px 0">{head}{rows}{totals}</table>'


def _format_row_html(cells: Sequence[str], tag: str, row: Collective | None = None, *, why: bool = False) -> str:
    texts = [escape(cell, quote=False) for cell in cells]
    if row is not None:
        if row.why is not None:
            opening = "<details open>" if why else "<details>"
            texts[0] = f"{opening}<summary>{texts[0]}</summary>{escape(str(row.why), quote=False)}</details>"
        # A second cue beside the text: an axis that crosses hosts is bold.
        texts[2] = f"<b>{texts[2]}</b>" if row.crosses else texts[2]
    return f"<tr>{''.join(_format_cell_html(tag, text, place) for place, text in enumerate(texts))}</tr>"


def _format_cell_html(tag: str, text: str, column: int) -> str:
    # The first cell may hold a reason, which is long, so it may wrap.
    style = f"text-align:{'right' if _IS_RIGHT_ALIGNED[column] else 'left'};vertical-align:top;padding:1px 10px 1px 0"
    return f'<{tag} style="{style}{"" if column == 0 else ";white-space:nowrap"}">{text}</{tag}>'
