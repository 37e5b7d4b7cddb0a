"""Where a traced cell spent its time, and its timeline."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import Final

from mhnb.core.ranks import pluralize
from mhnb.core.trace import STATES, CollectiveTimes, RankTimes, State, TraceReport, describe_traced
from mhnb.view.document import Document, Drawing, Drawn, InText, Line, Part, Table
from mhnb.view.drawings.timeline import draw_timeline
from mhnb.view.html import format_seconds

_MARKS: Final[dict[State, str]] = {
    "compute": "█",
    "communication": "▒",
    "waiting": "░",
    "host": "·",
    "not recorded": "?",
}
_TEXT_COLUMNS = 60
_SHOWN_RANKS = 32
_SHOWN_COLLECTIVES = 8
_COLLECTIVES_HEADER = ("collective", "line", "runs", "time", "waiting", "last")
_NEXT = "%mhjax trace open says how to look at it"


def _list_states(report: TraceReport) -> list[State]:
    """Return the states with a column; `not recorded` only if it occurs."""
    return [state for state in STATES if state != "not recorded" or any(row.unrecorded_s for row in report.ranks)]


def build_trace(report: TraceReport, *, is_shell: bool = False) -> Document:
    """Build each rank's times: a picture or bars, and a table.

    Args:
        report: of the trace.
        is_shell: whether it is printed in a shell, which has no `%mhjax`.
    """
    parts: list[Part] = [Line(_format_heading(report), "heading")]
    states = _list_states(report)
    if any(row.states for row in report.ranks):
        legend = "   ".join(f"{_MARKS[state]} {state}" for state in states)
        parts.append(InText([Line(legend), *map(Line, _format_bars(report))]))
        parts.append(Drawn(partial(_draw, report, states)))
    if report.ranks:
        parts.append(Table(("rank", *states, "total"), [_rank_cells(row, states) for row in report.ranks]))
    if report.collectives:
        parts.append(_build_collectives(report))
    ends = [Line(line, "quiet") for line in _format_end(report)]
    return [*parts, *map(Line, report.notes), *ends[: 1 if is_shell else None]]


def _draw(report: TraceReport, states: Sequence[State]) -> Document:
    rows = _pick_rows(report)
    label = (
        f"What each rank did in {report.cell_name}, {format_seconds(report.span_s)}:"
        " one bar per rank, the colors as above. The table below has the sums."
    )
    more = len(report.ranks) - len(rows)
    notes = [Line(f"{more} other ranks are in the table and in the timeline", "quiet")] if more else []
    return [Drawing(draw_timeline(rows, states, label, report.span_s)), *notes]


def _format_heading(report: TraceReport) -> str:
    if not report.ranks:
        return f"{report.cell_name} · no trace"
    return f"{describe_traced(report)} · {format_seconds(report.span_s)}"


def _format_end(report: TraceReport) -> list[str]:
    return [f"timeline: {report.path}", _NEXT] if report.path else []


def _rank_cells(row: RankTimes, states: Sequence[State]) -> tuple[str, ...]:
    if not row.wall_s:
        return (str(row.rank), *[""] * len(states), "not traced")
    return (str(row.rank), *(_format_part(row, state) for state in states), format_seconds(row.wall_s))


def _format_part(row: RankTimes, state: State) -> str:
    seconds = row.seconds(state)
    return f"{format_seconds(seconds)} ({seconds / row.wall_s:.0%})"


def _build_collectives(report: TraceReport) -> Table:
    shown = report.collectives[:_SHOWN_COLLECTIVES]
    rows: list[Sequence[str]] = [_collective_cells(row) for row in shown]
    if rest := report.collectives[_SHOWN_COLLECTIVES:]:
        total_s, waiting_s = sum(row.total_s for row in rest), sum(row.waiting_s for row in rest)
        count = str(sum(row.count for row in rest))
        name = pluralize(len(rest), "other collective")
        rows.append((name, "", count, format_seconds(total_s), format_seconds(waiting_s), ""))
    return Table(_COLLECTIVES_HEADER, rows)


def _collective_cells(row: CollectiveTimes) -> tuple[str, ...]:
    times = format_seconds(row.total_s), format_seconds(row.waiting_s)
    return (row.label, row.place, str(row.count), *times, row.last)


# -- the picture


def _pick_rows(report: TraceReport) -> list[RankTimes]:
    """Return the ranks to draw: of many, those least like the others."""
    rows = [row for row in report.ranks if row.states]
    usual = {state: median_low(row.seconds(state) for row in rows) for state in STATES} if rows else {}
    rows.sort(key=lambda row: -sum(abs(row.seconds(state) - seconds) for state, seconds in usual.items()))
    return sorted(rows[:_SHOWN_RANKS], key=lambda row: row.rank)


def _format_bars(report: TraceReport) -> list[str]:
    rows = _pick_rows(report)
    width = max(len(str(row.rank)) for row in rows)
    return [f"rank {row.rank:>{width}} {_format_bar(row.states)}" for row in rows]


def _format_bar(states: Sequence[State | None]) -> str:
    """Format states as text, with the middle state of each part.

    >>> _format_bar([None, "host", "compute", "waiting"])[::15]
    ' ·█░'
    """
    count = len(states)
    return "".join(
        " " if (state := states[(2 * at + 1) * count // (2 * _TEXT_COLUMNS)]) is None else _MARKS[state]
        for at in range(_TEXT_COLUMNS)
    ).rstrip()


# -- how it is opened


_TITLE, _DATA = "@TITLE@", "@DATA@"


def format_trace_page(report: TraceReport, timeline: bytes) -> str:
    """Format a page that shows a timeline without a network.

    Args:
        report: of the trace.
        timeline: the timeline's file.
    """
    template = (Path(__file__).parent / "trace_page.html").read_text(encoding="utf-8")
    # `</` would end the script element.
    title = json.dumps(describe_traced(report)).replace("</", "<\\/")
    return template.replace(_TITLE, title, 1).replace(_DATA, base64.b64encode(timeline).decode(), 1)


def format_open_text(report: TraceReport, page: str, *, has_xprof: bool) -> str:
    """Format how a timeline is looked at.

    Args:
        report: of a trace whose timeline was written.
        page: the path of the page that shows it.
        has_xprof: whether XProf is installed beside the notebook.
    """
    install = "" if has_xprof else ", after pip install xprof"
    return "\n".join(
        [
            f"{describe_traced(report)}. Open one of these on the machine of the notebook, or a copy of it:",
            f"  in a browser, without a network: {page}",
            f"  in Perfetto, at https://ui.perfetto.dev: 'Open trace file', {report.path}",
            "    the browser reads the file; nothing is uploaded",
            f"  in XProf{install}: xprof --logdir {shlex.quote(report.folder)}",
            "To write the next trace into a folder of yours: %%mhjax --trace FOLDER",
        ]
    )
