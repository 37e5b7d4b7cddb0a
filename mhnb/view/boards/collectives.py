"""Format the communication report as text and HTML: a table per program, totals, and the meaning of marks that are used."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mhnb.sharding.report import Collective, Report
from mhnb.view.mime import pre
from mhnb.view.style import QUIET, wrap
from mhnb.view.words import format_nbytes

__all__ = ["format_collectives_html", "format_collectives_text"]

_HEADER = ("axis", "count", "bytes/device", "across hosts", "line")
_RIGHT = (False, False, False, True, True, True, False)
_DEFINITION = "bytes/device: what one device puts in, each time; across hosts: the part of it for another host. Totals count the runs."
_PLAIN = "not jitted: this is the program that jax.jit would make of it; called as it is, it launches its operations one by one"
_PRINTED = "printed while it was traced (nothing has run):"
_Cells = tuple[str, str, str, str, str, str, str]
"""op, shape, axis, count, bytes per device, bytes across hosts, line."""


def format_collectives_text(reports: Sequence[Report], *, why: bool = False) -> str:
    """Format reports as text.

    >>> print(format_collectives_text([Report("jit(f)", ())]))
    jit(f)  launches no collective
    """
    parts = [_format_report(report, why=why) for report in reports]
    notes = [*_notes([row for report in reports for row in report.rows]), *_plain_note(reports)]
    printed = [_PRINTED, *(f"  {line}" for line in _printed(reports))] if _printed(reports) else []
    return "\n".join([*parts, *notes, *printed]) if parts else "no program of several ranks was launched"


def _plain_note(reports: Sequence[Report]) -> list[str]:
    return [_PLAIN] if any(report.is_plain for report in reports) else []


def _printed(reports: Sequence[Report]) -> list[str]:
    return [line for report in reports for line in report.printed]


def _format_report(report: Report, *, why: bool) -> str:
    if not report.rows:
        return f"{_title(report)}  launches no collective"
    rows = [_cells(row) for row in report.rows]
    table: list[_Cells] = [(_title(report), "", *_HEADER), *rows, *_totals(report)]
    widths = [max(len(cells[column]) for cells in table[1:]) for column in range(len(_RIGHT))]
    # The title may extend over the first two columns.
    widths = [max(width, len(table[0][column])) if column > 1 else width for column, width in enumerate(widths)]
    head = max(widths[0] + widths[1] + 5, len(table[0][0]))
    widths[1] += head - (widths[0] + widths[1] + 5)
    lines = [_line((table[0][0].ljust(head), *table[0][2:]), (head, *widths[2:]), _RIGHT[1:])]
    for place, cells in enumerate(table[1:]):
        lines.append("  " + _line(cells, widths, _RIGHT))
        if why and place < len(report.rows) and (because := report.rows[place].why) is not None:
            lines.append(f"      {because}")
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "   ".join(padded).rstrip()


def _title(report: Report) -> str:
    return report.name if report.launches == 1 else f"{report.name}, launched {report.launches} times"


def _cells(row: Collective) -> _Cells:
    mark = "≈ " if row.is_estimate else ""
    return (
        row.op + (" (async)" if row.is_async else ""),
        row.shape,
        _axis(row),
        _count(row),
        mark + format_nbytes(row.nbytes_per_device),
        (mark if row.nbytes_across_hosts else "") + format_nbytes(row.nbytes_across_hosts),
        "not known" if row.source is None else str(row.source),
    )


def _axis(row: Collective) -> str:
    name = ", ".join(row.axes)
    if not name:
        name = f"groups of {' and '.join(map(str, sorted({len(group) for group in row.groups})))}"
    part = "" if row.whole_axes or not row.axes else "part of "
    return f"{part}{name} ({'hosts' if row.crosses else 'inside'})"


def _count(row: Collective) -> str:
    if row.count is None:
        return f"{row.times} × ?" if row.times > 1 else "?"
    return f"≤ {row.count}" if row.at_most else str(row.count)


def _totals(report: Report) -> list[_Cells]:
    mark, each = _total_mark(report.rows), (report.nbytes_per_device, report.nbytes_across_hosts)
    inside, across = (mark + format_nbytes(nbytes) for nbytes in each)
    totals: list[_Cells] = [("total", "", "", "", inside, across, "")]
    if report.launches > 1:
        inside, across = (mark + format_nbytes(report.launches * nbytes) for nbytes in each)
        totals.append((f"of {report.launches} launches", "", "", "", inside, across, ""))
    return totals


def _total_mark(rows: Sequence[Collective]) -> str:
    more, less = any(row.count is None for row in rows), any(row.at_most for row in rows)
    if any(row.is_estimate for row in rows) or (more and less):
        return "≈ "
    return "≥ " if more else "≤ " if less else ""


def _notes(rows: Sequence[Collective]) -> list[str]:
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
        return wrap(f'<span style="{QUIET}">no program of several ranks was launched</span>')
    body = "".join(_report_html(report, why=why) for report in reports)
    rows = [row for report in reports for row in report.rows]
    # Without a row there are no columns to explain.
    notes = [*_notes(rows), *_plain_note(reports), *([_DEFINITION] if rows else []), *_rings(reports)]
    quiet = "".join(f"<div>{escape(note, quote=False)}</div>" for note in notes)
    printed = (
        f'<div style="{QUIET}">{_PRINTED}</div>{pre(chr(10).join(_printed(reports)))}' if _printed(reports) else ""
    )
    return wrap(f'{body}<div style="{QUIET}">{quiet}</div>{printed}')


def _rings(reports: Sequence[Report]) -> list[str]:
    sent, across = (sum(report.launches * report.ring_nbytes[part] for report in reports) for part in (0, 1))
    if not sent:
        return []
    return [
        f"If done in rings, a device sends {format_nbytes(sent)} in all, {format_nbytes(across)} of it to another host."
    ]


def _report_html(report: Report, *, why: bool) -> str:
    title = f"<b>{escape(_title(report), quote=False)}</b>"
    if not report.rows:
        return f"<div>{title} launches no collective</div>"
    head = _tr(("", "", *_HEADER), "th")
    rows = "".join(_tr(_cells(row), "td", row, why=why) for row in report.rows)
    totals = "".join(_tr(cells, "td") for cells in _totals(report))
    return f'<div>{title}</div><table style="border-collapse:collapse;margin:2px 0">{head}{rows}{totals}</table>'


def _tr(cells: Sequence[str], tag: str, row: Collective | None = None, *, why: bool = False) -> str:
    texts = [escape(cell, quote=False) for cell in cells]
    if row is not None:
        if row.why is not None:
            fold = "<details open>" if why else "<details>"
            texts[0] = f"{fold}<summary>{texts[0]}</summary>{escape(str(row.why), quote=False)}</details>"
        # A second cue beside the text: an axis that crosses hosts is bold.
        texts[2] = f"<b>{texts[2]}</b>" if row.crosses else texts[2]
    return f"<tr>{''.join(_cell(tag, text, place) for place, text in enumerate(texts))}</tr>"


def _cell(tag: str, text: str, place: int) -> str:
    # The first cell may hold a reason, which is long, so it may wrap.
    style = f"text-align:{'right' if _RIGHT[place] else 'left'};vertical-align:top;padding:1px 10px 1px 0"
    return f'<{tag} style="{style}{"" if place == 0 else ";white-space:nowrap"}">{text}</{tag}>'
