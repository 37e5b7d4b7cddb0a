"""Derive the state of ranks that another notebook has detached from: their last cell, and whether they are in step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mhnb.core.keep.journal import AcceptRecord, CellRecord, Record, ReplayRecord
from mhnb.core.life.cell import Cell, record_cell
from mhnb.core.life.events import CellRequest, Command, NotifyUser, SendToRank, WriteRecord
from mhnb.core.life.verdict import judge_cell
from mhnb.core.ranks import describe_ranks, format_ranks
from mhnb.core.wire.protocol import CellEnded, SkipCell
from mhnb.values import ClusterState

__all__ = ["TakeoverState", "assess_takeover", "note_busy_ranks"]


@dataclass(frozen=True, slots=True)
class TakeoverState:
    """State of a cluster that was taken over."""

    next_seq: int
    """The number of the next cell."""
    ranks_behind: Mapping[int, int]
    """Ranks that have not yet counted the latest cells, and the number that each of them expects next."""
    state: ClusterState
    reason: str
    unseen_cell: CellRecord | None = None
    """The last cell if it ended after its notebook: the journal has no record of it yet."""

    def commands(self, generation: int) -> list[Command]:
        """Return the takeover's commands: record and report the unseen cell, and make ranks that are behind skip its numbers."""
        missed = [(rank, seq) for rank, begin in self.ranks_behind.items() for seq in range(begin, self.next_seq)]
        unseen: list[Command] = (
            []
            if self.unseen_cell is None
            else [WriteRecord(self.unseen_cell), NotifyUser(_format_unseen_cell(self.unseen_cell))]
        )
        return [*unseen, *(SendToRank(rank, SkipCell(generation, seq)) for rank, seq in missed)]


def _format_unseen_cell(unseen: CellRecord) -> str:
    by_outcome: dict[str, list[int]] = {}
    for rank, outcome in unseen.outcomes.items():
        by_outcome.setdefault(unseen.errors.get(rank) or outcome, []).append(rank)
    how = ", ".join(f"{describe_ranks(ranks)} {outcome}" for outcome, ranks in by_outcome.items())
    return f"cell {unseen.seq} ended after its notebook: {how}; what it printed is in the ranks' logs alone"


def assess_takeover(
    reports: Sequence[Mapping[str, Any]], records: Sequence[Record], generation: int, *, guard_available: bool = True
) -> TakeoverState:
    """Derive the state from the ranks' reports on their last cell, and from the journal.

    Args:
        reports: by rank: `seq`, the number that it expects next; `last`, the fields of its last `CellEnded`; and `cell`, the source,
            guard and ranks of that cell if the rank ran it.
        records: the journal's.
        generation: of the ranks.
        guard_available: whether the ranks record what they launch.

    >>> assess_takeover([{"seq": 3, "last": None, "cell": None}] * 2, [CellRecord(1, 2, "x = 1")], 1).state
    'clean'
    """
    expected = [int(rank["seq"]) for rank in reports]
    next_seq = max(expected)
    behind = {rank: seq for rank, seq in enumerate(expected) if seq < next_seq}
    known = _known_state(records, generation, next_seq - 1)
    if known is None:
        state, reason, unseen = _judge_unseen(reports, generation, next_seq - 1, guard_available=guard_available)
        if unseen is not None:
            unseen = replace(unseen, replayed=_is_unfinished_replay(unseen, records))
    else:
        state, unseen = known, None
        reason = "" if state == "clean" else f"cell {next_seq - 1} left it {state}, before this notebook took it over"
    if behind:
        state = "tainted"
        reason = f"cell {next_seq - 1} had not reached ranks {format_ranks(behind)} when the notebook ended"
    return TakeoverState(next_seq, behind, state, reason, unseen if unseen is None else replace(unseen, state=state))


def note_busy_ranks(ranks: Sequence[int], waited_s: float) -> list[Command]:
    """Notify the user why a takeover has not ended yet; no command if no rank explains it.

    >>> note_busy_ranks([], 20.0)
    []
    """
    have = "has" if len(ranks) == 1 else "have"
    text = (
        f"{describe_ranks(ranks)} {have} not answered for {waited_s:g} s: what they ran when their notebook ended may go on, "
        "and they answer between cells\n"
        "  this waits for its end; Ctrl-C leaves them as they are, for another try"
    )
    return [NotifyUser(text)] if ranks else []


def _known_state(records: Sequence[Record], generation: int, seq: int) -> ClusterState | None:
    """Return the last cell's state by the journal; None if the cell ended after its notebook."""
    states: list[tuple[int, ClusterState]] = []
    for record in records:
        if isinstance(record, CellRecord) and record.generation == generation:
            states.append((record.seq, record.state))
        elif isinstance(record, AcceptRecord) and record.generation == generation and states:
            states[-1] = (states[-1][0], "clean")
    if states and states[-1][0] == seq:
        return states[-1][1]
    return "clean" if seq == 0 else None


def _is_unfinished_replay(unseen: CellRecord, records: Sequence[Record]) -> bool:
    """Check whether a replay was cut short in this cell; otherwise the cells not yet replayed would count as discarded."""
    own = [each for each in records if each.generation == unseen.generation]
    if any(isinstance(each, ReplayRecord) or not getattr(each, "replayed", True) for each in own):
        return False
    return any(
        isinstance(each, CellRecord) and (each.seq, each.source) == (unseen.seq, unseen.source) for each in records
    )


def _judge_unseen(
    reports: Sequence[Mapping[str, Any]], generation: int, seq: int, *, guard_available: bool
) -> tuple[ClusterState, str, CellRecord | None]:
    """Judge the last cell by the ranks' reports, as if their replies had just arrived."""
    ran = {
        rank: report
        for rank, report in enumerate(reports)
        if report["cell"] is not None and report["last"]["seq"] == seq
    }
    if not ran:
        # Every rank counted this number and none ran it: a replay leaves such numbers.
        return "clean", "", None
    source, guard, ranks = next(iter(ran.values()))["cell"]
    request = CellRequest(source, None if ranks is None else tuple(ranks), guard)
    cell = Cell(0, request, seq=seq, ranks=tuple(ran), now=0.0)
    for said in ran.values():
        cell.end_rank(CellEnded(**said["last"]))
    recorded = cell.has_record(guard_available=guard_available)
    cell.state, notes = judge_cell(cell, (), recorded=recorded, disconnected_in=0)
    cell.wall_s = max(part.wall_s for part in cell.parts.values())
    return cell.state, notes[0] if notes else "", record_cell(cell, generation, recorded=recorded)
