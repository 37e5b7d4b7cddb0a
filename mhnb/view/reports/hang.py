"""Format the communication report and the hang report as text and HTML.

The communication report is a table per program, totals, and the meaning of marks that are used.
The HTML of the hang report is for the live view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby

from mhnb.core.flight import describe_event
from mhnb.core.hang_report import RANK_WAITS, UNKNOWN_ACTIVITIES, HangReport, RankLocation, ThreadLocation
from mhnb.core.ranks import describe_ranks, pluralize, ranks_by_key
from mhnb.sharding.layout import format_nbytes
from mhnb.sharding.report import Collective, Report
from mhnb.view.html import QUIET_STYLE, format_seconds, wrap_html
from mhnb.view.mime import format_pre

_HEADER = ("axis", "count", "bytes/device", "across hosts", "line")
_IS_RIGHT_ALIGNED = (False, False, False, True, True, True, False)
_DEFINITION = "bytes/device: what one device contributes each time; across hosts: the part for another host. Totals include repeated runs."
_NOT_JITTED = (
    "not jitted: this is the program that jax.jit would create; a plain call launches its operations one by one"
)
_PRINTED_HEADING = "printed while it was traced (nothing has run):"
_RowCells = tuple[str, str, str, str, str, str, str]
"""op, shape, axis, count, bytes per device, bytes across hosts, line."""


def format_collectives_text(reports: Sequence[Report], *, why: bool = False) -> str:
    """Format reports as text.

    >>> print(format_collectives_text([Report("jit(f)", ())]))
    jit(f)  launches no collective
    """
    parts = [_format_report(report, why=why) for report in reports]
    notes = [*_format_mark_notes([row for report in reports for row in report.rows]), *_format_not_jitted_note(reports)]
    printed = [_PRINTED_HEADING, *(f"  {line}" for line in _printed_lines(reports))] if _printed_lines(reports) else []
    return "\n".join([*parts, *notes, *printed]) if parts else "no program of several ranks was launched"


def _format_not_jitted_note(reports: Sequence[Report]) -> list[str]:
    return [_NOT_JITTED] if any(report.is_plain for report in reports) else []


def _printed_lines(reports: Sequence[Report]) -> list[str]:
    return [line for report in reports for line in report.printed]


def _format_report(report: Report, *, why: bool) -> str:
    if not report.rows:
        return f"{_format_title(report)}  launches no collective"
    rows = [_row_cells(row) for row in report.rows]
    table: list[_RowCells] = [(_format_title(report), "", *_HEADER), *rows, *_total_rows(report)]
    widths = [max(len(cells[column]) for cells in table[1:]) for column in range(len(_IS_RIGHT_ALIGNED))]
    # The title may extend over the first two columns.
    widths = [max(width, len(table[0][column])) if column > 1 else width for column, width in enumerate(widths)]
    title_width = max(widths[0] + widths[1] + 5, len(table[0][0]))
    widths[1] += title_width - (widths[0] + widths[1] + 5)
    lines = [
        _align_row((table[0][0].ljust(title_width), *table[0][2:]), (title_width, *widths[2:]), _IS_RIGHT_ALIGNED[1:])
    ]
    for index, cells in enumerate(table[1:]):
        lines.append("  " + _align_row(cells, widths, _IS_RIGHT_ALIGNED))
        if why and index < len(report.rows) and (reason := report.rows[index].why) is not None:
            lines.append(f"      {reason}")
    return "\n".join(lines)


def _align_row(cells: Sequence[str], widths: Sequence[int], right_aligned: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right_aligned, strict=True)
    ]
    return "   ".join(padded).rstrip()


def _format_title(report: Report) -> str:
    return report.name if report.launches == 1 else f"{report.name}, launched {report.launches} times"


def _row_cells(row: Collective) -> _RowCells:
    mark = "≈ " if row.is_estimate else ""
    return (
        row.op + (" (async)" if row.is_async else ""),
        row.shape,
        _format_axis(row),
        _format_count(row),
        mark + format_nbytes(row.nbytes_per_device),
        (mark if row.nbytes_across_hosts else "") + format_nbytes(row.nbytes_across_hosts),
        "not known" if row.source is None else str(row.source),
    )


def _format_axis(row: Collective) -> str:
    name = ", ".join(row.axes)
    if not name:
        name = f"groups of {' and '.join(map(str, sorted({len(group) for group in row.groups})))}"
    part = "" if row.whole_axes or not row.axes else "part of "
    return f"{part}{name} ({'hosts' if row.crosses else 'inside'})"


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


def format_collectives_html(reports: Sequence[Report], *, why: bool = False) -> str:
    """Format reports as HTML.

    The table is readable without a style sheet. Each row opens to show why the collective is there.

    Args:
        reports: of programs.
        why: whether the rows are open from the start.
    """
    if not reports:
        return wrap_html(f'<span style="{QUIET_STYLE}">no program of several ranks was launched</span>')
    body = "".join(_format_report_html(report, why=why) for report in reports)
    rows = [row for report in reports for row in report.rows]
    # Without a row there are no columns to explain.
    notes = [
        *_format_mark_notes(rows),
        *_format_not_jitted_note(reports),
        *([_DEFINITION] if rows else []),
        *_format_ring_note(reports),
    ]
    quiet = "".join(f"<div>{escape(note, quote=False)}</div>" for note in notes)
    printed = (
        f'<div style="{QUIET_STYLE}">{_PRINTED_HEADING}</div>{format_pre(chr(10).join(_printed_lines(reports)))}'
        if _printed_lines(reports)
        else ""
    )
    return wrap_html(f'{body}<div style="{QUIET_STYLE}">{quiet}</div>{printed}')


def _format_ring_note(reports: Sequence[Report]) -> list[str]:
    sent, across = (sum(report.launches * report.ring_nbytes[part] for report in reports) for part in (0, 1))
    if not sent:
        return []
    return [
        f"If done in rings, a device sends {format_nbytes(sent)} in all, {format_nbytes(across)} of it to another host."
    ]


def _format_report_html(report: Report, *, why: bool) -> str:
    title = f"<b>{escape(_format_title(report), quote=False)}</b>"
    if not report.rows:
        return f"<div>{title} launches no collective</div>"
    head = _format_row_html(("", "", *_HEADER), "th")
    rows = "".join(_format_row_html(_row_cells(row), "td", row, why=why) for row in report.rows)
    totals = "".join(_format_row_html(cells, "td") for cells in _total_rows(report))
    return f'<div>{title}</div><table style="border-collapse:collapse;margin:2px 0">{head}{rows}{totals}</table>'


def _format_row_html(cells: Sequence[str], tag: str, row: Collective | None = None, *, why: bool = False) -> str:
    texts = [escape(cell, quote=False) for cell in cells]
    if row is not None:
        if row.why is not None:
            opening = "<details open>" if why else "<details>"
            texts[0] = f"{opening}<summary>{texts[0]}</summary>{escape(str(row.why), quote=False)}</details>"
        # A second cue beside the text: an axis that crosses hosts is bold.
        texts[2] = f"<b>{texts[2]}</b>" if row.crosses else texts[2]
    return f"<tr>{''.join(_format_cell_html(tag, text, place) for place, text in enumerate(texts))}</tr>"


def _format_cell_html(tag: str, text: str, column: int) -> str:
    # The first cell may hold a reason, which is long, so it may wrap.
    # A header without a text would be read aloud as an empty one.
    tag = tag if text else "td"
    style = f"text-align:{'right' if _IS_RIGHT_ALIGNED[column] else 'left'};vertical-align:top;padding:1px 10px 1px 0"
    return f'<{tag} style="{style}{"" if column == 0 else ";white-space:nowrap"}">{text}</{tag}>'


# -- the hang report


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


def format_hang_text(
    report: HangReport,
    *,
    name: str = "",
    how_to_end: str = "the stop button or %mhjax interrupt",
    max_places: int | None = None,
) -> str:
    """Format which ranks wait where, which are missing and where those are, and how to end the cell.

    While ranks are stopped in the debugger, a sentence about them comes first.

    Args:
        report: the hang report.
        name: the cluster's name, for the command that shows the report in a terminal.
        how_to_end: how the user can end the cell.
        max_places: number of places for each heading; None for all. If there are more, those that differ only in their line share one.
    """
    rows = list(_report_rows(report, max_places))
    width = max(len(row.heading) for row in rows)
    previous, lines = "", [describe_stop(report)] if report.stopped else []
    for row in rows:
        lines.append(f"{'' if row.heading == previous else row.heading:<{width}} · {row.text}")
        previous = row.heading
    return "\n".join([*lines, " · ".join(_last_words(report, name, how_to_end))])


def format_hang_html(report: HangReport, *, name: str = "", max_places: int | None = None) -> str:
    """Format the report for the live view, below the cell's output.

    It names the buttons, because a command would wait behind the cell that it should interrupt.
    """
    rows = list(_report_rows(report, max_places, where_all_are=": Where"))
    color = "#8c8c8c" if report.stopped else "#d9822b"
    top = format_stop_html(report) if report.stopped else ""
    body = "".join(
        _format_places_html(heading, [row.text for row in same])
        for heading, same in groupby(rows, key=lambda row: row.heading)
    )
    first, *words = _last_words(report, name, "the stop button or Interrupt")
    # The command stays in one piece, so that it can be copied.
    unbroken = "".join(f' · <span style="white-space:nowrap">{escape(word, quote=False)}</span>' for word in words)
    last = f'<tr style="background:none"><td colspan="2" style="{_PLACE_STYLE}">{escape(first, quote=False)}{unbroken}</td></tr>'
    return (
        f'<div class="mhnb-hang" style="border-left:3px solid {color};margin:3px 0;padding-left:8px;font-family:monospace">'
        f'{top}<table style="border-collapse:collapse;border:0;margin:0;font-size:1em">{body}{last}</table></div>'
    )


def format_stop_html(report: HangReport) -> str:
    """Format the sentence about ranks that are stopped in the debugger."""
    return f'<div style="{QUIET_STYLE}">{escape(describe_stop(report), quote=False)}</div>'


def describe_stop(report: HangReport) -> str:
    """Describe where ranks are stopped in the debugger, and which ranks wait for them; a sentence without an end.

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
    """Describe the ranks that wait for others; empty as long as that is a guess, or if no rank is waited for."""
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


_PLACE_STYLE = (
    "text-align:left;vertical-align:top;border:0;background:none;padding:0 1em 0 0;font-size:1em;font-weight:normal"
)


def _format_places_html(heading: str, texts: Sequence[str]) -> str:
    """Format the rows of one heading, which are in the error colour if others wait for their ranks."""
    bad = ' class="mhnb-bad"' if heading == _ABSENT else ""
    head = f'<th scope="rowgroup" rowspan="{len(texts)}" style="{_PLACE_STYLE};white-space:nowrap">{heading}</th>'
    rows = (
        f'<td style="{_PLACE_STYLE};white-space:pre-wrap;overflow-wrap:anywhere">{escape(text, quote=False)}</td>'
        for text in texts
    )
    return "".join(
        f'<tr{bad} style="background:none">{head if not at else ""}{row}</tr>' for at, row in enumerate(rows)
    )


@dataclass(frozen=True, slots=True)
class _PlaceRow:
    heading: str
    text: str


def _report_rows(report: HangReport, max_places: int | None, where_all_are: str = "") -> Iterator[_PlaceRow]:
    """Yield each place with its heading: ranks that wait first, then the ranks they wait for, then the others.

    Ranks that are stopped in the debugger come before them all, and then no rank is missing.

    `where_all_are` ends the row that says how many are not shown.
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
            yield _PlaceRow(
                head, f"{describe_ranks(each.ranks)} {_describe_location(each.first, each.lines, each.numbers)}"
            )
            for thread in each.first.threads:
                thread_label = f"thread {thread.name}" if thread.count == 1 else f"{thread.count} threads {thread.name}"
                yield _PlaceRow(head, f"  {thread_label} {_describe_location(thread)}")
            if head in (_ABSENT, "unknown"):
                yield from (_PlaceRow(head, f"  {text}") for text in _describe_last_events(report, each.ranks))
        if len(merged) > len(merged[:max_places]):
            more = pluralize(len(merged) - len(merged[:max_places]), "more place")
            yield _PlaceRow(head, f"… and {more}{where_all_are}")


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
        """Return the place, without the code if it is not the same for all of them."""
        place = self.places[0]
        return place if len({each.code for each in self.places}) == 1 else replace(place, code="")

    @property
    def lines(self) -> list[int]:
        return [place.line for place in self.places if place.line is not None]

    @property
    def numbers(self) -> list[int]:
        return [place.number for place in self.places if place.number is not None]


def _merge_lines(places: Sequence[_Places]) -> list[_Places]:
    """Merge places that differ only in the line and in the launch's number."""
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
    """Split the ranks of a place by their heading, because ranks with different headings may have equal stacks."""
    distinct = dict.fromkeys(headings[rank] for rank in place.ranks)
    return [(word, tuple(rank for rank in place.ranks if headings[rank] == word)) for word in distinct]


def _describe_location(
    place: RankLocation | ThreadLocation, lines: Sequence[int] = (), numbers: Sequence[int] = ()
) -> str:
    """Format where a rank is, as `in sleep, data.py:31 read_shard ← line 3:  batch = next(batches)`.

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
