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

from mhnb.core.guard.agreement import ENDINGS, LINE_LIMIT, MARKS, MOST_LINES, Stand
from mhnb.core.guard.outlines import MOST_PACKED
from mhnb.core.guard.threads import UNKNOWN_THREAD
from mhnb.errors import UnknownMessage
from mhnb.values import Frame

__all__ = [
    "Asked",
    "CellOver",
    "Described",
    "LAUNCH",
    "RankMessage",
    "Verdict",
    "VerdictKind",
    "Wish",
    "Withdrawn",
    "decode_from_rank",
    "decode_verdict",
    "encode_from_rank",
    "encode_verdict",
]

VerdictKind: TypeAlias = Literal["launch", "again", "interrupt", "mismatch", "ring", "cell ended", "behind", "refused"]


class Wish(NamedTuple):
    """A rank's proposal: the launch that it is about to make."""

    seq: int
    """Number of the cell."""
    fingerprint: int
    """Odd, less than 2**63."""
    name: str
    participants: tuple[int, ...]
    lines: tuple[int, ...]
    """1-based lines of the cell: the innermost, and those that called it; empty if the launch is outside the cell's own text."""
    handles: bool = False
    """The ranks were stopped together, and the cell's code makes this launch to handle that: it is not stopped again."""
    origin: int = 0
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
class Verdict:
    """The decision on a proposal. Except for `launch`, no rank launches it; after `again` all participants propose once more."""

    kind: VerdictKind
    agreed: bool = False
    """Of an interrupt: whether every participant had reached this launch, and proposed the same."""
    number: int = 0
    """Of a mismatch: number of the launch among those of these participants in the cell, from 1."""
    stands: tuple[Stand, ...] = ()
    names: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of a mismatch: the programs' names, by fingerprint."""
    differences: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of a mismatch of programs with one name: how each differs from the others, by fingerprint."""
    threads: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of a mismatch: the labels of threads, by kind."""
    text: str = ""
    """Message that was formatted on the host of the board, for the kinds that need one."""


LAUNCH = Verdict("launch")


@dataclass(frozen=True, slots=True)
class Asked:
    """A rank proposes a launch. Its proposals are numbered; it makes one at a time."""

    number: int
    wish: Wish


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A rank withdraws a proposal, if it is not too late; the decision reports the result."""

    number: int
    mark: int
    """Index of the reason in MARKS."""


@dataclass(frozen=True, slots=True)
class CellOver:
    """A cell has ended on a rank, which proposes nothing more in it."""

    seq: int
    ending: int
    """Index in ENDINGS of how the cell ended."""


@dataclass(frozen=True, slots=True)
class Described:
    """Outline of a program that a rank has compiled, sent before the rank proposes to launch it."""

    fingerprint: int
    outline: str
    """From `pack_outline`."""


RankMessage: TypeAlias = Asked | Withdrawn | CellOver | Described


def encode_from_rank(message: RankMessage) -> list[bytes]:
    """Encode a rank's message.

    >>> encode_from_rank(CellOver(7, 0))
    [b'["over", 7, 0]']
    """
    match message:
        case Asked(number, wish):
            row: list[Any] = ["asked", number, *wish]
        case Withdrawn(number, mark):
            row = ["withdrawn", number, mark]
        case CellOver(seq, ending):
            row = ["over", seq, ending]
        case Described(fingerprint, outline):
            row = ["described", fingerprint, outline]
    return [json.dumps(row).encode()]


def decode_from_rank(frames: Sequence[Frame], rank: int, process_count: int) -> RankMessage:
    """Decode and check a rank's message, because an invalid number would show up in another rank's message.

    Raises:
        UnknownMessage: the message is not valid.

    >>> decode_from_rank([b'["withdrawn", 3, 1]'], 1, 2)
    Withdrawn(number=3, mark=1)
    """
    match _read(frames):
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
            wish = Wish(seq, fp, name, tuple(members), tuple(lines), handles, origin, thread, label)
            if 0 < number < 1 << 63 and _can_be(wish, rank, process_count):
                return Asked(number, wish)
        case ["withdrawn", int(number), int(mark)] if 0 < mark < len(MARKS):
            return Withdrawn(number, mark)
        case ["over", int(seq), int(ending)] if 0 < seq < 1 << 32 and 0 <= ending < len(ENDINGS):
            return CellOver(seq, ending)
        case ["described", int(fp), str(outline)] if 0 < fp < 1 << 63 and len(outline) <= MOST_PACKED:
            return Described(fp, outline)
    raise UnknownMessage(f"rank {rank} said what no rank says of a launch: {_show(frames)}")


def _can_be(wish: Wish, rank: int, process_count: int) -> bool:
    sensible = all(type(member) is int and 0 <= member < process_count for member in wish.participants)
    return (
        sensible
        and rank in wish.participants
        and 0 < wish.seq < 1 << 32
        and 0 < wish.fingerprint < 1 << 63
        and wish.fingerprint % 2 == 1
        and len(wish.lines) <= MOST_LINES
        and all(type(line) is int and 0 < line < LINE_LIMIT for line in wish.lines)
        and 0 <= wish.origin < 1 << 63
        and 0 <= wish.thread < 1 << 63
    )


def encode_verdict(number: int, verdict: Verdict) -> list[bytes]:
    """Encode the decision on a rank's proposal.

    >>> encode_verdict(3, LAUNCH)
    [b'[3, "launch", false, 0, [], [], [], [], ""]']
    """
    stands = [
        [s.rank, s.fingerprint, s.lines, s.stopped, s.handles, s.ending, s.origin, s.thread] for s in verdict.stands
    ]
    names, differences, threads = (list(told.items()) for told in (verdict.names, verdict.differences, verdict.threads))
    row = [number, verdict.kind, verdict.agreed, verdict.number, stands, names, differences, threads, verdict.text]
    return [json.dumps(row).encode()]


def decode_verdict(frames: Sequence[Frame]) -> tuple[int, Verdict]:
    """Decode the number of a proposal and the decision on it.

    Raises:
        UnknownMessage: it is not a decision.

    >>> decode_verdict(encode_verdict(3, LAUNCH)) == (3, LAUNCH)
    True
    """
    match _read(frames):
        case [
            int(number),
            str(kind),
            bool(agreed),
            int(place),
            list(stands),
            list(names),
            list(differences),
            list(threads),
            str(text),
        ] if (
            kind in get_args(VerdictKind)
            and all(map(_is_stand, stands))
            and all(map(_is_name, (*names, *differences, *threads)))
        ):
            found = tuple(Stand(rank, fp, tuple(lines), *rest) for rank, fp, lines, *rest in stands)
            words = (dict(names), dict(differences), dict(threads))
            return number, Verdict(cast(VerdictKind, kind), agreed, place, found, *words, text)
    raise UnknownMessage(f"the host of the board said what is no verdict: {_show(frames)}")


def _is_stand(row: Any) -> bool:
    match row:
        case [int(), int() | None, list(lines), bool(), bool(), str(ending), int(), int()]:
            return ending in ENDINGS and all(type(line) is int for line in lines)
    return False


def _is_name(row: Any) -> bool:
    match row:
        case [int(), str()]:
            return True
    return False


def _read(frames: Sequence[Frame]) -> Any:
    try:
        return json.loads(bytes(frames[0]))
    except (IndexError, ValueError, RecursionError):
        return None


def _show(frames: Sequence[Frame]) -> str:
    return repr(bytes(frames[0][:200])) if frames else "nothing"
