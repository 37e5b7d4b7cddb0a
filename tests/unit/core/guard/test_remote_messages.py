"""Messages between ranks of other hosts and the host of the shared board: valid ones are read back, all others are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mhnb.core.guard.agreement import (
    LAUNCH_DECISION,
    CellFinished,
    Decision,
    LaunchProposal,
    Propose,
    RankMessage,
    Vote,
    Withdraw,
    decode_decision,
    decode_from_rank,
    encode_decision,
    encode_from_rank,
)
from mhnb.errors import UnknownMessage

WISH = LaunchProposal(7, 2**63 - 1, "jit(add) f32[8] → f32[]", (0, 1, 3), (12, 4, 2))


@pytest.mark.parametrize(
    "message",
    [
        Propose(1, WISH),
        Propose(9, WISH._replace(lines=())),
        Propose(9, WISH._replace(thread=2**63 - 1, thread_label="thread prefetch")),
        Propose(2, WISH._replace(in_interrupt_handler=True)),
        Propose(2, WISH._replace(provenance=2**63 - 1)),
        Withdraw(3, 1),
        Withdraw(3, 3),
        CellFinished(7, 4),
    ],
)
def test_what_a_rank_says_is_read_as_it_was_said(message: RankMessage) -> None:
    """A message is read as it was written, also for a launch that no line of the cell makes."""
    assert decode_from_rank(encode_from_rank(message), 1, 4) == message


@pytest.mark.parametrize(
    "verdict",
    [
        LAUNCH_DECISION,
        Decision("interrupt", is_agreed=True),
        Decision(
            "mismatch",
            launch_number=3,
            votes=(
                Vote(0, 7, (2, 9), thread=7),
                Vote(1, ending="died"),
                Vote(2, 9, (), is_stopped=True, in_interrupt_handler=True, provenance=4),
            ),
            names={7: "jit(f)", 9: "jit(g)"},
            threads={0: "thread prefetch"},
        ),
        Decision("ring", text="the ranks wait for each other"),
    ],
)
def test_a_verdict_is_read_as_it_was_written(verdict: Decision) -> None:
    """A decision is read with every vote of a mismatch, so that each rank formats the same message."""
    assert decode_decision(encode_decision(5, verdict)) == (5, verdict)


def asked(**changes: Any) -> list[Any]:
    """Return the row of a proposal of rank 1 among 4 ranks, with some fields replaced."""
    return ["asked", 1, *WISH._replace(**changes)]


@pytest.mark.parametrize(
    "row",
    [
        asked(participants=(0, 4)),
        asked(participants=(0, -1, 1)),
        asked(participants=(0, "1")),
        asked(participants=(0, 3)),
        asked(fingerprint=2**63 + 1),
        asked(fingerprint=6),
        asked(fingerprint=-1),
        asked(seq=0),
        asked(seq=2**32),
        asked(lines=[-1]),
        asked(lines=[2**21]),
        asked(lines=[1, 2, 3, 4]),
        asked(lines=["1"]),
        asked(thread=-1),
        asked(thread=2**63),
        asked(provenance=-1),
        asked(provenance=2**63),
        ["asked", 0, *WISH],
        ["withdrawn", 1, 0],
        ["withdrawn", 1, 99],
        ["over", 1, 99],
        ["over", 2**40, 0],
        ["over", "1", 0],
        [],
        "asked",
    ],
)
def test_what_cannot_be_is_refused_before_it_is_written_on_the_board(row: Any) -> None:
    """An invalid number would appear in another rank's message, so it is refused before it reaches the shared board."""
    with pytest.raises(UnknownMessage, match="rank 1 said what no rank says"):
        decode_from_rank([json.dumps(row).encode()], 1, 4)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[3]",
        b'[3, "go", false, 0, [], [], [], [], ""]',
        b'[3, "mismatch", false, 0, [[1]], [], [], [], ""]',
        b"\xff",
    ],
)
def test_what_is_no_verdict_is_never_taken_for_one(text: bytes) -> None:
    """No rank launches on a text that is not a decision."""
    with pytest.raises(UnknownMessage, match="no verdict"):
        decode_decision([text])
