"""The preflight report: a table of checks, then findings with hints."""

from __future__ import annotations

from mhnb.core.preflight_facts import PreflightReport, ReportCell
from mhnb.core.ranks import pluralize
from mhnb.view.document import Document, Line, Table
from mhnb.view.html import format_seconds

_CELL_MARKS = {"failure": " ✗", "warning": " !", "note": "", None: ""}
_FINDING_SIGNS = {"failure": "✗", "warning": "!", "note": "·"}


def build_preflight(report: PreflightReport) -> Document:
    """Build the report.

    >>> from mhnb.core.preflight_facts import Column
    >>> from mhnb.view.print_text import print_text
    >>> print(print_text(build_preflight(PreflightReport(("a",), (Column("login", {0: ReportCell("ok")}),), ()))))
    preflight · 1 host · all well
       login
    a  ok
    """
    rows = [
        [name, *(_format_check(column.cells.get(at)) for column in report.columns)]
        for at, name in enumerate(report.hosts)
    ]
    findings = []
    for finding in report.findings:
        findings.append(Line(f"{_FINDING_SIGNS[finding.level]} {finding.text}"))
        findings += [Line(finding.fix, "advice")] if finding.fix else []
    heading = Line(_format_heading(report), "heading" if report.ok else "bad heading")
    return [heading, Table(["", *(column.header for column in report.columns)], rows), *findings]


def _format_heading(report: PreflightReport) -> str:
    counts = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for word in ("failure", "warning")
        if (count := sum(finding.level == word for finding in report.findings))
    ]
    hosts = pluralize(len(report.hosts), "host")
    cost = [] if report.duration_s is None else [format_seconds(report.duration_s)]
    return " · ".join(["preflight", hosts, ", ".join(counts) or "all well", *cost])


def _format_check(cell: ReportCell | None) -> str:
    return "·" if cell is None else f"{cell.text}{_CELL_MARKS[cell.level]}"
