"""Format the failure report of a cell as HTML.

The first failure is shown with its line, hint and traceback, then the other failures, then the ranks that only waited.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from mhnb.core.output.results import CellResult
from mhnb.core.ranks import describe_ranks
from mhnb.view.cell.digest import CellSummary
from mhnb.view.cell.failures import Failure
from mhnb.view.cell.folded import format_omitted_line, shorten_line
from mhnb.view.cell.text import format_failure_lines, format_trace_label, format_waited
from mhnb.view.cell.trace import collapse_traceback, has_extra_information, trim_traceback
from mhnb.view.mime import format_pre
from mhnb.view.style import FAILED_COLOR, QUIET_STYLE
from mhnb.view.words import RankLocations, format_hosts_of

__all__ = ["format_failure_report", "format_failure_summary", "format_ranks_html"]

_JUMP_SCRIPT = (
    "(function(b,n,t){var c=b.closest('.jp-Cell'),a=c&&[].slice.call(c.querySelectorAll('.jp-InputArea .cm-line')),"
    "h=a&&a.filter(function(l){return l.textContent.trim()===t}),"
    "l=h&&h.sort(function(x,y){return Math.abs(a.indexOf(x)-n)-Math.abs(a.indexOf(y)-n)})[0],"
    "p=l&&l.closest('.cm-content'),v=p&&((p.cmTile||p.cmView||{}).view);"
    "if(v){v.dispatch({selection:{anchor:v.posAtDOM(l)},scrollIntoView:true});v.focus()}"
    "else if(c){(l||c.querySelector('.jp-InputArea')||c).scrollIntoView({block:'center'})}})"
)
"""JavaScript that puts the cursor on the n-th line of the cell above, or the nearest one with the same text.

It uses nothing that would have to be loaded.
"""
_MAX_HEAD_LINES, _MAX_TAIL_LINES, _MAX_LINE_CHARS = 24, 8, 1000
"""Limits on what the report shows of a long message without a click."""
_LINK_STYLE = "all:unset;cursor:pointer;text-decoration:underline;text-underline-offset:2px"


def format_failure_report(result: CellResult, cell_summary: CellSummary, locations: RankLocations) -> str:
    """Format the failure report."""
    heading = f'<div><b class="mhnb-bad">✗ {escape(cell_summary.failure_heading)}</b></div>'
    failed = [failure for failure in cell_summary.failures if not failure.only_waited]
    parts = [
        _format_failure(f, result.seq, locations, first=at == 0, is_labelled=len(failed) > 1)
        for at, f in enumerate(failed)
    ]
    waited = [
        _format_waited(failure, result.seq, locations) for failure in cell_summary.failures if failure.only_waited
    ]
    return f'<div style="margin-bottom:4px;border-left:4px solid {FAILED_COLOR};padding-left:8px">{heading}{"".join(parts + waited)}</div>'


def _format_failure(failure: Failure, seq: int, locations: RankLocations, *, first: bool, is_labelled: bool) -> str:
    when = " (first)" if first else ""
    label = (
        f"<div>{format_ranks_html(failure.ranks, locations)}: {escape(failure.kind)}{when}</div>" if is_labelled else ""
    )
    body = format_failure_summary(failure, seq) + _format_trace(failure, is_first=first)
    return f'{label}<div style="{"padding-left:1em" if is_labelled else ""}">{body}</div>' if body else label


def _format_waited(failure: Failure, seq: int, locations: RankLocations) -> str:
    report = (
        _format_details("what the guard said", format_pre("\n".join(format_failure_lines(failure, f"cell {seq}"))))
        if failure.error
        else ""
    )
    return f"<div>{format_ranks_html(failure.ranks, locations)} {escape(format_waited(failure))}</div>{report}"


def format_failure_summary(failure: Failure, seq: int) -> str:
    """Format the cell's line, the message and the hint of a failure.

    The line's number is a button that moves the cursor to the line. The middle of a long message is collapsed.
    """
    lines = list(format_failure_lines(failure, f"cell {seq}"))
    error = failure.error
    if not lines or error is None:
        return ""
    line_label = f"cell {seq}, line {error.line}"
    short = _shorten_message(lines)
    html = format_pre("\n".join(short))
    if short != lines:
        html += _format_details("the whole message", format_pre("\n".join(lines)))
    if error.line is None or not lines[0].startswith(line_label):
        return html
    call = escape(f"{_JUMP_SCRIPT}(this,{error.line},{json.dumps((error.code or '').strip())})")
    button = (
        f'<button type="button" style="{_LINK_STYLE}" title="go to the line" onclick="{call}">{line_label}</button>'
    )
    return html.replace(line_label, button, 1)


def _shorten_message(lines: Sequence[str]) -> list[str]:
    """Shorten a message to its beginning and end, and each of its lines likewise."""
    shown = [shorten_line(line, _MAX_LINE_CHARS) for line in lines]
    head, middle, tail = shown[:_MAX_HEAD_LINES], shown[_MAX_HEAD_LINES:-_MAX_TAIL_LINES], shown[-_MAX_TAIL_LINES:]
    return [*head, format_omitted_line(middle, where="the fold below"), *tail] if len(middle) > 1 else shown


def _format_trace(failure: Failure, *, is_first: bool) -> str:
    error = failure.error
    if error is None or not error.traceback:
        return ""
    # the cell's own line is shown above; further frames of the user's are worth seeing without a click
    is_open = is_first and has_extra_information(error)
    inner = "".join(_format_trace_part(part.text, part.label) for part in collapse_traceback(trim_traceback(error)))
    return _format_details(format_trace_label(failure), inner, is_open=is_open)


def _format_trace_part(text: str, label: str) -> str:
    return _format_details(label, format_pre(text), indent="padding-left:2em") if label else format_pre(text)


def _format_details(label: str, inner: str, *, is_open: bool = False, indent: str = "") -> str:
    style = ";".join(filter(None, ("cursor:pointer", QUIET_STYLE, indent)))
    return f'<details{" open" if is_open else ""}><summary style="{style}">{escape(label)}</summary>{inner}</details>'


def format_ranks_html(ranks: Sequence[int], locations: RankLocations) -> str:
    """Format ranks, and their hosts if these are known and are not all hosts."""
    host = format_hosts_of(locations, ranks)
    where = f' <span style="{QUIET_STYLE}">{escape(host)}</span>' if host else ""
    return f"<b>{describe_ranks(ranks)}</b>{where}"
