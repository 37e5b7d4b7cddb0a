"""Status strip of a running cell: state, line, time and memory of each rank; of many ranks, by group.

It contains the same as the hang report in a shorter form, and also covers cells that do not hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.ranks import describe_ranks
from mhnb.sharding.layout import format_nbytes
from mhnb.view.words import format_seconds

__all__ = ["MAX_SEPARATE_RANKS", "StatusItem", "build_strip"]

MAX_SEPARATE_RANKS = 32
"""Of more ranks, those in the same state share a cell."""
_OUTCOME_STATES = {
    "ok": ("✓", "ended"),
    "error": ("✗", "failed"),
    "interrupted": ("■", "interrupted"),
    "skipped": ("–", "not asked"),
}


@dataclass(frozen=True, slots=True)
class StatusItem:
    """One rank, or ranks in the same state."""

    label: str
    sign: str
    """A second cue beside the colour."""
    state: str
    line: int | None = None
    time: str = ""
    """How long an ended rank took; a running one has run as long as the cell."""
    memory: str = ""


def build_strip(snapshot: CellResult) -> tuple[StatusItem, ...]:
    """Build the cells that show the state of each rank."""
    states = [(rank.rank, *_describe_state(rank, snapshot)) for rank in snapshot.ranks]
    walls = {rank.rank: rank.wall_s for rank in snapshot.ranks if rank.outcome != "running"}
    memory_nbytes = snapshot.where.memory_nbytes if snapshot.where is not None else {}
    if len(states) <= MAX_SEPARATE_RANKS:
        return tuple(
            StatusItem(str(rank), sign, state, line, _format_time([rank], walls), _format_memory([rank], memory_nbytes))
            for rank, sign, state, line in states
        )
    groups: dict[tuple[str, str, int | None], list[int]] = {}
    for rank, sign, state, line in states:
        groups.setdefault((sign, state, line), []).append(rank)
    return tuple(
        StatusItem(
            describe_ranks(ranks), sign, state, line, _format_time(ranks, walls), _format_memory(ranks, memory_nbytes)
        )
        for (sign, state, line), ranks in groups.items()
    )


def _describe_state(rank: RankResult, snapshot: CellResult) -> tuple[str, str, int | None]:
    if rank.outcome != "running":
        return (*_OUTCOME_STATES.get(rank.outcome, ("✗", rank.outcome)), None)
    report = snapshot.where
    if report is None:
        return "●", "running", None
    line = report.lines.get(rank.rank)
    if rank.rank in report.waiting:
        return "◌", "waiting", line
    if rank.rank in report.absent:
        return "!", "absent", line
    activity = next((place.activity for place in report.places if rank.rank in place.ranks), "")
    return "●", activity if activity in ("compiling", "computing") else "running", line


def _format_time(ranks: Sequence[int], walls: dict[int, float]) -> str:
    took = [walls[rank] for rank in ranks if rank in walls]
    return format_seconds(max(took)) if took else ""


def _format_memory(ranks: Sequence[int], memory_nbytes: Mapping[int, int]) -> str:
    known = [memory_nbytes.get(rank, 0) for rank in ranks]
    return format_nbytes(max(known)) if any(known) else ""
