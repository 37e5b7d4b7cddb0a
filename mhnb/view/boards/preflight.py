"""Format the preflight report as text and HTML: a table of hosts and checks, then each finding with its hint."""

from __future__ import annotations

from html import escape

from mhnb.core.preflight.facts import Cell, Finding, PreflightReport
from mhnb.core.ranks import pluralize
from mhnb.view.boards.tables import format_table_html, format_table_text
from mhnb.view.style import QUIET_STYLE, wrap_html
from mhnb.view.words import format_seconds

__all__ = ["format_preflight_html", "format_preflight_text"]

_CELL_MARKS = {"failure": " ✗", "warning": " !", "note": "", None: ""}
_FINDING_SIGNS = {"failure": "✗", "warning": "!", "note": "·"}


def format_preflight_text(report: PreflightReport) -> str:
    """Format the report as text.

    >>> from mhnb.core.preflight.facts import Column
    >>> print(format_preflight_text(PreflightReport(("a",), (Column("login", {0: Cell("ok")}),), ())))
    preflight · 1 host · all well
       login
    a  ok
    """
    lines = [_format_heading(report), format_table_text(*_build_table(report))]
    for finding in report.findings:
        lines.append(f"{_FINDING_SIGNS[finding.level]} {finding.text}")
        lines += [f"  {line}" for line in finding.fix.splitlines()]
    return "\n".join(lines)


def format_preflight_html(report: PreflightReport) -> str:
    """Format the report as HTML."""
    color = "" if report.ok else ' class="mhnb-bad"'
    table = format_table_html(*_build_table(report))
    return wrap_html(
        f"<div{color}><b>{escape(_format_heading(report))}</b></div>{table}{''.join(map(_format_finding_html, report.findings))}"
    )


def _format_finding_html(finding: Finding) -> str:
    hint = f'<div style="{QUIET_STYLE};padding-left:1em;white-space:pre-wrap">{escape(finding.fix, quote=False)}</div>'
    return f"<div>{_FINDING_SIGNS[finding.level]} {escape(finding.text, quote=False)}</div>{hint}"


def _format_heading(report: PreflightReport) -> str:
    counts = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for word in ("failure", "warning")
        if (count := sum(finding.level == word for finding in report.findings))
    ]
    hosts = pluralize(len(report.hosts), "host")
    cost = [] if report.duration_s is None else [format_seconds(report.duration_s)]
    return " · ".join(["preflight", hosts, ", ".join(counts) or "all well", *cost])


def _build_table(report: PreflightReport) -> tuple[list[str], list[list[str]]]:
    rows = [
        [name, *(_format_check(column.cells.get(at)) for column in report.columns)]
        for at, name in enumerate(report.hosts)
    ]
    return ["", *(column.header for column in report.columns)], rows


def _format_check(cell: Cell | None) -> str:
    return "·" if cell is None else f"{cell.text}{_CELL_MARKS[cell.level]}"
