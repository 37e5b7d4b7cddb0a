"""The preflight report: a table of checks, then findings with hints."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.preflight_facts import Finding, PreflightReport, ReportCell
from mhnb.core.ranks import pluralize
from mhnb.view.document import Document, Line, Table
from mhnb.view.html import format_seconds

_CELL_MARKS = {"failure": " ✗", "warning": " !", "note": "", None: ""}
_FINDING_SIGNS = {"failure": "✗", "warning": "!", "note": "·"}


_MAX_ERROR_HOSTS, _MAX_ERROR_FINDINGS = 5, 4
"""What the error of a start shows. The report itself lists all hosts and findings."""


def build_preflight_error(report: PreflightReport) -> Document:
    """Build an error of the report, with the first hosts that failed."""
    failed = {at for column in report.columns for at, cell in column.cells.items() if cell.level == "failure"}
    hosts = sorted(range(len(report.hosts)), key=lambda at: at not in failed)[:_MAX_ERROR_HOSTS]
    shown = report.findings[:_MAX_ERROR_FINDINGS]
    left_out = [
        pluralize(len(every) - len(some), f"more {noun}")
        for every, some, noun in ((report.hosts, hosts, "host"), (report.findings, shown, "finding"))
        if len(every) > len(some)
    ]
    doctor = "run %mhjax doctor (in a shell: mhnb doctor) with the same flags to see all"
    rest = [Line(f"… {' and '.join(left_out)}: {doctor}", "quiet")] if left_out else []
    return [_build_heading(report), _build_table(report, sorted(hosts)), *_build_findings(shown), *rest]


def build_preflight(report: PreflightReport) -> Document:
    """Build the report.

    >>> from mhnb.core.preflight_facts import Column
    >>> from mhnb.view.print_text import print_text
    >>> print(print_text(build_preflight(PreflightReport(("a",), (Column("login", {0: ReportCell("ok")}),), ()))))
    preflight · 1 host · all well
       login
    a  ok
    """
    table = _build_table(report, range(len(report.hosts)))
    return [_build_heading(report), table, *_build_findings(report.findings)]


def _build_heading(report: PreflightReport) -> Line:
    return Line(_format_heading(report), "heading" if report.ok else "bad heading")


def _build_table(report: PreflightReport, hosts: Sequence[int]) -> Table:
    """Build the rows of hosts, given by their position."""
    rows = [[report.hosts[at], *(_format_check(column.cells.get(at)) for column in report.columns)] for at in hosts]
    return Table(["", *(column.header for column in report.columns)], rows)


def _build_findings(findings: Sequence[Finding]) -> Document:
    lines = []
    for finding in findings:
        lines.append(Line(f"{_FINDING_SIGNS[finding.level]} {finding.text}"))
        lines += [Line(finding.fix, "advice")] if finding.fix else []
    return [*lines]


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
