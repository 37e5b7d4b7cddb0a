"""The last cell of ranks that a notebook takes over, if that cell ended after the previous notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mhnb.core.journal import CellRecord, Record, ReplayRecord, StartRecord
from mhnb.core.messages import SkipCell
from mhnb.core.replay import plan_replay
from mhnb.core.state.events import NotifyUser, SendToRank, WriteRecord
from mhnb.core.state.machine import assess_takeover


def stands(rank: int, seq: int, source: str, outcome: str = "ok", guard: str = "lockstep") -> dict[str, Any]:
    """Return the report of a rank whose last ended cell is this one."""
    last = {"rank": rank, "seq": seq, "outcome": outcome, "events": [], "launches": [], "abandoned": 0, "wall_s": 0.5}
    return {"seq": seq + 1, "last": last, "cell": [source, guard, None]}


def test_what_the_journal_has_is_not_noted_again() -> None:
    """The journal's record takes precedence, because it was written when the cell ended."""
    taken = assess_takeover([stands(0, 2, "x"), stands(1, 2, "x")], [CellRecord(1, 2, "x", state="tainted")], 1)
    assert (taken.state, taken.unseen_cell, taken.commands(1)) == ("tainted", None, [])


def test_ranks_that_differ_without_a_record_are_split() -> None:
    """With the guard off the state is split, as in a cell with a notebook attached."""
    standing = [stands(0, 1, "f()", guard="off"), stands(1, 1, "f()", "error", guard="off")]
    assert assess_takeover(standing, [], 1).state == "split"


def test_a_cell_that_reached_some_ranks_taints_and_is_noted() -> None:
    """The other ranks skip the cell's number, and a replay lists the cell as left out."""
    taken = assess_takeover([stands(0, 2, "y = 1"), stands(1, 1, "x = 1")], [CellRecord(1, 1, "x = 1")], 1)
    keep, tell, skip = taken.commands(1)
    assert isinstance(keep, WriteRecord)
    assert (keep.record.seq, keep.record.state, dict(keep.record.outcomes)) == (2, "tainted", {0: "ok"})
    assert isinstance(tell, NotifyUser)
    assert "cell 2 ended after its notebook: rank 0 ok" in tell.text
    assert skip == SendToRank(1, SkipCell(1, 2))


_FIRST = [StartRecord(1, "2"), CellRecord(1, 1, "a"), CellRecord(1, 2, "b"), CellRecord(1, 3, "c")]
_AGAIN = [*_FIRST, StartRecord(2, "2", after=1)]


@pytest.mark.parametrize(
    ("records", "seq", "source", "comes_back"),
    [
        (_AGAIN, 1, "a", (1, 2, 3)),
        ([*_AGAIN, CellRecord(2, 1, "a", replayed=True)], 2, "b", (1, 2, 3)),
        (_AGAIN, 1, "other", (1,)),
        ([*_AGAIN, CellRecord(2, 1, "new")], 2, "b", (1, 2)),
        (
            [
                *_AGAIN,
                *(CellRecord(2, k, s, replayed=True) for k, s in ((1, "a"), (2, "b"), (3, "c"))),
                ReplayRecord(2, 1, None, complete=True),
            ],
            4,
            "d",
            (1, 2, 3, 4),
        ),
    ],
    ids=["the first of a replay", "within a replay", "the first after a restart", "after a cell", "after a replay"],
)
def test_a_replay_that_was_broken_off_has_given_up_nothing(
    records: Sequence[Record], seq: int, source: str, comes_back: tuple[int, ...]
) -> None:
    """Cells of an unfinished replay are not new ones: the next replay still starts from the same cells."""
    unseen = assess_takeover([stands(0, seq, source), stands(1, seq, source)], records, 2).unseen_cell
    assert unseen is not None
    assert plan_replay([*records, unseen], 2).cells == comes_back
