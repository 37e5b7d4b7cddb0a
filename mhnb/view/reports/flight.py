"""Show the flight recorder's report and the lateness of ranks, as text and as HTML with a small chart.

The chart is SVG without scripts: how late each rank came to each launch. A table beside it has the same facts for those who do not
see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from html import escape

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
from mhnb.core.stragglers import Lateness, RankLateness, describe_standing_out
from mhnb.view.html import QUIET_STYLE, format_seconds, wrap_html
from mhnb.view.reports.tables import format_table_html, format_table_text

_EVENT_HEADER = ("time", "event", "cell", "line", "launch", "program", "ranks")
_SHOWN_EVENTS = 40
"""Events of one rank that are shown, the last ones."""


# -- the report of all ranks


def format_flight_text(report: FlightReport) -> str:
    """Format what all ranks recorded as text: where they first differed, who came last, and the last event of each."""
    header, rows = _last_events(report)
    return "\n".join(
        [
            _format_heading(report),
            *_format_divergences(report),
            *_format_notes(report),
            "last event of each rank:",
            format_table_text(header, rows),
        ]
    )


def format_flight_html(report: FlightReport) -> str:
    """Format what all ranks recorded as HTML."""
    style = ' class="mhnb-bad"' if any(divergence.has_ended for divergence in report.divergences) else ""
    lines = [
        f"<div><b>{escape(_format_heading(report), quote=False)}</b></div>",
        *(_format_difference_html(line, style) for line in _format_divergences(report)),
        *(f"<div>{escape(line, quote=False)}</div>" for line in _format_notes(report)),
        f'<div style="{QUIET_STYLE}">last event of each rank</div>',
    ]
    return wrap_html("".join(lines) + format_table_html(*_last_events(report)))


def _format_difference_html(line: str, style: str) -> str:
    if line.startswith("  "):
        style = ' style="padding-left:1.5em"'
    return f"<div{style}>{escape(line.strip(), quote=False)}</div>"


def _format_heading(report: FlightReport) -> str:
    count = sum(len(flight.events) for flight in report.flights)
    return f"{report.name} · flight recorder · {pluralize(len(report.flights), 'rank')} · {pluralize(count, 'event')}"


def _format_divergences(report: FlightReport) -> list[str]:
    """Format the first difference, and that of the last cell with one: the last is what a hang or a death came from."""
    if not report.divergences:
        return ["the ranks launched the same programs, as far as they are recorded"]
    first, *others = report.divergences
    lines = _format_divergence(report, first, "first difference: ")
    if len(others) > 1:
        lines.append(f"… and in {pluralize(len(others) - 1, 'other cell')}")
    return lines + (_format_divergence(report, others[-1], "last difference: ") if others else [])


def _format_divergence(report: FlightReport, divergence: Divergence, which: str) -> list[str]:
    cell, ranks = report.name_cell(divergence.cell), describe_ranks(divergence.participants)
    # Where a rank has not ended the cell, it may still come, and nothing has differed yet.
    launch = f"launch {divergence.launch} of {ranks}"
    return [
        f"{which}{cell}, {launch}" if divergence.has_ended else f"{cell} has not ended. At {launch}:",
        *(f"  {describe_ranks(side.ranks)}: {_describe_side(side)}" for side in divergence.sides),
    ]


def _describe_side(side: LaunchSide) -> str:
    if side.event is not None:
        return describe_event(side.event)
    last = "no event in this cell" if side.last is None else f"last: {describe_event(side.last)}"
    return f"had not reached it; {last}"


def _format_notes(report: FlightReport) -> list[str]:
    notes = []
    if report.lateness is not None:
        notes.append(describe_standing_out(report.lateness) or _describe_last(report.lateness))
        if report.lateness.clock_error_s:
            notes.append(f"times of different hosts may be wrong by {_format_delay(report.lateness.clock_error_s)}")
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


def _describe_last(lateness: Lateness) -> str:
    rows = sorted((row for row in lateness.ranks if row.last_count), key=lambda row: -row.last_count)
    of = f" of {pluralize(lateness.agreement_count, 'launch')}"
    counts = [f"rank {row.rank} came last at {row.last_count}{'' if at else of}" for at, row in enumerate(rows[:4])]
    more = f", and {pluralize(len(rows) - 4, 'other rank')}" if len(rows) > 4 else ""
    return f"{', '.join(counts)}{more}; no rank stands out"


def _last_events(report: FlightReport) -> tuple[Sequence[str], list[Sequence[str]]]:
    rows: list[Sequence[str]] = []
    for flight in report.flights:
        if flight.events:
            rows.append((str(flight.rank), *_event_cells(flight, flight.events[-1], report.name_cell)))
        else:
            rows.append((str(flight.rank), "", "no event", *[""] * (len(_EVENT_HEADER) - 2)))
    return ("rank", *_EVENT_HEADER), rows


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


def format_flights_text(report: FlightReport, ranks: Sequence[int]) -> str:
    """Format the last events of some ranks as text."""
    chosen = [flight for flight in report.flights if flight.rank in ranks]
    return "\n".join(format_rank_flight_text(flight, report.name_cell) for flight in chosen)


def format_flights_html(report: FlightReport, ranks: Sequence[int]) -> str:
    """Format the last events of some ranks as HTML."""
    chosen = [flight for flight in report.flights if flight.rank in ranks]
    return "".join(format_rank_flight_html(flight, report.name_cell) for flight in chosen)


def format_rank_flight_text(flight: RankFlight, name_cell: NameCell) -> str:
    """Format the last events of one rank as text."""
    if not flight.events:
        return f"rank {flight.rank}: {flight.problem or 'no event'}"
    return "\n".join([_format_rank_heading(flight), format_table_text(*_rank_table(flight, name_cell))])


def format_rank_flight_html(flight: RankFlight, name_cell: NameCell) -> str:
    """Format the last events of one rank as HTML."""
    if not flight.events:
        return wrap_html(escape(format_rank_flight_text(flight, name_cell), quote=False))
    heading = f"<div><b>{escape(_format_rank_heading(flight), quote=False)}</b></div>"
    return wrap_html(heading + format_table_html(*_rank_table(flight, name_cell)))


def _format_rank_heading(flight: RankFlight) -> str:
    earlier = max(0, len(flight.events) - _SHOWN_EVENTS)
    more = f" · {pluralize(earlier, 'earlier event')}: --json FILE" if earlier else ""
    return f"rank {flight.rank} · {pluralize(len(flight.events), 'event')}{more}"


def _rank_table(flight: RankFlight, name_cell: NameCell) -> tuple[Sequence[str], list[Sequence[str]]]:
    return _EVENT_HEADER, [_event_cells(flight, event, name_cell) for event in flight.events[-_SHOWN_EVENTS:]]


# -- lateness


_LATENESS_HEADER = ("rank", "came last", "others waited", "share", "longest")


def format_stragglers_text(lateness: Lateness) -> str:
    """Format the lateness of the ranks as text, with a bar for each rank's share."""
    header, rows = _lateness_table(lateness)
    bars = [(*row, _format_bar(each.share)) for row, each in zip(rows, lateness.ranks, strict=True)]
    return "\n".join(
        [
            _describe_launches(lateness),
            *_lateness_notes(lateness),
            format_table_text((*header, ""), bars),
        ]
    )


def format_stragglers_html(lateness: Lateness) -> str:
    """Format the lateness of the ranks as HTML, with a chart of each launch."""
    lines = [f"<div><b>{escape(_describe_launches(lateness), quote=False)}</b></div>"]
    lines += [f"<div>{escape(note, quote=False)}</div>" for note in _lateness_notes(lateness)]
    return wrap_html("".join(lines) + format_table_html(*_lateness_table(lateness)) + draw_delays(lateness))


def _describe_launches(lateness: Lateness) -> str:
    what = lateness.cell_name or "what the flight recorders hold"
    return f"{what} · {pluralize(lateness.agreement_count, 'launch')} of several ranks in {format_seconds(lateness.span_s)}"


def _lateness_notes(lateness: Lateness) -> list[str]:
    notes = [describe_standing_out(lateness) or "no rank stands out"]
    if lateness.clock_error_s:
        notes.append(f"times of different hosts may be wrong by {_format_delay(lateness.clock_error_s)}")
    if lateness.dropped_count:
        notes.append(f"{lateness.dropped_count} earlier launches are left out")
    return notes


def _lateness_table(lateness: Lateness) -> tuple[Sequence[str], list[Sequence[str]]]:
    return _LATENESS_HEADER, [_lateness_cells(row) for row in lateness.ranks]


def _lateness_cells(row: RankLateness) -> tuple[str, ...]:
    return (
        str(row.rank),
        f"{row.last_count} of {row.agreement_count}",
        _format_delay(row.waited_s) if row.last_count else "",
        f"{row.share:.0%}" if row.last_count else "",
        _format_delay(row.worst_s) if row.last_count else "",
    )


def _format_delay(seconds: float) -> str:
    """Format a duration that is often below a millisecond.

    >>> _format_delay(0.00042), _format_delay(0.05), _format_delay(1.44)
    ('0.4 ms', '50 ms', '1.4 s')
    """
    return f"{1000 * seconds:.1f} ms" if seconds < 0.00995 else format_seconds(seconds)


_BAR_CHARS = 24


def _format_bar(share: float) -> str:
    """Format a share as a bar; at least one mark if it is not 0.

    >>> _format_bar(0.25), _format_bar(0.001), _format_bar(0)
    ('██████', '▏', '')
    """
    if share <= 0:
        return ""
    return "█" * int(share * _BAR_CHARS) or "▏"


_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 420, 96, 48, 16
_MAX_POINTS = 200


def draw_delays(lateness: Lateness) -> str:
    """Draw how long after the first rank each rank came to each launch: one line per rank, those that stand out in color."""
    most = max((delay for own in lateness.delays_s.values() for delay in own if delay == delay), default=0.0)  # noqa: PLR0124
    if most <= 0:
        return ""
    count = lateness.agreement_count
    ordered = sorted(lateness.delays_s, key=lambda rank: rank in lateness.named)
    lines = "".join(
        _draw_line(lateness.delays_s[rank], most, rank=rank, is_named=rank in lateness.named) for rank in ordered
    )
    label = f"Delay of each rank at {pluralize(count, 'launch')}, from 0 to {_format_delay(most)}. The table above has the sums."
    axis = (
        f'<text x="{_LEFT - 4}" y="10" text-anchor="end">{_format_delay(most)}</text>'
        f'<text x="{_LEFT - 4}" y="{_HEIGHT - _BOTTOM}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 2}">launch 1</text>'
        f'<text x="{_WIDTH - 4}" y="{_HEIGHT - 2}" text-anchor="end">{count}</text>'
        f'<path d="M{_LEFT} 2V{_HEIGHT - _BOTTOM}H{_WIDTH - 4}" fill="none" stroke="currentColor" stroke-opacity=".4"/>'
    )
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'style="max-width:100%;font:10px sans-serif" fill="currentColor">{axis}{lines}</svg>'
    )


def _draw_line(delays: Sequence[float], most: float, *, rank: int, is_named: bool) -> str:
    step = math.ceil(len(delays) / _MAX_POINTS)
    # Of a long cell the longest delay of each few launches, so that no late arrival is lost.
    points = [max((d for d in delays[at : at + step] if d == d), default=None) for at in range(0, len(delays), step)]  # noqa: PLR0124
    width, height = _WIDTH - 4 - _LEFT, _HEIGHT - _BOTTOM - 2
    shown = [
        f"{_LEFT + width * (at / max(1, len(points) - 1)):.1f},{2 + height * (1 - delay / most):.1f}"
        for at, delay in enumerate(points)
        if delay is not None
    ]
    style = (
        'class="mhnb-bad" stroke="currentColor" stroke-width="2"'
        if is_named
        else 'stroke="currentColor" stroke-opacity=".35"'
    )
    return f'<polyline points="{" ".join(shown)}" fill="none" {style}><title>rank {rank}</title></polyline>'
