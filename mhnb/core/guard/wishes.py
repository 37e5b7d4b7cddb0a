"""Messages about launches between a rank of another host and the host of the shared board, and their JSON encoding.

A rank sends its proposal and waits for the decision. It may withdraw the proposal, and reports when its cell has ended.
Each message is one frame of JSON; transport and signing are handled elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

from mhnb.core.guard.agreement import ENDINGS, LINE_LIMIT, MAX_LINES, WITHDRAW_REASONS, Vote
from mhnb.core.guard.outlines import MAX_PACKED_CHARS
from mhnb.core.guard.threads import UNKNOWN_THREAD
from mhnb.errors import UnknownMessage
from mhnb.values import Frame

__all__ = [
    "CellFinished",
    "Decision",
    "DecisionKind",
    "DescribeProgram",
    "LAUNCH_DECISION",
    "LaunchProposal",
    "Propose",
    "RankMessage",
    "Withdraw",
    "decode_decision",
    "decode_from_rank",
    "encode_decision",
    "encode_from_rank",
]

DecisionKind: TypeAlias = Literal["launch", "again", "interrupt", "mismatch", "ring", "cell ended", "behind", "refused"]


class LaunchProposal(NamedTuple):
    """A rank's proposal: the launch that it is about to make."""

    seq: int
    """Number of the cell."""
    fingerprint: int
    """Odd, less than 2**63."""
    name: str
    participants: tuple[int, ...]
    lines: tuple[int, ...]
    """1-based lines of the cell: the innermost, and those that called it; empty if the launch is outside the cell's own text."""
    in_interrupt_handler: bool = False
    """The ranks were stopped together, and the cell's code makes this launch to handle that: it is not stopped again."""
    provenance: int = 0
    """Provenance hash of the arrays that it launches on, less than 2**63."""
    thread: int = UNKNOWN_THREAD
    """Number of the thread or task of the cell that launches it; see `core/guard/threads.py`."""
    thread_label: str = ""
    """Label of the thread's kind."""

    @property
    def line(self) -> int | None:
        """The innermost of the lines; None if there is none."""
        return self.lines[0] if self.lines else None


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on a proposal. Except for `launch`, no rank launches it; after `again` all participants propose once more."""

    kind: DecisionKind
    is_agreed: bool = False
    """Of an interrupt: whether every participant had reached this launch, and proposed the same."""
    launch_number: int = 0
    """Of a mismatch: number of the launch among those of these participants in the cell, from 1."""
    votes: tuple[Vote, ...] = ()
    names: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of a mismatch: the programs' names, by fingerprint."""
    differences: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of a mismatch of programs with one name: how each differs from the others, by fingerprint."""
    threads: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of a mismatch: the labels of threads, by kind."""
    text: str = ""
    """Message that was formatted on the host of the board, for the kinds that need one."""


LAUNCH_DECISION = Decision("launch")


@dataclass(frozen=True, slots=True)
class Propose:
    """A rank proposes a launch. Its proposals are numbered; it makes one at a time."""

    number: int
    proposal: LaunchProposal


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A rank withdraws a proposal, if it is not too late; the decision reports the result."""

    number: int
    reason: int
    """Index of the reason in MARKS."""


@dataclass(frozen=True, slots=True)
class CellFinished:
    """A cell has ended on a rank, which proposes nothing more in it."""

    seq: int
    ending: int
    """Index in ENDINGS of how the cell ended."""


@dataclass(frozen=True, slots=True)
class DescribeProgram:
    """Outline of a program that a rank has compiled, sent before the rank proposes to launch it."""

    fingerprint: int
    outline: str
    """From `pack_outline`."""


RankMessage: TypeAlias = Propose | Withdraw | CellFinished | DescribeProgram


def encode_from_rank(message: RankMessage) -> list[bytes]:
    """Encode a rank's message.

    >>> encode_from_rank(CellFinished(7, 0))
    [b'["over", 7, 0]']
    """
    match message:
        case Propose(number, wish):
            row: list[Any] = ["asked", number, *wish]
        case Withdraw(number, mark):
            row = ["withdrawn", number, mark]
        case CellFinished(seq, ending):
            row = ["over", seq, ending]
        case DescribeProgram(fingerprint, outline):
            row = ["described", fingerprint, outline]
    return [json.dumps(row).encode()]


def decode_from_rank(frames: Sequence[Frame], rank: int, process_count: int) -> RankMessage:
    """Decode and check a rank's message, because an invalid number would show up in another rank's message.

    Raises:
        UnknownMessage: the message is not valid.

    >>> decode_from_rank([b'["withdrawn", 3, 1]'], 1, 2)
    Withdraw(number=3, reason=1)
    """
    match _parse_json(frames):
        case [
            "asked",
            int(number),
            int(seq),
            int(fp),
            str(name),
            list(members),
            list(lines),
            bool(handles),
            int(origin),
            int(thread),
            str(label),
        ]:
            proposal = LaunchProposal(seq, fp, name, tuple(members), tuple(lines), handles, origin, thread, label)
            if 0 < number < 1 << 63 and _is_valid(proposal, rank, process_count):
                return Propose(number, proposal)
        case ["withdrawn", int(number), int(mark)] if 0 < mark < len(WITHDRAW_REASONS):
            return Withdraw(number, mark)
        case ["over", int(seq), int(ending)] if 0 < seq < 1 << 32 and 0 <= ending < len(ENDINGS):
            return CellFinished(seq, ending)
        case ["described", int(fp), str(outline)] if 0 < fp < 1 << 63 and len(outline) <= MAX_PACKED_CHARS:
            return DescribeProgram(fp, outline)
    raise UnknownMessage(f"rank {rank} said what no rank says of a launch: {_quote(frames)}")


def _is_valid(proposal: LaunchProposal, rank: int, process_count: int) -> bool:
    participants_exist = all(type(member) is int and 0 <= member < process_count for member in proposal.participants)
    return (
        participants_exist
        and rank in proposal.participants
        and 0 < proposal.seq < 1 << 32
        and 0 < proposal.fingerprint < 1 << 63
        and proposal.fingerprint % 2 == 1
        and len(proposal.lines) <= MAX_LINES
        and all(type(line) is int and 0 < line < LINE_LIMIT for line in proposal.lines)
        and 0 <= proposal.provenance < 1 << 63
        and 0 <= proposal.thread < 1 << 63
    )


def encode_decision(number: int, decision: Decision) -> list[bytes]:
    """Encode the decision on a rank's proposal.

    >>> encode_decision(3, LAUNCH_DECISION)
    [b'[3, "launch", false, 0, [], [], [], [], ""]']
    """
    votes = [
        [s.rank, s.fingerprint, s.lines, s.is_stopped, s.in_interrupt_handler, s.ending, s.provenance, s.thread]
        for s in decision.votes
    ]
    names, differences, threads = (
        list(told.items()) for told in (decision.names, decision.differences, decision.threads)
    )
    row = [
        number,
        decision.kind,
        decision.is_agreed,
        decision.launch_number,
        votes,
        names,
        differences,
        threads,
        decision.text,
    ]
    return [json.dumps(row).encode()]


def decode_decision(frames: Sequence[Frame]) -> tuple[int, Decision]:
    """Decode the number of a proposal and the decision on it.

    Raises:
        UnknownMessage: it is not a decision.

    >>> decode_decision(encode_decision(3, LAUNCH_DECISION)) == (3, LAUNCH_DECISION)
    True
    """
    match _parse_json(frames):
        case [
            int(number),
            str(kind),
            bool(agreed),
            int(launch_number),
            list(vote_rows),
            list(names),
            list(differences),
            list(threads),
            str(text),
        ] if (
            kind in get_args(DecisionKind)
            and all(map(_is_vote, vote_rows))
            and all(map(_is_text_entry, (*names, *differences, *threads)))
        ):
            votes = tuple(Vote(rank, fp, tuple(lines), *rest) for rank, fp, lines, *rest in vote_rows)
            mappings = (dict(names), dict(differences), dict(threads))
            return number, Decision(cast(DecisionKind, kind), agreed, launch_number, votes, *mappings, text)
    raise UnknownMessage(f"the host of the board said what is no verdict: {_quote(frames)}")


def _is_vote(row: Any) -> bool:
    match row:
        case [int(), int() | None, list(lines), bool(), bool(), str(ending), int(), int()]:
            return ending in ENDINGS and all(type(line) is int for line in lines)
    return False


def _is_text_entry(row: Any) -> bool:
    match row:
        case [int(), str()]:
            return True
    return False


def _parse_json(frames: Sequence[Frame]) -> Any:
    try:
        return json.loads(bytes(frames[0]))
    except (IndexError, ValueError, RecursionError):
        return None


def _quote(frames: Sequence[Frame]) -> str:
    return repr(bytes(frames[0][:200])) if frames else "nothing"
