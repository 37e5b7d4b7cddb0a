"""The guard's rules: whether the ranks launched the same programs in the same order, and the state that follows.

It decides from what the ranks recorded; how a launch is seen, and when, is not its business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from mhnb.core.ranks import say_ranks
from mhnb.core.wire.protocol import LaunchRow
from mhnb.values import ClusterState, Outcome

__all__ = [
    "FREE_PREFIX",
    "IN_STEP",
    "LaunchDifference",
    "LaunchSide",
    "STILL_LEFT",
    "TAINTED",
    "WAY_OUT",
    "communicates",
    "compare_launches",
    "format_difference",
    "format_sides",
    "judge_state",
]

FREE_PREFIX = "free:"
"""Begins the fingerprint of a program that never communicates: its order among the ranks is of no consequence."""

WAY_OUT = "%mhjax restart --replay"
"""As the notes name it; who knows what it costs says so there."""

TAINTED = f"tainted: later values could be wrong · {WAY_OUT}, or %mhjax accept"
"""The last note of what is tainted."""

STILL_LEFT = "which this rank has left and which still runs or waits"
"""In the message of a launch that is refused because it would meet a collective of an earlier cell."""

_Participants: TypeAlias = tuple[int, ...]
_Rows: TypeAlias = tuple[LaunchRow, ...]


@dataclass(frozen=True, slots=True)
class LaunchSide:
    """What some ranks launched at the place where the ranks differ."""

    ranks: tuple[int, ...]
    fingerprint: str | None
    """None: these ranks ended the cell without a further launch."""
    name: str | None
    line: int | None
    """1-based line of the cell, on the first of `ranks`; None where the cell's own lines were not involved."""
    why: str = ""
    """What these ranks did instead, where that is known better than "ended the cell without it"."""
    callers: tuple[int, ...] = ()
    """Lines of the cell that called that one, from the inside out."""

    @property
    def lines(self) -> tuple[int, ...]:
        """All lines that are known, from the inside out."""
        return (*((self.line,) if self.line is not None else ()), *self.callers)


@dataclass(frozen=True, slots=True)
class LaunchDifference:
    """The first launch in which two ranks that take part differ."""

    index: int
    """0-based, among the launches that the differing ranks have in common."""
    sides: tuple[LaunchSide, ...]
    """Two or more, ordered by their first rank."""


def communicates(fingerprint: str) -> bool:
    """Whether launches of this program meet those of other ranks.

    >>> communicates("free:52c1"), communicates("52c1")
    (False, True)
    """
    return not fingerprint.startswith(FREE_PREFIX)


def compare_launches(rows_by_rank: Mapping[int, Sequence[LaunchRow]]) -> LaunchDifference | None:
    """Find the first launch that differs between any two ranks, among those in which both take part.

    A participant that is not in `rows_by_rank` launched nothing. Lines and names are told, not compared.
    The time it takes grows with the number of rows, not with their counts.

    >>> compare_launches({0: [["a", "f", [0, 1], 1, 9]], 1: [["a", "f", [0, 1], 1, 8], ["a", "f", [0, 1], 2, 1]]})
    >>> compare_launches({0: [["a", "f", [0, 1], 1, 9]], 1: [["a", "f", [0, 1], 1, 8]]}).index
    8
    """
    record = _Record(rows_by_rank)
    found = [(place[0], pair) for pair in record.pairs() if (place := record.differ(pair)) is not None]
    if not found:
        return None
    index, pair = min(found)
    return LaunchDifference(index, record.sides(pair, index))


def format_difference(difference: LaunchDifference, seq: int | None = None, source: str = "") -> str:
    """Say what each rank launched, a line a side.

    Args:
        source: the cell's text; with it each line number is followed by that line.

    >>> one, two = LaunchSide((0, 2), "a1", "jit(add)", 2), LaunchSide((1, 3), None, None, None)
    >>> print(format_difference(LaunchDifference(2, (one, two)), seq=14))
    launch 3 of cell 14 differs
      ranks 0,2   jit(add)   line 2
      ranks 1,3   ended the cell without it
    """
    head = f"launch {difference.index + 1}{'' if seq is None else f' of cell {seq}'} differs"
    return "\n".join([head, *format_sides(difference.sides, source)])


def format_sides(sides: Sequence[LaunchSide], source: str = "") -> list[str]:
    """Say what the ranks of each side launched and where, in columns, a line a side.

    >>> format_sides([LaunchSide((0,), "a1", "jit(f)", 1), LaunchSide((1,), "b2", "jit(g)", 1)], "h(x)")
    ['  rank 0   jit(f)   line 1:  h(x)', '  rank 1   jit(g)   line 1:  h(x)']
    """
    named = [side.name for side in sides if side.name is not None]
    who = [say_ranks(side.ranks) for side in sides]
    what = [_what(side, ambiguous=named.count(side.name or "") > 1) for side in sides]
    # The words of a side that ended stand alone on their line, and do not widen the column of the names.
    widths = [len(text) for text, side in zip(what, sides, strict=True) if side.name is not None]
    who_width, what_width = max(map(len, who)), max(widths)
    return [
        f"  {w:{who_width}}   {text:{what_width if side.name else 0}}{_where(side.lines, source)}".rstrip()
        for w, text, side in zip(who, what, sides, strict=True)
    ]


IN_STEP = "the ranks are in step; variables that this cell sets may differ"
"""The note of a cell that ended on some ranks only, and left no launch apart."""


def judge_state(
    outcomes_by_rank: Mapping[int, Outcome],
    rows_by_rank: Mapping[int, Sequence[LaunchRow]] | None,
    left_by_rank: Mapping[int, str],
    lost_ranks: Collection[int],
    *,
    seq: int | None = None,
    source: str = "",
) -> tuple[ClusterState, tuple[str, ...]]:
    """Judge the cluster when a cell has ended on every rank that ran it; the first rule that matches wins.

    Args:
        rows_by_rank: None when there is no launch record: `--guard off`, or the guard is unavailable.
        left_by_rank: the first launch that a rank stopped waiting for, in words; no rank that waited for all.
        lost_ranks: ranks that are gone, the first to go first. A lost hub is the caller's to judge.

    Returns:
        The state, and notes for the user, each with the next step where there is one to take.

    >>> judge_state({0: "ok", 1: "error"}, {0: [], 1: []}, {}, ())[0]
    'clean'
    """
    ran = {rank: outcome for rank, outcome in outcomes_by_rank.items() if outcome != "skipped"}
    gone = [*lost_ranks, *(r for r, o in sorted(ran.items()) if o in ("died", "killed") and r not in lost_ranks)]
    if gone:
        return "dead", (_lost_note(gone),)
    taints = (*_refused_notes(ran), *_left_notes(left_by_rank))
    difference = compare_launches(rows_by_rank) if rows_by_rank is not None else None
    if difference is not None:
        taints += (format_difference(difference, seq, source),)
    if taints:
        return "tainted", (*taints, TAINTED)
    # Without a record an interrupt may have left a collective behind, also where all ranks were interrupted alike.
    unknown = rows_by_rank is None and "interrupted" in ran.values()
    if len(set(ran.values())) < 2 and not unknown:
        return "clean", ()
    if rows_by_rank is None:
        return "split", (f"{_outcome_words(ran)} · no launch record to judge by: %mhjax accept, or {WAY_OUT}",)
    # Who raised stands above it already, in the heading of the failure.
    return "clean", (IN_STEP,)


class _Record:
    """The launches of every rank that communicate, and the comparisons already made."""

    def __init__(self, rows_by_rank: Mapping[int, Sequence[LaunchRow]]) -> None:
        rows = {rank: tuple(r for r in rows if communicates(r[0])) for rank, rows in rows_by_rank.items()}
        sets = {rank: frozenset(tuple(row[2]) for row in mine) for rank, mine in rows.items()}
        everyone = set(rows).union(*(ranks for mine in sets.values() for ranks in mine))
        self._rows: dict[int, _Rows] = {rank: rows.get(rank, ()) for rank in sorted(everyone)}
        self._sets = {rank: sets.get(rank, frozenset()) for rank in everyone}
        # Ranks with equal records share a class: of 64 ranks that did the same, no two are compared.
        classes: dict[tuple[object, ...], int] = {}
        self._class = {
            rank: classes.setdefault(tuple((r[0], tuple(r[2]), r[4]) for r in mine), len(classes))
            for rank, mine in self._rows.items()
        }
        self._known: dict[object, tuple[int, LaunchRow | None, LaunchRow | None] | None] = {}

    def pairs(self) -> Iterator[tuple[int, int]]:
        for a, b in combinations(self._rows, 2):
            if self._class[a] != self._class[b]:
                yield a, b

    def differ(self, pair: tuple[int, int]) -> tuple[int, LaunchRow | None, LaunchRow | None] | None:
        """The place where two ranks first differ, and what each has there."""
        a, b = pair
        shared = frozenset(ranks for ranks in self._sets[a] | self._sets[b] if a in ranks and b in ranks)
        if not shared:
            return None
        key = (self._class[a], self._class[b], shared)
        if key not in self._known:
            self._known[key] = _first_difference(_among(self._rows[a], shared), _among(self._rows[b], shared))
        return self._known[key]

    def sides(self, pair: tuple[int, int], index: int) -> tuple[LaunchSide, ...]:
        """Who launched what at the place where this pair differs: the pair, and each rank that came as far with it."""
        place = self.differ(pair)
        assert place is not None
        at = {pair[0]: place[1], pair[1]: place[2]}
        for rank in self._rows:
            if rank not in at:
                at |= self._beside(pair, rank, index)
        members: dict[object, list[int]] = {}
        for rank in sorted(at):
            members.setdefault(_program(at[rank]), []).append(rank)
        return tuple(_side(tuple(ranks), at[ranks[0]]) for ranks in members.values())

    def _beside(self, pair: tuple[int, int], rank: int, index: int) -> dict[int, LaunchRow | None]:
        """What a third rank launched there, if its place is the same: the same launches shared with both before it."""
        a, b = pair
        common = frozenset(p for p in self._sets[a] | self._sets[b] if a in p and b in p)
        if not all(rank in ranks for ranks in common):
            return {}
        shared = frozenset(p for p in self._sets[rank] if a in p and b in p) | common
        theirs = _among(self._rows[rank], shared)
        place = _first_difference(theirs, _among(self._rows[a], shared))
        if place is None or place[0] > index:
            return {rank: _at(theirs, index)}
        return {rank: place[1]} if place[0] == index else {}


def _among(rows: _Rows, shared: Collection[_Participants]) -> list[LaunchRow]:
    return [row for row in rows if tuple(row[2]) in shared]


def _first_difference(
    mine: Iterable[LaunchRow], theirs: Iterable[LaunchRow]
) -> tuple[int, LaunchRow | None, LaunchRow | None] | None:
    """Walk two run-length-encoded sequences side by side, without expanding them."""
    index, a, b = 0, _Cursor(mine), _Cursor(theirs)
    while a.row is not None and b.row is not None and _program(a.row) == _program(b.row):
        step = min(a.left, b.left)
        index += step
        a.advance(step)
        b.advance(step)
    return None if a.row is None and b.row is None else (index, a.row, b.row)


class _Cursor:
    """A place in a run-length-encoded sequence: the row it is in, and how many of its launches are left."""

    def __init__(self, rows: Iterable[LaunchRow]) -> None:
        self._rest = iter(rows)
        self.row: LaunchRow | None = None
        self.left = 0
        self.advance(0)

    def advance(self, step: int) -> None:
        self.left -= step
        if self.left == 0:
            self.row = next(self._rest, None)
            self.left = self.row[4] if self.row is not None else 0


def _at(rows: Iterable[LaunchRow], index: int) -> LaunchRow | None:
    for row in rows:
        if index < row[4]:
            return row
        index -= row[4]
    return None


def _program(row: LaunchRow | None) -> tuple[str, _Participants] | None:
    return None if row is None else (row[0], tuple(row[2]))


def _side(ranks: tuple[int, ...], row: LaunchRow | None) -> LaunchSide:
    return LaunchSide(ranks, None, None, None) if row is None else LaunchSide(ranks, row[0], row[1], row[3])


def _what(side: LaunchSide, *, ambiguous: bool) -> str:
    if side.name is None or side.fingerprint is None:
        return side.why or "ended the cell without it"
    # Equal names, other programs: a constant, a sharding or a donation differs.
    return f"{side.name} (program {side.fingerprint.removeprefix(FREE_PREFIX)[:6]})" if ambiguous else side.name


def _where(numbers: Sequence[int], source: str) -> str:
    lines = source.splitlines()
    texts = [f":  {lines[n - 1].strip()}" if 0 < n <= len(lines) else "" for n in numbers]
    return "   " + " ← ".join(f"line {n}{text}" for n, text in zip(numbers, texts, strict=True)) if numbers else ""


def _outcome_words(ran: Mapping[int, Outcome]) -> str:
    words = {"ok": "finished", "error": "raised", "interrupted": "was interrupted", "refused": "refused the cell"}
    members: dict[Outcome, list[int]] = {}
    for rank in sorted(ran):
        members.setdefault(ran[rank], []).append(rank)
    parts = []
    for outcome, ranks in sorted(members.items(), key=lambda item: (item[0] == "ok", item[1])):
        word = words.get(outcome, outcome)
        parts.append(f"{say_ranks(ranks)} {word.replace('was', 'were') if len(ranks) > 1 else word}")
    return ", ".join(parts)


def _refused_notes(ran: Mapping[int, Outcome]) -> tuple[str, ...]:
    ranks = [rank for rank, outcome in sorted(ran.items()) if outcome == "refused"]
    return (f"{say_ranks(ranks)} refused the cell, and will refuse every other one",) if ranks else ()


def _left_notes(left_by_rank: Mapping[int, str]) -> tuple[str, ...]:
    ranks_by_launch: dict[str, list[int]] = {}
    for rank, launch in sorted(left_by_rank.items()):
        ranks_by_launch.setdefault(launch, []).append(rank)
    return tuple(f"{say_ranks(ranks)} left {launch} before its end" for launch, ranks in ranks_by_launch.items())


def _lost_note(gone: Sequence[int]) -> str:
    verb = "is" if len(gone) == 1 else "are"
    return f"{say_ranks(gone)} {verb} gone · {WAY_OUT}"
