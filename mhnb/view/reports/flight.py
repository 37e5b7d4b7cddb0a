"""The reports of the flight recorder and of stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mhnb.core.flight import (
    Divergence,
    FlightEvent,
    FlightReport,
    LaunchSide,
    NameCell,
    RankFlight,
    describe_event,
    wall_time_s,
)
from mhnb.core.ranks import describe_ranks, pluralize, ranks_by_key
from mhnb.core.stragglers import RankDelays, Stragglers, describe_standing_out
from mhnb.view.document import Document, Drawing, Drawn, InText, Line, Section, Table, Tone
from mhnb.view.drawings.delays import draw_delays
from mhnb.view.html import format_delay, format_seconds

_EVENT_HEADER = ("time", "event", "cell", "line", "launch", "program", "ranks")
_SHOWN_EVENTS = 40
"""Events of one rank that are shown, the last ones."""


# -- the report of all ranks


def build_flight(report: FlightReport) -> Document:
    """Build the report of all ranks: differences, last events, stragglers."""
    stragglers: Document = []
    if report.stragglers is not None:
        stragglers = [InText([Line("")]), Section(build_stragglers(report.stragglers))]
    return [
        Line(_format_heading(report), "heading"),
        *_list_divergences(report),
        *map(Line, _format_notes(report)),
        Line("last event of each rank", "caption"),
        _last_events(report),
        *stragglers,
    ]


def _format_heading(report: FlightReport) -> str:
    count = sum(len(flight.events) for flight in report.flights)
    return f"{report.name} · flight recorder · {pluralize(len(report.flights), 'rank')} · {pluralize(count, 'event')}"


def _list_divergences(report: FlightReport) -> list[Line]:
    """List the first difference and the last, which explains hangs and deaths."""
    if not report.divergences:
        return [Line("the ranks launched the same programs, as far as they are recorded")]
    first, *others = report.divergences
    tone: Tone = "bad" if any(divergence.has_ended for divergence in report.divergences) else "plain"
    lines = _list_sides(report, first, "first difference: ", tone)
    if len(others) > 1:
        lines.append(Line(f"… and in {pluralize(len(others) - 1, 'other cell')}", tone))
    return lines + (_list_sides(report, others[-1], "last difference: ", tone) if others else [])


def _list_sides(report: FlightReport, divergence: Divergence, which: str, tone: Tone) -> list[Line]:
    cell, ranks = report.name_cell(divergence.cell), describe_ranks(divergence.participants)
    # Where a rank has not ended the cell, it may still come, and nothing has differed yet.
    launch = f"launch {divergence.launch} of {ranks}"
    return [
        Line(f"{which}{cell}, {launch}" if divergence.has_ended else f"{cell} has not ended. At {launch}:", tone),
        *(Line(f"{describe_ranks(side.ranks)}: {_describe_side(side)}", indent=1) for side in divergence.sides),
    ]


def _describe_side(side: LaunchSide) -> str:
    if side.event is not None:
        return describe_event(side.event)
    last = "no event in this cell" if side.last is None else f"last: {describe_event(side.last)}"
    return f"had not reached it; {last}"


def _format_notes(report: FlightReport) -> list[str]:
    notes = []
    if cells := report.unguarded_cells:
        names = ", ".join(report.name_cell(cell) for cell in cells[:5])
        more = f" and {len(cells) - 5} more" if len(cells) > 5 else ""
        notes.append(f"launches of {names}{more} were not recorded (--guard off)")
    problems = ranks_by_key({flight.rank: flight.problem for flight in report.flights if flight.problem})
    notes += [f"{describe_ranks(ranks)}: {problem}" for problem, ranks in problems.items()]
    torn = [flight.rank for flight in report.flights if flight.is_torn]
    if torn:
        notes.append(f"{describe_ranks(torn)}: the last event was only partly written, and is left out")
    return notes


def _last_events(report: FlightReport) -> Table:
    rows: list[Sequence[str]] = []
    for flight in report.flights:
        if flight.events:
            rows.append((str(flight.rank), *_event_cells(flight, flight.events[-1], report.name_cell)))
        else:
            rows.append((str(flight.rank), "", "no event", *[""] * (len(_EVENT_HEADER) - 2)))
    return Table(("rank", *_EVENT_HEADER), rows)


def _event_cells(flight: RankFlight, event: FlightEvent, name_cell: NameCell) -> tuple[str, ...]:
    time = datetime.fromtimestamp(wall_time_s(flight, event)).astimezone()
    return (
        f"{time:%H:%M:%S}.{time.microsecond // 1000:03d}",
        event.kind,
        name_cell(event.cell) if event.cell else "start",
        "" if event.line is None else str(event.line),
        "" if event.launch is None else str(event.launch),
        event.program,
        event.participants,
    )


# -- the events of one rank


def build_flights(report: FlightReport, ranks: Sequence[int]) -> Document:
    """Build the last events of some ranks."""
    return [Section(build_rank_flight(one, report.name_cell)) for one in report.flights if one.rank in ranks]


def build_rank_flight(flight: RankFlight, name_cell: NameCell) -> Document:
    """Build the last events of one rank."""
    if not flight.events:
        return [Line(f"rank {flight.rank}: {flight.problem or 'no event'}")]
    earlier = max(0, len(flight.events) - _SHOWN_EVENTS)
    more = f" · {pluralize(earlier, 'earlier event')}: --json FILE" if earlier else ""
    rows = [_event_cells(flight, event, name_cell) for event in flight.events[-_SHOWN_EVENTS:]]
    heading = f"rank {flight.rank} · {pluralize(len(flight.events), 'event')}{more}"
    return [Line(heading, "heading"), Table(_EVENT_HEADER, rows)]


# -- stragglers


_STRAGGLERS_HEADER = ("rank", "came last", "others waited", "share", "longest")


def build_stragglers(stragglers: Stragglers) -> Document:
    """Build the stragglers' report: a table, and bars or a chart."""
    rows = [_straggler_cells(row) for row in stragglers.ranks]
    bars = [(*cells, _format_bar(row.share)) for cells, row in zip(rows, stragglers.ranks, strict=True)]
    return [
        Line(_describe_launches(stragglers), "heading"),
        *map(Line, _straggler_notes(stragglers)),
        InText([Table((*_STRAGGLERS_HEADER, ""), bars)]),
        Drawn(lambda: [Table(_STRAGGLERS_HEADER, rows), Drawing(draw_delays(stragglers))]),
    ]


def _describe_launches(stragglers: Stragglers) -> str:
    what = stragglers.cell_name or "what the flight recorders hold"
    return f"{what} · {pluralize(stragglers.agreement_count, 'launch')} of several ranks in {format_seconds(stragglers.span_s)}"


def _straggler_notes(stragglers: Stragglers) -> list[str]:
    notes = [describe_standing_out(stragglers) or "no rank stands out"]
    if stragglers.clock_error_s:
        notes.append(f"times of different hosts may be wrong by {format_delay(stragglers.clock_error_s)}")
    if stragglers.dropped_count:
        notes.append(f"{stragglers.dropped_count} earlier launches are left out")
    return notes


def _straggler_cells(row: RankDelays) -> tuple[str, ...]:
    return (
        str(row.rank),
        f"{row.last_count} of {row.agreement_count}",
        format_delay(row.waited_s) if row.last_count else "",
        f"{row.share:.0%}" if row.last_count else "",
        format_delay(row.worst_s) if row.last_count else "",
    )


_BAR_CHARS = 24


def _format_bar(share: float) -> str:
    """Format a share as a bar; empty only if it is 0.

    >>> _format_bar(0.25), _format_bar(0.001), _format_bar(0)
    ('██████', '▏', '')
    """
    if share <= 0:
        return ""
    return "█" * int(share * _BAR_CHARS) or "▏"
