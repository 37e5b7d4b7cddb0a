"""Format the failure report of a cell as HTML.

The first failure is shown with its line, hint and traceback, then the other failures, then the ranks that only waited.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from mhnb.core.output.results import CellResult
from mhnb.core.ranks import say_ranks
from mhnb.view.cell.digest import Digest
from mhnb.view.cell.failures import Failure
from mhnb.view.cell.folded import cut_line, left_out_line
from mhnb.view.cell.text import failure_lines, trace_label, waited_words
from mhnb.view.cell.trace import fold_traceback, says_more, trim_traceback
from mhnb.view.mime import pre
from mhnb.view.style import BAD, QUIET
from mhnb.view.words import Places, format_hosts_of

__all__ = ["failure_card", "failure_summary", "label_html"]

_JUMP = (
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
_HEAD_LINES, _TAIL_LINES, _LINE_CHARS = 24, 8, 1000
"""Limits on what the report shows of a long message without a click."""
_LINK = "all:unset;cursor:pointer;text-decoration:underline;text-underline-offset:2px"


def failure_card(result: CellResult, seen: Digest, places: Places) -> str:
    """Format the failure report."""
    heading = f'<div><b class="mhnb-bad">✗ {escape(seen.failure_heading)}</b></div>'
    failed = [failure for failure in seen.failures if not failure.waited]
    parts = [_failure(f, result.seq, places, first=at == 0, several=len(failed) > 1) for at, f in enumerate(failed)]
    waited = [_waited(failure, result.seq, places) for failure in seen.failures if failure.waited]
    return f'<div style="margin-bottom:4px;border-left:4px solid {BAD};padding-left:8px">{heading}{"".join(parts + waited)}</div>'


def _failure(failure: Failure, seq: int, places: Places, *, first: bool, several: bool) -> str:
    when = " (first)" if first else ""
    label = f"<div>{label_html(failure.ranks, places)}: {escape(failure.word)}{when}</div>" if several else ""
    body = failure_summary(failure, seq) + _trace(failure, is_first=first)
    return f'{label}<div style="{"padding-left:1em" if several else ""}">{body}</div>' if body else label


def _waited(failure: Failure, seq: int, places: Places) -> str:
    report = (
        _trace_details("what the guard said", pre("\n".join(failure_lines(failure, f"cell {seq}"))))
        if failure.error
        else ""
    )
    return f"<div>{label_html(failure.ranks, places)} {escape(waited_words(failure))}</div>{report}"


def failure_summary(failure: Failure, seq: int) -> str:
    """Format the cell's line, the message and the hint of a failure.

    The line's number is a button that moves the cursor to the line. The middle of a long message is collapsed.
    """
    lines = list(failure_lines(failure, f"cell {seq}"))
    error = failure.error
    if not lines or error is None:
        return ""
    place = f"cell {seq}, line {error.line}"
    short = _shorten(lines)
    html = pre("\n".join(short))
    if short != lines:
        html += _trace_details("the whole message", pre("\n".join(lines)))
    if error.line is None or not lines[0].startswith(place):
        return html
    call = escape(f"{_JUMP}(this,{error.line},{json.dumps((error.code or '').strip())})")
    button = f'<button type="button" style="{_LINK}" title="go to the line" onclick="{call}">{place}</button>'
    return html.replace(place, button, 1)


def _shorten(lines: Sequence[str]) -> list[str]:
    """Shorten a message to its beginning and end, and each of its lines likewise."""
    shown = [cut_line(line, _LINE_CHARS) for line in lines]
    head, middle, tail = shown[:_HEAD_LINES], shown[_HEAD_LINES:-_TAIL_LINES], shown[-_TAIL_LINES:]
    return [*head, left_out_line(middle, where="the fold below"), *tail] if len(middle) > 1 else shown


def _trace(failure: Failure, *, is_first: bool) -> str:
    error = failure.error
    if error is None or not error.traceback:
        return ""
    # the cell's own line is shown above; further frames of the user's are worth seeing without a click
    is_open = is_first and says_more(error)
    inner = "".join(_trace_part(part.text, part.label) for part in fold_traceback(trim_traceback(error)))
    return _trace_details(trace_label(failure), inner, is_open=is_open)


def _trace_part(text: str, label: str) -> str:
    return _trace_details(label, pre(text), indent="padding-left:2em") if label else pre(text)


def _trace_details(label: str, inner: str, *, is_open: bool = False, indent: str = "") -> str:
    style = ";".join(filter(None, ("cursor:pointer", QUIET, indent)))
    return f'<details{" open" if is_open else ""}><summary style="{style}">{escape(label)}</summary>{inner}</details>'


def label_html(ranks: Sequence[int], places: Places) -> str:
    """Format ranks, and their hosts if these are known and are not all hosts."""
    host = format_hosts_of(places, ranks)
    where = f' <span style="{QUIET}">{escape(host)}</span>' if host else ""
    return f"<b>{say_ranks(ranks)}</b>{where}"
