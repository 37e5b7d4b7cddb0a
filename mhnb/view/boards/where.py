"""Format the hang report as text, and as HTML for the live view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from mhnb.core.explain.where import UNKNOWN, Place, ThreadPlace, WhereCard
from mhnb.core.ranks import say_ranks
from mhnb.view.mime import PRE_STYLE
from mhnb.view.words import format_seconds

__all__ = ["format_where_html", "format_where_text"]

_SEVERAL_CHARS = 110
_AT_WORK = ("compiling", "computing")
_WORDS = {
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


def format_where_text(card: WhereCard, *, name: str = "", ends: str = "the stop button or %mhjax interrupt") -> str:
    """Format which ranks wait where, which are missing and where those are, and how to end the cell.

    Args:
        card: the hang report.
        name: the cluster's name, for the command that shows the report in a terminal.
        ends: how the user can end the cell.
    """
    rows = list(_rows(card))
    width = max(len(head) for head, _ in rows)
    lines = [f"{head:<{width}} · {text}" for head, text in rows]
    return "\n".join([*lines, _last_line(card, name, ends)])


def format_where_html(card: WhereCard, *, name: str = "") -> str:
    """Format the report for the live view, below the cell's output.

    It names the buttons, because a command would wait behind the cell that it should interrupt.
    """
    text = escape(format_where_text(card, name=name, ends="the stop button or Interrupt"), quote=False)
    return f'<div style="border-left:3px solid #d9822b;margin:3px 0;padding-left:8px"><pre style="{PRE_STYLE}">{text}</pre></div>'


def _rows(card: WhereCard) -> Iterator[tuple[str, str]]:
    """Yield each place with its heading: ranks that wait first, then the ranks they wait for, then the others."""
    age = format_seconds(card.age_s)
    others = "elsewhere" if card.waiting else f"running {age}"
    heads = {rank: others for place in card.places for rank in place.ranks}
    heads |= dict.fromkeys(card.waiting, f"waiting {age}") | dict.fromkeys(card.absent, "absent")
    heads |= {rank: "unknown" for place in card.places if place.activity in UNKNOWN for rank in place.ranks}
    order = [f"waiting {age}", "absent", "unknown", others]
    split = [(head, ranks, place) for place in card.places for head, ranks in _split(place, heads)]
    shown = ""
    for head, ranks, place in sorted(split, key=lambda row: (order.index(row[0]), row[1])):
        yield ("" if head == shown else head), f"{say_ranks(ranks)} {_describe(place)}"
        for thread in place.threads:
            who = f"thread {thread.name}" if thread.count == 1 else f"{thread.count} threads {thread.name}"
            yield "", f"  {who} {_describe(thread)}"
        shown = head


def _split(place: Place, heads: dict[int, str]) -> list[tuple[str, tuple[int, ...]]]:
    """Split the ranks of a place by their heading, because ranks with different headings may have equal stacks."""
    words = dict.fromkeys(heads[rank] for rank in place.ranks)
    return [(word, tuple(rank for rank in place.ranks if heads[rank] == word)) for word in words]


def _describe(place: Place | ThreadPlace) -> str:
    """Format where a rank is, as `in sleep, data.py:31 read_shard ← line 3:  batch = next(batches)`."""
    word = _WORDS.get(place.activity)
    if word is None:
        word = f"in {place.what or 'a call'}" if place.what else _nameless(place.activity)
    elif place.what:
        word = f"{word} {'in ' if place.activity in _AT_WORK else ''}{place.what}"
    number = ""
    if isinstance(place, Place) and place.number is not None:
        number = f" (launch {place.number} of the cell)"
    code = place.code if len(place.code) <= _SEVERAL_CHARS else f"{place.code[: _SEVERAL_CHARS - 1]}…"
    line = f"line {place.line}:  {code}" if place.line is not None else ""
    at = " ← ".join(filter(None, [place.place, line]))
    return f"{word}{number}, {at}" if at else f"{word}{number}"


def _nameless(activity: str) -> str:
    return "in a call that waits" if activity == "blocked" else activity


def _last_line(card: WhereCard, name: str, ends: str) -> str:
    where = f" · mhnb where {name}" if name else ""
    return f"{_progress(card)} · {ends} ends it{where}"


def _progress(card: WhereCard) -> str:
    if not card.known:
        return "the ranks have not been looked at twice yet"
    if card.progress:
        return "progress between two looks" + _of(card)
    working = [rank for place in card.places if place.activity in _AT_WORK for rank in place.ranks]
    unknown = [rank for place in card.places if place.activity in UNKNOWN for rank in place.ranks]
    if working or unknown:
        at_work = [f"{say_ranks(sorted(working))} at work"] if working else []
        return ", ".join([*at_work, *([f"nothing is known of {say_ranks(sorted(unknown))}"] if unknown else [])])
    return "no progress between two looks"


def _of(card: WhereCard) -> str:
    moved: Sequence[int] = card.moved
    return f" on {say_ranks(moved)}" if moved and len(moved) < len(card.lines) else ""
