"""The hang report: where ranks wait, and which ranks are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from mhnb.core.flight import describe_event
from mhnb.core.hang_report import RANK_WAITS, UNKNOWN_ACTIVITIES, HangReport, RankLocation, ThreadLocation
from mhnb.core.ranks import describe_ranks, pluralize, ranks_by_key
from mhnb.view.document import Cell, Document, Fold, Frame, HeadedRows, InHtml, InText, Line, Table
from mhnb.view.html import format_seconds

_MAX_CODE_CHARS = 110
_ABSENT = "missing"
"""The heading of ranks that others wait for."""
MAX_PLACES = 4
"""Number of places that are shown for each heading while the cell runs; all are shown on request."""
_WORKING = ("compiling", "computing")
_STOPPED = "stopped"
"""The heading of ranks that are stopped in the debugger."""
_MAX_STOP_LINES = 3
"""Ranks that are stopped at more different lines are described together, with the first and the last line."""
_ACTIVITY_WORDS = {
    "stopped": "in the debugger",
    "ended": "ended the cell",
    "outside": "does not run this cell (--ranks)",
    "unknown": "running",
    "silent": "reports nothing: it is suspended, or in a long native call",
    "unseen": "reports nothing: mhnb could not sample its stack; the reason is in the rank's log",
    "compiling": "compiling",
    "computing": "computing",
    "await": "awaiting",
    "callback": "in a callback of",
    "error": "ended the cell with an error",
    "interrupted": "interrupted",
}


def build_hang(
    report: HangReport,
    *,
    name: str = "",
    how_to_end: str | None = "the stop button or %mhjax interrupt",
    max_places: int | None = None,
    where_all_are: str = "",
) -> Document:
    """Build the hang report, with how to end the cell.

    While ranks are stopped in the debugger, a sentence about them comes first.

    Args:
        report: the hang report.
        name: the cluster's name, for the command that shows the report in a terminal.
        how_to_end: how the user can end the cell; None if it has ended.
        max_places: number of places for each heading; None for all. If there are more, those that differ only in their line share one.
        where_all_are: the end of the row that says how many are not shown.
    """
    rows = _report_rows(report, max_places, where_all_are)
    groups = [(heading, [row.line for row in same]) for heading, same in groupby(rows, key=lambda row: row.heading)]
    stop = [Line(describe_stop(report), "quiet")] if report.stopped else []
    ending = [] if how_to_end is None else _last_words(report, name, how_to_end)
    places = HeadedRows(groups, ending, bad_heading=_ABSENT)
    return [Frame([*stop, places], is_alarm=not report.stopped)]


def build_where(report: HangReport, *, name: str, is_shell: bool = False) -> Document:
    """Build the answer of `where`: a table of all places in HTML.

    Args:
        report: the hang report.
        name: the cluster's name.
        is_shell: whether it is printed in a shell, from which the notebook's stop button is elsewhere.
    """
    how_to_end = "the stop button or Ctrl-C in its notebook" if is_shell else "the stop button or %mhjax interrupt"
    text = build_hang(report, name="" if is_shell else name, how_to_end=how_to_end)
    rows, before = [], ""
    for row in _report_rows(report, None, ""):
        state = "" if row.heading == before else row.heading
        rows.append((Cell(state, is_bad=row.heading == _ABSENT), row.ranks, row.text.strip()))
        before = row.heading
    stop = [Line(describe_stop(report), "quiet")] if report.stopped else []
    ending = Line(" · ".join(_last_words(report, name, how_to_end)), "quiet")
    heading = Line(f"{name} · where the ranks are", "heading")
    return [InText(text), InHtml([heading, *stop, Table(("state", "ranks", "where"), rows), ending])]


def build_past_hang(report: HangReport | None) -> Document:
    """Build a fold: where the ranks of a stopped cell were stuck."""
    if report is None:
        return []
    label = Line("where the ranks were when the cell was stopped", "quiet")
    return [Fold(label, build_hang(report, how_to_end=None, max_places=MAX_PLACES))]


def describe_stop(report: HangReport) -> str:
    """Describe ranks stopped in the debugger and those that wait for them.

    >>> at = RankLocation((2,), "stopped", line=4), RankLocation((0, 1, 3), "agreement", "jit(f)", 6)
    >>> lines = {0: 6, 1: 6, 2: 4, 3: 6}
    >>> describe_stop(HangReport(5, (0, 1, 3), (2,), "jit(f)", lines, 9.0, False, known=True, places=at, stopped=(2,)))
    'rank 2 is stopped in the debugger at line 4; ranks 0-1,3 wait for it: jit(f), line 6'
    """
    return "; ".join(filter(None, (_describe_stop_lines(report), _describe_waiting(report))))


def _describe_stop_lines(report: HangReport) -> str:
    by_line: dict[int | None, list[int]] = {}
    for rank in report.stopped:
        by_line.setdefault(report.lines.get(rank), []).append(rank)
    groups = [(ranks, [] if line is None else [line]) for line, ranks in by_line.items()]
    if len(groups) > _MAX_STOP_LINES or (None in by_line and len(groups) > 1):
        lines = [line for line in by_line if line is not None]
        groups = [(list(report.stopped), [] if None in by_line else lines)]
    (ranks, lines), *others = groups
    verb = "is" if len(ranks) == 1 else "are"
    first = f"{describe_ranks(ranks)} {verb} stopped in the debugger{_format_at(lines)}"
    return ", ".join([first, *(f"{describe_ranks(ranks)}{_format_at(lines)}" for ranks, lines in others)])


def _format_at(lines: Sequence[int]) -> str:
    return f" at {_format_span('line', 'lines', lines)}" if lines else ""


def _describe_waiting(report: HangReport) -> str:
    """Describe the ranks that wait for others; empty unless it is certain."""
    certain = {rank for place in report.places if _waits_for_ranks(place) for rank in place.ranks}
    ranks = [rank for rank in report.waiting if rank in certain]
    if not (report.known and ranks and report.absent):
        return ""
    who = describe_ranks(report.absent)
    if report.absent == report.stopped:
        who = "it" if len(report.absent) == 1 else "them"
    lines = [line for rank in ranks if (line := report.lines.get(rank)) is not None]
    where = ", ".join(filter(None, (report.launch, _format_span("line", "lines", lines) if lines else "")))
    verb = "waits" if len(ranks) == 1 else "wait"
    return f"{describe_ranks(ranks)} {verb} for {who}{f': {where}' if where else ''}"


def _waits_for_ranks(place: RankLocation) -> bool:
    return place.activity in RANK_WAITS or any(thread.activity in RANK_WAITS for thread in place.threads)


@dataclass(frozen=True, slots=True)
class _PlaceRow:
    heading: str
    ranks: str
    """As `ranks 0-2`; empty for a further line of the same ranks."""
    text: str

    @property
    def line(self) -> str:
        return f"{self.ranks} {self.text}" if self.ranks else self.text


def _report_rows(report: HangReport, max_places: int | None, where_all_are: str) -> Iterator[_PlaceRow]:
    """Yield each place with its heading: waiting ranks, missing ones, then others.

    Ranks that are stopped in the debugger come before them all, and then no rank is missing.
    """
    age = format_seconds(report.age_s)
    others = "elsewhere" if report.waiting else f"running {age}"
    headings = {rank: others for place in report.places for rank in place.ranks}
    absent = others if report.stopped else _ABSENT
    headings |= dict.fromkeys(report.waiting, f"waiting {age}") | dict.fromkeys(report.absent, absent)
    headings |= {
        rank: "unknown" for place in report.places if place.activity in UNKNOWN_ACTIVITIES for rank in place.ranks
    }
    headings |= dict.fromkeys(report.stopped, _STOPPED)
    order = [_STOPPED, f"waiting {age}", _ABSENT, "unknown", others]
    found = [(head, ranks, place) for place in report.places for head, ranks in _split_by_heading(place, headings)]
    found.sort(key=lambda row: (order.index(row[0]), row[1]))
    for head, same in groupby(found, key=lambda row: row[0]):
        places = [_Places(ranks, (place,)) for _, ranks, place in same]
        merged = places if max_places is None or len(places) <= max_places else _merge_lines(places)
        for each in merged[:max_places]:
            yield _PlaceRow(head, describe_ranks(each.ranks), _describe_location(each.first, each.lines, each.numbers))
            for thread in each.first.threads:
                thread_label = f"thread {thread.name}" if thread.count == 1 else f"{thread.count} threads {thread.name}"
                yield _PlaceRow(head, "", f"  {thread_label} {_describe_location(thread)}")
            if head in (_ABSENT, "unknown"):
                yield from (_PlaceRow(head, "", f"  {text}") for text in _describe_last_events(report, each.ranks))
        if len(merged) > len(merged[:max_places]):
            more = pluralize(len(merged) - len(merged[:max_places]), "more place")
            yield _PlaceRow(head, "", f"… and {more}{where_all_are}")


def _describe_last_events(report: HangReport, ranks: Sequence[int]) -> list[str]:
    events = {rank: describe_event(report.last_events[rank]) for rank in ranks if rank in report.last_events}
    return [
        f"last event{'' if len(own) == len(ranks) else f' of {describe_ranks(own)}'}: {text}"
        for text, own in ranks_by_key(events).items()
    ]


@dataclass(frozen=True, slots=True)
class _Places:
    """Places that are shown together, with their ranks."""

    ranks: tuple[int, ...]
    places: tuple[RankLocation, ...]

    @property
    def first(self) -> RankLocation:
        """Return the first place, without its code if the places' codes differ."""
        place = self.places[0]
        return place if len({each.code for each in self.places}) == 1 else replace(place, code="")

    @property
    def lines(self) -> list[int]:
        return [place.line for place in self.places if place.line is not None]

    @property
    def numbers(self) -> list[int]:
        return [place.number for place in self.places if place.number is not None]


def _merge_lines(places: Sequence[_Places]) -> list[_Places]:
    """Merge places that differ only in line and launch number."""
    merged: dict[RankLocation, list[_Places]] = {}
    for each in places:
        key = replace(each.first, ranks=(), line=None if each.lines == [] else 0, code="", number=None)
        merged.setdefault(key, []).append(each)
    return [
        _Places(
            tuple(rank for each in same for rank in each.ranks), tuple(place for each in same for place in each.places)
        )
        for same in merged.values()
    ]


def _split_by_heading(place: RankLocation, headings: dict[int, str]) -> list[tuple[str, tuple[int, ...]]]:
    """Split a place's ranks by heading, because equal stacks may have several."""
    distinct = dict.fromkeys(headings[rank] for rank in place.ranks)
    return [(word, tuple(rank for rank in place.ranks if headings[rank] == word)) for word in distinct]


def _describe_location(
    place: RankLocation | ThreadLocation, lines: Sequence[int] = (), numbers: Sequence[int] = ()
) -> str:
    """Format where a rank is.

    As `in sleep, data.py:31 read_shard ← line 3:  batch = next(batches)`.

    Args:
        place: where it is.
        lines: the lines, if other ranks are at the same place in other lines.
        numbers: the numbers of the launches, likewise.
    """
    word = _ACTIVITY_WORDS.get(place.activity)
    if word is None:
        word = f"in {place.what or 'a call'}" if place.what else _describe_unnamed(place.activity)
    elif place.what:
        word = f"{word} {'in ' if place.activity in _WORKING else ''}{place.what}"
    number = ""
    if isinstance(place, RankLocation) and place.number is not None:
        number = f" ({_format_span('launch', 'launches', numbers or [place.number])} of the cell)"
    code = place.code if len(place.code) <= _MAX_CODE_CHARS else f"{place.code[: _MAX_CODE_CHARS - 1]}…"
    line = ""
    if place.line is not None:
        span = _format_span("line", "lines", lines or [place.line])
        line = f"{span}:  {code}" if code or len(set(lines)) < 2 else span
    location = " ← ".join(filter(None, [place.place, line]))
    return f"{word}{number}, {location}" if location else f"{word}{number}"


def _format_span(one: str, many: str, numbers: Sequence[int]) -> str:
    first, last = min(numbers), max(numbers)
    return f"{one} {first}" if first == last else f"{many} {first}-{last}"


def _describe_unnamed(activity: str) -> str:
    return "in a call that waits" if activity == "blocked" else activity


def _last_words(report: HangReport, name: str, how_to_end: str) -> list[str]:
    command = [f"mhnb where {name}"] if name else []
    if report.stopped:
        # The others make no progress because they wait, and `stop` would be ambiguous.
        moved = [_format_moved_ranks(report)] if report.progress else []
        return [*moved, f"end the cell with {how_to_end}", *command]
    return [_format_progress(report), f"stop it with {how_to_end}", *command]


def _format_progress(report: HangReport) -> str:
    if not report.known:
        return "collecting status"
    if report.progress:
        return _format_moved_ranks(report)
    working = [rank for place in report.places if place.activity in _WORKING for rank in place.ranks]
    unknown = [rank for place in report.places if place.activity in UNKNOWN_ACTIVITIES for rank in place.ranks]
    if working or unknown:
        at_work = [f"{describe_ranks(sorted(working))} working"] if working else []
        return ", ".join([*at_work, *([f"{describe_ranks(sorted(unknown))}: no report"] if unknown else [])])
    return "no progress"


def _format_moved_ranks(report: HangReport) -> str:
    moved: Sequence[int] = report.moved
    who = describe_ranks(moved) if moved and len(moved) < len(report.lines) else "the ranks"
    return f"{who} {'is' if who.startswith('rank ') else 'are'} making progress"
