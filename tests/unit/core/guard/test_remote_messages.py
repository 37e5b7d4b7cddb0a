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

PROPOSAL = LaunchProposal(7, 2**63 - 1, "jit(add) f32[8] → f32[]", (0, 1, 3), (12, 4, 2))


@pytest.mark.parametrize(
    "message",
    [
        Propose(1, PROPOSAL),
        Propose(9, PROPOSAL._replace(lines=())),
        Propose(9, PROPOSAL._replace(thread=2**63 - 1, thread_label="thread prefetch")),
        Propose(9, PROPOSAL._replace(thread_label="half a character: \ud800")),
        Propose(2, PROPOSAL._replace(in_interrupt_handler=True)),
        Propose(2, PROPOSAL._replace(provenance=2**63 - 1)),
        Withdraw(3, 1),
        Withdraw(3, 3),
        CellFinished(7, 4),
    ],
)
def test_rank_message_round_trip(message: RankMessage) -> None:
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
        Decision("ring", text="the ranks are waiting for each other"),
    ],
)
def test_decision_round_trip(verdict: Decision) -> None:
    """A decision is read with every vote of a mismatch, so that each rank formats the same message."""
    assert decode_decision(encode_decision(5, verdict)) == (5, verdict)


def proposal_row(**changes: Any) -> list[Any]:
    """Return the row of a proposal of rank 1 among 4 ranks, with some fields replaced."""
    return ["asked", 1, PROPOSAL._replace(**changes)]


@pytest.mark.parametrize(
    "row",
    [
        proposal_row(participants=(0, 4)),
        proposal_row(participants=(0, -1, 1)),
        proposal_row(participants=(0, "1")),
        proposal_row(participants=(0, 3)),
        proposal_row(fingerprint=2**63 + 1),
        proposal_row(fingerprint=6),
        proposal_row(fingerprint=-1),
        proposal_row(seq=0),
        proposal_row(seq=2**32),
        proposal_row(lines=[-1]),
        proposal_row(lines=[2**21]),
        proposal_row(lines=[1, 2, 3, 4]),
        proposal_row(lines=["1"]),
        proposal_row(thread=-1),
        proposal_row(thread=2**63),
        proposal_row(provenance=-1),
        proposal_row(provenance=2**63),
        ["asked", 0, PROPOSAL],
        ["withdrawn", 1, 0],
        ["withdrawn", 1, 99],
        ["over", 1, 99],
        ["over", 2**40, 0],
        ["over", "1", 0],
        [],
        "asked",
    ],
)
def test_invalid_rank_message_is_refused(row: Any) -> None:
    """An invalid number would appear in another rank's message, so it is refused before it reaches the shared board."""
    with pytest.raises(UnknownMessage, match="rank 1 sent an invalid message about a launch"):
        decode_from_rank([json.dumps(row).encode()], 1, 4)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[3]",
        b'[3, ["go", false, 0, [], {}, {}, {}, ""]]',
        b'[3, ["mismatch", false, 0, [[1, "7"]], {}, {}, {}, ""]]',
        b'[3, ["mismatch", false, 0, [], {"a": "f"}, {}, {}, ""]]',
        b"\xff",
    ],
)
def test_invalid_decision_is_refused(text: bytes) -> None:
    """No rank launches on a text that is not a decision."""
    with pytest.raises(UnknownMessage, match="unexpected reply from the launch-agreement service"):
        decode_decision([text])
