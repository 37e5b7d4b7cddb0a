"""What a notebook makes of ranks that another one has left: where they stand, and whether they are in step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mhnb.core.guard import judge_state
from mhnb.core.journal import AcceptRecord, CellRecord, Record
from mhnb.core.ranks import format_ranks
from mhnb.core.rowpack import unpack_rows
from mhnb.values import ClusterState

__all__ = ["Taken", "judge_taken"]


@dataclass(frozen=True, slots=True)
class Taken:
    """Where a cluster stands that was taken over."""

    next_seq: int
    """The number of the next cell."""
    behind: Mapping[int, int]
    """Ranks that have yet to count cells, and the number that each of them expects."""
    state: ClusterState
    reason: str

    @property
    def missed(self) -> tuple[tuple[int, int], ...]:
        """Each rank's cells that it has yet to count: rank, number."""
        return tuple((rank, seq) for rank, begin in self.behind.items() for seq in range(begin, self.next_seq))


def judge_taken(standing: Sequence[Mapping[str, Any]], records: Sequence[Record], generation: int) -> Taken:
    """Judge by what each rank says of its last cell, and by the journal.

    Args:
        standing: by rank: `seq`, the number that it expects next, and `last`, [seq, outcome, launches, abandoned] of its last cell.
        records: the journal's.
        generation: of the ranks.

    >>> judge_taken([{"seq": 3, "last": [2, "ok", [], 0]}] * 2, [], 1).state
    'clean'
    """
    expected = [int(rank["seq"]) for rank in standing]
    next_seq = max(expected)
    behind = {rank: seq for rank, seq in enumerate(expected) if seq < next_seq}
    if behind:
        reason = f"cell {next_seq - 1} had not reached ranks {format_ranks(behind)} when the notebook ended"
        return Taken(next_seq, behind, "tainted", reason)
    state, reason = _last_state(standing, records, generation, next_seq - 1)
    return Taken(next_seq, behind, state, reason)


def _last_state(
    standing: Sequence[Mapping[str, Any]], records: Sequence[Record], generation: int, seq: int
) -> tuple[ClusterState, str]:
    """The journal's word on the last cell; where it ended after its notebook, the ranks' own."""
    states: list[tuple[int, ClusterState]] = []
    for record in records:
        if isinstance(record, CellRecord) and record.generation == generation:
            states.append((record.seq, record.state))
        elif isinstance(record, AcceptRecord) and record.generation == generation and states:
            states[-1] = (states[-1][0], "clean")
    if seq == 0 or (states and states[-1][0] == seq):
        state = states[-1][1] if states else "clean"
        return state, "" if state == "clean" else f"cell {seq} left it {state}, before this notebook took it over"
    last = {rank: said["last"] for rank, said in enumerate(standing) if said["last"] and said["last"][1] != "skipped"}
    judged, notes = judge_state(
        {rank: row[1] for rank, row in last.items()},
        {rank: unpack_rows(row[2]) for rank, row in last.items()},
        {rank: row[3] for rank, row in last.items()},
        (),
        seq=seq,
    )
    return judged, notes[0] if notes else ""
