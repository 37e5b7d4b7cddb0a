"""Format the hang report as text, and as HTML for the live view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from mhnb.core.explain.where import UNKNOWN_ACTIVITIES, HangReport, RankLocation, ThreadLocation
from mhnb.core.ranks import describe_ranks
from mhnb.view.mime import PRE_STYLE
from mhnb.view.words import format_seconds

__all__ = ["format_hang_html", "format_hang_text"]

_MAX_CODE_CHARS = 110
_WORKING = ("compiling", "computing")
_ACTIVITY_WORDS = {
    "ended": "ended the cell",
    "outside": "not asked to run this cell (--ranks)",
    "unknown": "under way",
    "silent": "reports nothing: it is halted, or in one long call that lets nothing else run",
    "unseen": "reports nothing: mhnb's look at it failed, and the rank's log has the reason",
    "compiling": "compiling",
    "computing": "computing",
    "await": "awaiting",
    "error": "ended the cell by an error",
    "interrupted": "interrupted",
}


def format_hang_text(
    report: HangReport, *, name: str = "", how_to_end: str = "the stop button or %mhjax interrupt"
) -> str:
    """Format which ranks wait where, which are missing and where those are, and how to end the cell.

    Args:
        report: the hang report.
        name: the cluster's name, for the command that shows the report in a terminal.
        how_to_end: how the user can end the cell.
    """
    rows = list(_report_rows(report))
    width = max(len(head) for head, _ in rows)
    lines = [f"{head:<{width}} · {text}" for head, text in rows]
    return "\n".join([*lines, _format_last_line(report, name, how_to_end)])


def format_hang_html(report: HangReport, *, name: str = "") -> str:
    """Format the report for the live view, below the cell's output.

    It names the buttons, because a command would wait behind the cell that it should interrupt.
    """
    text = escape(format_hang_text(report, name=name, how_to_end="the stop button or Interrupt"), quote=False)
    return f'<div style="border-left:3px solid #d9822b;margin:3px 0;padding-left:8px"><pre style="{PRE_STYLE}">{text}</pre></div>'


def _report_rows(report: HangReport) -> Iterator[tuple[str, str]]:
    """Yield each place with its heading: ranks that wait first, then the ranks they wait for, then the others."""
    age = format_seconds(report.age_s)
    others = "elsewhere" if report.waiting else f"running {age}"
    headings = {rank: others for place in report.places for rank in place.ranks}
    headings |= dict.fromkeys(report.waiting, f"waiting {age}") | dict.fromkeys(report.absent, "absent")
    headings |= {
        rank: "unknown" for place in report.places if place.activity in UNKNOWN_ACTIVITIES for rank in place.ranks
    }
    order = [f"waiting {age}", "absent", "unknown", others]
    rows = [(head, ranks, place) for place in report.places for head, ranks in _split_by_heading(place, headings)]
    previous = ""
    for head, ranks, place in sorted(rows, key=lambda row: (order.index(row[0]), row[1])):
        yield ("" if head == previous else head), f"{describe_ranks(ranks)} {_describe_location(place)}"
        for thread in place.threads:
            thread_label = f"thread {thread.name}" if thread.count == 1 else f"{thread.count} threads {thread.name}"
            yield "", f"  {thread_label} {_describe_location(thread)}"
        previous = head


def _split_by_heading(place: RankLocation, headings: dict[int, str]) -> list[tuple[str, tuple[int, ...]]]:
    """Split the ranks of a place by their heading, because ranks with different headings may have equal stacks."""
    distinct = dict.fromkeys(headings[rank] for rank in place.ranks)
    return [(word, tuple(rank for rank in place.ranks if headings[rank] == word)) for word in distinct]


def _describe_location(place: RankLocation | ThreadLocation) -> str:
    """Format where a rank is, as `in sleep, data.py:31 read_shard ← line 3:  batch = next(batches)`."""
    word = _ACTIVITY_WORDS.get(place.activity)
    if word is None:
        word = f"in {place.what or 'a call'}" if place.what else _describe_unnamed(place.activity)
    elif place.what:
        word = f"{word} {'in ' if place.activity in _WORKING else ''}{place.what}"
    number = ""
    if isinstance(place, RankLocation) and place.number is not None:
        number = f" (launch {place.number} of the cell)"
    code = place.code if len(place.code) <= _MAX_CODE_CHARS else f"{place.code[: _MAX_CODE_CHARS - 1]}…"
    line = f"line {place.line}:  {code}" if place.line is not None else ""
    location = " ← ".join(filter(None, [place.place, line]))
    return f"{word}{number}, {location}" if location else f"{word}{number}"


def _describe_unnamed(activity: str) -> str:
    return "in a call that waits" if activity == "blocked" else activity


def _format_last_line(report: HangReport, name: str, how_to_end: str) -> str:
    command = f" · mhnb where {name}" if name else ""
    return f"{_format_progress(report)} · {how_to_end} ends it{command}"


def _format_progress(report: HangReport) -> str:
    if not report.known:
        return "the ranks have not been looked at twice yet"
    if report.progress:
        return "progress between two looks" + _format_moved_ranks(report)
    working = [rank for place in report.places if place.activity in _WORKING for rank in place.ranks]
    unknown = [rank for place in report.places if place.activity in UNKNOWN_ACTIVITIES for rank in place.ranks]
    if working or unknown:
        at_work = [f"{describe_ranks(sorted(working))} at work"] if working else []
        return ", ".join([*at_work, *([f"nothing is known of {describe_ranks(sorted(unknown))}"] if unknown else [])])
    return "no progress between two looks"


def _format_moved_ranks(report: HangReport) -> str:
    moved: Sequence[int] = report.moved
    return f" on {describe_ranks(moved)}" if moved and len(moved) < len(report.lines) else ""
