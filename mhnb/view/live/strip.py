"""Status strip of a running cell: state, line, time and memory of each rank; of many ranks, by group.

It contains the same as the hang report in a shorter form, and also covers cells that do not hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.ranks import say_ranks
from mhnb.view.words import format_nbytes, format_seconds

__all__ = ["MAX_EACH", "StripCell", "make_strip"]

MAX_EACH = 32
"""Of more ranks, those in the same state share a cell."""
_ENDED = {
    "ok": ("✓", "ended"),
    "error": ("✗", "failed"),
    "interrupted": ("■", "interrupted"),
    "skipped": ("–", "not asked"),
}


@dataclass(frozen=True, slots=True)
class StripCell:
    """One rank, or ranks in the same state."""

    label: str
    sign: str
    """A second cue beside the colour."""
    state: str
    line: int | None = None
    time: str = ""
    """How long an ended rank took; a running one has run as long as the cell."""
    memory: str = ""


def make_strip(snapshot: CellResult) -> tuple[StripCell, ...]:
    """Build the cells that show the state of each rank."""
    states = [(rank.rank, *_state(rank, snapshot)) for rank in snapshot.ranks]
    walls = {rank.rank: rank.wall_s for rank in snapshot.ranks if rank.outcome != "running"}
    held = snapshot.where.memory_nbytes if snapshot.where is not None else {}
    if len(states) <= MAX_EACH:
        return tuple(
            StripCell(str(rank), sign, state, line, _time([rank], walls), _memory([rank], held))
            for rank, sign, state, line in states
        )
    groups: dict[tuple[str, str, int | None], list[int]] = {}
    for rank, sign, state, line in states:
        groups.setdefault((sign, state, line), []).append(rank)
    return tuple(
        StripCell(say_ranks(ranks), sign, state, line, _time(ranks, walls), _memory(ranks, held))
        for (sign, state, line), ranks in groups.items()
    )


def _state(rank: RankResult, snapshot: CellResult) -> tuple[str, str, int | None]:
    if rank.outcome != "running":
        return (*_ENDED.get(rank.outcome, ("✗", rank.outcome)), None)
    card = snapshot.where
    if card is None:
        return "●", "running", None
    line = card.lines.get(rank.rank)
    if rank.rank in card.waiting:
        return "◌", "waiting", line
    if rank.rank in card.absent:
        return "!", "absent", line
    doing = next((place.activity for place in card.places if rank.rank in place.ranks), "")
    return "●", doing if doing in ("compiling", "computing") else "running", line


def _time(ranks: Sequence[int], walls: dict[int, float]) -> str:
    took = [walls[rank] for rank in ranks if rank in walls]
    return format_seconds(max(took)) if took else ""


def _memory(ranks: Sequence[int], held: Mapping[int, int]) -> str:
    known = [held.get(rank, 0) for rank in ranks]
    return format_nbytes(max(known)) if any(known) else ""
