"""The last cell of ranks that a notebook takes over, if that cell ended after the previous notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mhnb.core.journal import CellRecord, Record, ReplayRecord, StartRecord
from mhnb.core.messages import CellEnded, SkipCell
from mhnb.core.replay import plan_replay
from mhnb.core.state.events import NotifyUser, SendToRank, WriteRecord
from mhnb.core.state.machine import assess_takeover


def rank_report(rank: int, seq: int, source: str, outcome: str = "ok", guard: str = "lockstep") -> dict[str, Any]:
    """Return the report of a rank whose last ended cell is this one."""
    last = CellEnded(rank, seq, outcome, [], 0.5)  # type: ignore[arg-type]
    return {"seq": seq + 1, "last": msgspec.to_builtins(last), "cell": [source, guard, None, None, 1, ""]}


def test_recorded_cell_is_not_recorded_again() -> None:
    """The journal's record takes precedence, because it was written when the cell ended."""
    takeover = assess_takeover(
        [rank_report(0, 2, "x"), rank_report(1, 2, "x")], [CellRecord(1, 2, "x", state="tainted")], 1
    )
    assert (takeover.state, takeover.unseen_cell, takeover.commands(1)) == ("tainted", None, [])


def test_ranks_that_differ_without_a_record_are_split() -> None:
    """With the guard off the state is split, as in a cell with a notebook attached."""
    reports = [rank_report(0, 1, "f()", guard="off"), rank_report(1, 1, "f()", "error", guard="off")]
    assert assess_takeover(reports, [], 1).state == "split"


def test_cell_that_reached_only_some_ranks_taints() -> None:
    """The other ranks skip the cell's number, and a replay lists the cell as left out."""
    takeover = assess_takeover([rank_report(0, 2, "y = 1"), rank_report(1, 1, "x = 1")], [CellRecord(1, 1, "x = 1")], 1)
    write, notification, skip = takeover.commands(1)
    assert isinstance(write, WriteRecord)
    assert (write.record.seq, write.record.state, dict(write.record.outcomes)) == (2, "tainted", {0: "ok"})
    assert isinstance(notification, NotifyUser)
    assert "cell 2 finished while no notebook was attached: rank 0 ok" in notification.text
    assert skip == SendToRank(1, SkipCell(1, 2))


_FIRST_START = [StartRecord(1, "2"), CellRecord(1, 1, "a"), CellRecord(1, 2, "b"), CellRecord(1, 3, "c")]
_RESTARTED = [*_FIRST_START, StartRecord(2, "2", after=1)]


@pytest.mark.parametrize(
    ("records", "seq", "source", "comes_back"),
    [
        (_RESTARTED, 1, "a", (1, 2, 3)),
        ([*_RESTARTED, CellRecord(2, 1, "a", replayed=True)], 2, "b", (1, 2, 3)),
        (_RESTARTED, 1, "other", (1,)),
        ([*_RESTARTED, CellRecord(2, 1, "new")], 2, "b", (1, 2)),
        (
            [
                *_RESTARTED,
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
def test_unfinished_replay_loses_no_cells(
    records: Sequence[Record], seq: int, source: str, comes_back: tuple[int, ...]
) -> None:
    """Cells of an unfinished replay are not new ones: the next replay still starts from the same cells."""
    unseen = assess_takeover([rank_report(0, seq, source), rank_report(1, seq, source)], records, 2).unseen_cell
    assert unseen is not None
    assert plan_replay([*records, unseen], 2).cells == comes_back
