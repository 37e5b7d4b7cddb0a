"""The communication report: a table per program, totals and a legend."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.sharding.layout import format_nbytes
from mhnb.sharding.report import Collective, Report
from mhnb.view.document import Cell, Code, Document, InHtml, InText, Line, Part, Span, Table, read_cell


def _header(domain: str) -> tuple[str, ...]:
    return "axis", "count", "bytes/device", f"across {domain}s", "line"


_NUMBERS = frozenset((3, 4, 5))
"""Columns that are aligned to the right."""
_DEFINITION = "bytes/device: what one device contributes each time; across {0}s: the part for another {0}. Totals include repeated runs."
_NOT_JITTED = (
    "not jitted: this is the program that jax.jit would create; a plain call launches its operations one by one"
)
_PRINTED_HEADING = "printed while it was traced (nothing has run):"
_RowCells = tuple[str, str, str, str, str, str, str]
"""op, shape, axis, count, bytes per device, bytes across hosts, line."""


def build_collectives(reports: Sequence[Report], *, why: bool = False, domain: str = "host") -> Document:
    """Build the report of programs; in HTML, rows open to show reasons.

    Args:
        reports: of programs.
        why: whether the reasons are shown from the start.
        domain: the word for what the reports count as hosts.

    >>> from mhnb.view.print_text import print_text
    >>> print(print_text(build_collectives([Report("jit(f)", ())])))
    jit(f)  launches no collective
    """
    if not reports:
        return [Line("no program with a collective was launched", "quiet")]
    rows = [row for report in reports for row in report.rows]
    parts: list[Part] = [part for report in reports for part in _build_report(report, why=why, domain=domain)]
    parts += [Line(note, "quiet") for note in _format_mark_notes(rows)]
    if any(report.is_plain for report in reports):
        parts.append(Line(_NOT_JITTED, "quiet"))
    # Without a row there are no columns to explain.
    parts.append(
        InHtml(
            [
                Line(note, "quiet")
                for note in ([_DEFINITION.format(domain)] if rows else []) + _format_ring_note(reports, domain)
            ]
        )
    )
    if printed := [line for report in reports for line in report.printed]:
        parts += [Line(_PRINTED_HEADING, "quiet"), Code("\n".join(printed), indent=2)]
    return parts


def _build_report(report: Report, *, why: bool, domain: str) -> Document:
    title = report.name if report.launches == 1 else f"{report.name}, launched {report.launches} times"
    if not report.rows:
        return [Line(title, "heading", beside=[Span("launches no collective", gap=2)])]
    rows, totals = [_row_cells(row, domain) for row in report.rows], _total_rows(report)
    html_rows = [_add_reason(cells, row, why=why) for cells, row in zip(rows, report.rows, strict=True)]
    header = _header(domain)
    table = Table(("", "", *header), [*html_rows, *totals], _NUMBERS)
    return [InText([_format_table(title, report, table, why=why)]), InHtml([Line(title, "heading"), table])]


def _add_reason(cells: _RowCells, row: Collective, *, why: bool) -> Sequence[str | Cell]:
    op, shape, axis, *others = cells
    # A second cue beside the text: an axis that crosses hosts is bold.
    return [
        Cell(op, detail="" if row.why is None else str(row.why), is_open=why),
        shape,
        Cell(axis, is_strong=row.crosses),
        *others,
    ]


def _format_table(title: str, report: Report, table: Table, *, why: bool) -> Code:
    """Format the table as text, with the title in the header's line."""
    rows = [[read_cell(cell) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(table.header, *rows, strict=True)]
    title_width = max(widths[0] + widths[1] + 5, len(title))
    widths[1] = title_width - widths[0] - 5
    lines = [f"{title:{title_width}}   {_align_row(table.header[2:], widths, 2)}".rstrip()]
    for at, cells in enumerate(rows):
        lines.append(f"  {_align_row(cells, widths, 0)}")
        if why and at < len(report.rows) and (reason := report.rows[at].why) is not None:
            lines.append(f"      {reason}")
    return Code("\n".join(lines))


def _align_row(cells: Sequence[str], widths: Sequence[int], first: int) -> str:
    padded = [
        cell.rjust(widths[column]) if column in _NUMBERS else cell.ljust(widths[column])
        for column, cell in enumerate(cells, first)
    ]
    return "   ".join(padded).rstrip()


def _row_cells(row: Collective, domain: str) -> _RowCells:
    mark = "≈ " if row.is_estimate else ""
    return (
        row.op + (" (async)" if row.is_async else ""),
        row.shape,
        _format_axis(row, domain),
        _format_count(row),
        mark + format_nbytes(row.nbytes_per_device),
        (mark if row.nbytes_across_hosts else "") + format_nbytes(row.nbytes_across_hosts),
        "not known" if row.source is None else str(row.source),
    )


def _format_axis(row: Collective, domain: str) -> str:
    name = ", ".join(row.axes)
    if not name:
        name = f"groups of {' and '.join(map(str, sorted({len(group) for group in row.groups})))}"
    part = "" if row.whole_axes or not row.axes else "part of "
    return f"{part}{name} ({f'{domain}s' if row.crosses else 'inside'})"


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
        notes.append(
            "≈  an estimate: a ragged all-to-all moves at most this much; the actual size is known only at run time"
        )
    return notes


def _format_ring_note(reports: Sequence[Report], domain: str) -> list[str]:
    sent, across = (sum(report.launches * report.ring_nbytes[part] for report in reports) for part in (0, 1))
    if not sent:
        return []
    return [
        f"If done in rings, a device sends {format_nbytes(sent)} in all, {format_nbytes(across)} of it to another {domain}."
    ]
