"""The status strip of a running cell: its ranks by state.

Ranks in the same state share a chip, also if they are at different lines, so that the strip stays small for any number of ranks.
Time and memory never separate ranks. Where all ranks do the same, there is no strip: a few words beside the heading suffice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from mhnb.core.hang_report import UNKNOWN_ACTIVITIES, HangReport
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import describe_many_ranks, describe_ranks, pluralize
from mhnb.sharding.layout import format_nbytes
from mhnb.view.html import RankLocations, format_seconds

MAX_STRIP_LINES = 6
"""Lines that the chips take at most, 700 px wide; with a wider font, or beside a sidebar, they take up to two more."""
_CHARS_PER_LINE = 96
"""Characters of 13 px that fit into such a line."""
_CHIP_EDGE_CHARS = 5
"""Width of a chip's border and of the gap beside it, in characters."""
_MAX_LINES_APART = 3
"""Ranks of one state that are at more different lines than these share a chip, which then has the first and the last line."""
_FULL, _WITHOUT_VALUES, _COUNTED = range(3)
"""Forms of a chip: with time and memory, without, and with a number of ranks in place of their names."""
MAX_EACH = 256
"""Maximum number of ranks that are listed one by one."""


@dataclass(frozen=True, slots=True)
class _State:
    """What a rank does, as users see it."""

    word: str
    sign: str
    """A second cue beside the colour."""
    kind: str
    """The class that has the colour. A colour stands for nothing but this."""


_STATES = (
    _State("stopped", "‖", "stopped"),
    _State("missing", "!", "absent"),
    _State("failed", "✗", "failed"),
    _State("died", "✗", "failed"),
    _State("killed", "✗", "failed"),
    _State("refused", "✗", "failed"),
    _State("unknown", "?", "unknown"),
    _State("waiting", "◌", "waiting"),
    _State("computing", "●", "running"),
    _State("compiling", "●", "running"),
    _State("running", "●", "running"),
    _State("interrupted", "■", "off"),
    _State("ended", "✓", "ended"),
    _State("not asked", "–", "off"),
)
"""In the order of the chips: what needs attention first."""
_STATE_BY_WORD = {state.word: state for state in _STATES}
_OUTCOME_WORDS = {"ok": "ended", "error": "failed", "skipped": "not asked"}


@dataclass(frozen=True, slots=True)
class StatusItem:
    """One chip: ranks in the same state."""

    label: str
    """As `ranks 0-2,4-15`; shortened if it would be long."""
    sign: str
    state: str
    kind: str
    lines: str = ""
    """As `line 4` or `lines 3-9`."""
    time: str = ""
    """How long ended ranks took; a running one has run as long as the cell."""
    memory: str = ""
    details: str = ""
    """All of the ranks, and both ends of what differs among them."""

    @property
    def text(self) -> str:
        """The chip as text."""
        told = " · ".join(filter(None, (self.state, self.lines, self.time, self.memory)))
        return f"{self.sign} {self.label} {told}"


class _Rank(NamedTuple):
    rank: int
    word: str
    line: int | None
    wall_s: float | None
    memory_nbytes: int


def build_strip(snapshot: CellResult) -> tuple[StatusItem, ...]:
    """Build the chips, in the order in which users should read them."""
    ranks = _describe_ranks(snapshot)
    groups = [members for state in _STATES if (members := [rank for rank in ranks if rank.word == state.word])]
    split = [_split_by_line(members) for members in groups]
    # What costs least is left out first. Lines are joined from the last state on, because the first ones need attention.
    candidates = (
        *((_FULL, split[:kept] + [[members] for members in groups[kept:]]) for kept in range(len(groups), -1, -1)),
        *((form, [[members] for members in groups]) for form in (_WITHOUT_VALUES, _COUNTED)),
    )
    items: list[StatusItem] = []
    for form, chips in candidates:
        items = [_build_item(members, form) for chip in chips for members in chip]
        if _count_lines(items) <= MAX_STRIP_LINES:
            break
    return tuple(items)


def _describe_ranks(snapshot: CellResult) -> list[_Rank]:
    report = snapshot.where
    words = _find_words(report) if report is not None else {}
    described = []
    for rank in snapshot.ranks:
        word = words.get(rank.rank, "running")
        is_running = rank.outcome == "running"
        # Others may wait for a rank that has left the cell, which is not a quiet end then.
        if not is_running and not (word == "missing" and rank.outcome == "ok"):
            word = _OUTCOME_WORDS.get(rank.outcome, rank.outcome)
        line = report.lines.get(rank.rank) if report is not None and is_running else None
        memory_nbytes = report.memory_nbytes.get(rank.rank, 0) if report is not None else 0
        described.append(_Rank(rank.rank, word, line, None if is_running else rank.wall_s, memory_nbytes))
    return described


def _find_words(report: HangReport) -> dict[int, str]:
    """Return what each rank does, as far as the report knows."""
    activities = {rank: place.activity for place in report.places for rank in place.ranks}
    words = {rank: activity for rank, activity in activities.items() if activity in ("compiling", "computing")}
    # As long as the hang report is not shown by itself, who waits for whom is a guess. While ranks are stopped in the
    # debugger it is not shown, and the others may wait for as long as the user thinks.
    is_sure = report.stuck or (report.known and bool(report.stopped))
    words |= dict.fromkeys(report.waiting, "waiting") if is_sure else {}
    words |= {rank: "unknown" for rank, activity in activities.items() if activity in UNKNOWN_ACTIVITIES}
    words |= dict.fromkeys(report.absent, "missing") if report.stuck else {}
    return words | dict.fromkeys(report.stopped, "stopped")


def _split_by_line(members: Sequence[_Rank]) -> list[list[_Rank]]:
    by_line: dict[int | None, list[_Rank]] = {}
    for member in members:
        by_line.setdefault(member.line, []).append(member)
    return list(by_line.values()) if len(by_line) <= _MAX_LINES_APART else [list(members)]


def _build_item(members: Sequence[_Rank], form: int) -> StatusItem:
    ranks = [member.rank for member in members]
    state = _STATE_BY_WORD[members[0].word]
    walls = [member.wall_s for member in members if member.wall_s is not None]
    memory = [member.memory_nbytes for member in members if member.memory_nbytes]
    label = pluralize(len(ranks), "rank") if form == _COUNTED and len(ranks) > 1 else describe_many_ranks(ranks)
    # The smallest and the largest.
    times = [format_seconds(wall) for wall in (min(walls), max(walls))] if walls else []
    sizes = [format_nbytes(size) for size in (min(memory), max(memory))] if memory else []
    details = [
        full_label if (full_label := describe_ranks(ranks)) != label else "",
        _format_range("took", times),
        _format_range("memory", sizes),
    ]
    return StatusItem(
        label,
        state.sign,
        state.word,
        state.kind,
        _format_lines([member.line for member in members if member.line is not None]),
        _format_most(times) if form == _FULL else "",
        _format_most(sizes) if form == _FULL else "",
        " · ".join(filter(None, details)),
    )


def _format_lines(lines: Sequence[int]) -> str:
    if not lines:
        return ""
    return f"line {lines[0]}" if len(set(lines)) == 1 else f"lines {min(lines)}-{max(lines)}"


def _format_most(ends: Sequence[str]) -> str:
    if not ends:
        return ""
    return ends[0] if len(set(ends)) == 1 else f"up to {ends[-1]}"


def _format_range(name: str, ends: Sequence[str]) -> str:
    if not ends:
        return ""
    return f"{name} {ends[0]}" if len(set(ends)) == 1 else f"{name} {ends[0]} to {ends[-1]}"


def _count_lines(items: Sequence[StatusItem]) -> int:
    """Count the lines that chips take if each stays in one piece."""
    lines, column = 1, 0
    for item in items:
        width = len(item.text) + _CHIP_EDGE_CHARS
        if column and column + width > _CHARS_PER_LINE:
            lines, column = lines + 1, 0
        column += width
        lines, column = lines + (column - 1) // _CHARS_PER_LINE, (column - 1) % _CHARS_PER_LINE + 1
    return lines


def is_unusual(strip: Sequence[StatusItem]) -> bool:
    """Return whether ranks differ in state or line, or do not run."""
    return len(strip) > 1 or any(item.kind != "running" for item in strip)


def describe_quietly(strip: Sequence[StatusItem]) -> str:
    """Describe what all ranks do, for the heading; empty with a strip.

    >>> describe_quietly([StatusItem("ranks 0-3", "●", "computing", "running", "line 4")])
    'computing · line 4'
    """
    if not strip or is_unusual(strip):
        return ""
    (item,) = strip
    # The heading says that they run.
    word = "" if item.state == "running" else item.state
    return " · ".join(filter(None, (word, item.lines, item.memory)))


def format_strip_text(strip: Sequence[StatusItem]) -> str:
    """Format the chips in one line; a terminal may cut its end.

    >>> format_strip_text(
    ...     [StatusItem("rank 3", "!", "missing", "missing", "line 3"), StatusItem("ranks 0-2", "◌", "waiting", "waiting")]
    ... )
    '! rank 3 missing · line 3   ◌ ranks 0-2 waiting'
    """
    return "   ".join(item.text for item in strip)


# -- each rank by itself


_HEADER = ("rank", "host", "state", "line", "took", "memory")


def format_each_html(snapshot: CellResult, locations: RankLocations) -> str:
    """Format a table of the ranks' states, without its empty columns."""
    ranks = _describe_ranks(snapshot)
    order = list(_STATE_BY_WORD)
    ranks.sort(key=lambda rank: (order.index(rank.word), rank.rank))
    rows = [_format_row(rank, locations.hosts) for rank in ranks[:MAX_EACH]]
    shown = [at for at in range(len(_HEADER)) if any(row[at] for row in rows)]
    head = "".join(f'<th scope="col">{_HEADER[at]}</th>' for at in shown)
    body = "".join(f"<tr>{''.join(f'<td>{escape(row[at], quote=False)}</td>' for at in shown)}</tr>" for row in rows)
    rest = f"<div>… and {describe_ranks(rank.rank for rank in ranks[MAX_EACH:])}</div>" if ranks[MAX_EACH:] else ""
    return f"<table><tr>{head}</tr>{body}</table>{rest}"


def _format_row(rank: _Rank, hosts: Mapping[int, str]) -> tuple[str, ...]:
    return (
        str(rank.rank),
        hosts.get(rank.rank, ""),
        f"{_STATE_BY_WORD[rank.word].sign} {rank.word}",
        "" if rank.line is None else str(rank.line),
        "" if rank.wall_s is None else format_seconds(rank.wall_s),
        format_nbytes(rank.memory_nbytes) if rank.memory_nbytes else "",
    )
