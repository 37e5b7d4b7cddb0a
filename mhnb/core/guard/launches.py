"""Compare all ranks' launches after a cell, and derive the cluster state.

This module decides from the ranks' records; how and when launches are recorded is decided elsewhere. A launch that was
refused with an `OrderMismatch` which the cell's code caught is reported only by notes of this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from mhnb.core.guard.launch_report import LaunchPlace, LaunchRow
from mhnb.core.ranks import describe_ranks, ranks_by_key, split_list
from mhnb.types import ClusterState, Outcome

LOCAL_PREFIX = "free:"
"""Prefix of the fingerprint of a program that never communicates: its order across ranks does not matter."""

REPLAY_COMMAND = "%mhjax restart --replay"
"""The command as the notes name it; a caller that knows its cost adds that."""

ACCEPT_OPTION = ", or %mhjax accept"
"""End of a note whose state the user can accept; a caller that knows that this does not help removes it."""

TAINTED_NOTE = f"tainted (results may be wrong) · {REPLAY_COMMAND}{ACCEPT_OPTION}"
"""Last note of a tainted cell."""

STILL_ABANDONED = "this rank may still be waiting in"
"""Part of the message for a launch that is refused because it would meet a collective of an earlier cell."""

_Participants: TypeAlias = tuple[int, ...]
_Rows: TypeAlias = tuple[LaunchRow, ...]


@dataclass(frozen=True, slots=True)
class LaunchGroup:
    """A group's launch at the point where the ranks differ."""

    ranks: tuple[int, ...]
    fingerprint: str | None
    """None if these ranks ended the cell without a further launch."""
    name: str | None
    line: int | None
    """1-based line of the cell, on the first of `ranks`; None if none of the cell's own lines was involved."""
    reason: str = ""
    """What these ranks did instead, if more is known than "finished the cell without reaching it"."""
    callers: tuple[int, ...] = ()
    """Lines of the cell that called `line`, innermost first."""

    @property
    def lines(self) -> tuple[int, ...]:
        """All known lines, innermost first."""
        return (*((self.line,) if self.line is not None else ()), *self.callers)


@dataclass(frozen=True, slots=True)
class LaunchDifference:
    """The first launch in which two of its participants differ."""

    index: int
    """0-based, among the launches that the differing ranks have in common."""
    groups: tuple[LaunchGroup, ...]
    """Two or more, ordered by their first rank."""


def has_collectives(fingerprint: str) -> bool:
    """Check whether a program's launches must match those of other ranks.

    >>> has_collectives("free:52c1"), has_collectives("52c1")
    (False, True)
    """
    return not fingerprint.startswith(LOCAL_PREFIX)


def compare_launches(rows_by_rank: Mapping[int, Sequence[LaunchRow]]) -> LaunchDifference | None:
    """Return the first launch that differs between two of its participants.

    A participant that is not in `rows_by_rank` launched nothing. Lines and names are reported, not compared.
    The time grows with the number of rows, not with their counts.

    >>> nine, eight, one = (LaunchRow("a", "f", (0, 1), 1, count) for count in (9, 8, 1))
    >>> compare_launches({0: [nine], 1: [eight, one]})
    >>> compare_launches({0: [nine], 1: [eight]}).index
    8
    """
    comparison = _LaunchComparison(rows_by_rank)
    found = [
        (place[0], pair)
        for pair in comparison.differing_pairs()
        if (place := comparison.find_difference(pair)) is not None
    ]
    if not found:
        return None
    index, pair = min(found)
    return LaunchDifference(index, comparison.build_groups(pair, index))


def format_difference(
    difference: LaunchDifference, cell_name: str = "", source: str = "", *, verdict: str = "differs"
) -> str:
    """Format what each rank launched, one line per group of ranks.

    Args:
        cell_name: the cell's name.
        source: the cell's text, from which each line number is followed by its line.
        verdict: what happened to the launch.

    >>> one, two = LaunchGroup((0, 2), "a1", "jit(add)", 2), LaunchGroup((1, 3), None, None, None)
    >>> print(format_difference(LaunchDifference(2, (one, two)), "cell 14"))
    launch 3 of cell 14 differs
      ranks 0,2   jit(add)   line 2
      ranks 1,3   finished the cell without reaching it
    """
    head = f"launch {difference.index + 1}{f' of {cell_name}' if cell_name else ''} {verdict}"
    return "\n".join([head, *format_groups(difference.groups, source)])


MAX_GROUPS = 8
"""Groups of ranks that an error lists; if there are more, their number follows."""


def format_groups(groups: Sequence[LaunchGroup], source: str = "") -> list[str]:
    """Format each group's launch and place in columns, one line per group.

    Of many groups the last ones are counted.

    >>> format_groups([LaunchGroup((0,), "a1", "jit(f)", 1), LaunchGroup((1,), "b2", "jit(g)", 1)], "h(x)")
    ['  rank 0   jit(f)   line 1:  h(x)', '  rank 1   jit(g)   line 1:  h(x)']
    """
    named = [side.name for side in groups if side.name is not None]
    groups, rest = split_list(groups, MAX_GROUPS)
    rank_texts = [describe_ranks(side.ranks) for side in groups]
    program_texts = [_format_program(side, ambiguous=named.count(side.name or "") > 1) for side in groups]
    # The text of a group without a launch has no column after it, so it does not widen the column of names.
    widths = [len(text) for text, side in zip(program_texts, groups, strict=True) if side.name is not None]
    who_width, what_width = max(map(len, rank_texts)), max(widths, default=0)
    lines = [
        f"  {w:{who_width}}   {text:{what_width if side.name else 0}}{_format_lines(side.lines, source)}".rstrip()
        for w, text, side in zip(rank_texts, program_texts, groups, strict=True)
    ]
    others = [rank for side in rest for rank in side.ranks]
    return [*lines, *([f"  {describe_ranks(others)}   {len(rest)} more, all different"] if rest else [])]


MAY_DIFFER = "variables set in this cell may differ"
"""The consequence if only some ranks ran all of a cell."""

IN_SYNC_NOTE = f"the ranks are still in sync, but {MAY_DIFFER}"
"""Note of a cell that ended differently on some ranks, without a launch that differs."""


def judge_state(
    outcomes_by_rank: Mapping[int, Outcome],
    rows_by_rank: Mapping[int, Sequence[LaunchRow]] | None,
    abandoned_by_rank: Mapping[int, str | None],
    lost_ranks: Collection[int],
    *,
    cell_name: str = "",
    source: str = "",
) -> tuple[ClusterState, tuple[str, ...]]:
    """Derive the cluster state after a cell; the first matching rule wins.

    Args:
        rows_by_rank: None if there is no launch record: `--guard off`, or the guard is unavailable.
        abandoned_by_rank: the first launch that a rank abandoned, as text; None if it was interrupted in code whose launches are not
            recorded. Without the ranks that waited for all of theirs.
        lost_ranks: ranks that are lost, in the order in which they were lost. The caller judges a lost hub.

    Returns:
        The state, and notes for the user, each with the next step if there is one.

    >>> judge_state({0: "ok", 1: "error"}, {0: [], 1: []}, {}, ())[0]
    'clean'
    """
    ran = {rank: outcome for rank, outcome in outcomes_by_rank.items() if outcome != "skipped"}
    lost = [*lost_ranks, *(r for r, o in sorted(ran.items()) if o in ("died", "killed") and r not in lost_ranks)]
    if lost:
        return "dead", (_lost_note(lost),)
    taints = (*_refused_notes(ran), *_abandoned_notes(abandoned_by_rank))
    difference = compare_launches(rows_by_rank) if rows_by_rank is not None else None
    if difference is not None:
        taints += (format_difference(difference, cell_name, source),)
    if taints:
        return "tainted", (*taints, TAINTED_NOTE)
    if len(set(ran.values())) < 2:
        return "clean", ()
    if rows_by_rank is None:
        return "split", (
            f"{_format_outcomes(ran)} · no launch record shows if they are still in sync: {REPLAY_COMMAND}{ACCEPT_OPTION}",
        )
    # The heading of the failure already names the ranks that raised.
    return "clean", (IN_SYNC_NOTE,)


class _LaunchComparison:
    """The launches with collectives of every rank, and a cache of comparisons."""

    def __init__(self, rows_by_rank: Mapping[int, Sequence[LaunchRow]]) -> None:
        rows = {rank: tuple(r for r in rows if has_collectives(r.fingerprint)) for rank, rows in rows_by_rank.items()}
        sets = {rank: frozenset(row.participants for row in mine) for rank, mine in rows.items()}
        everyone = set(rows).union(*(ranks for mine in sets.values() for ranks in mine))
        self._rows: dict[int, _Rows] = {rank: rows.get(rank, ()) for rank in sorted(everyone)}
        self._participant_sets = {rank: sets.get(rank, frozenset()) for rank in everyone}
        # Ranks with equal records share a class, so 64 ranks with the same launches need no comparison.
        classes: dict[tuple[object, ...], int] = {}
        self._class = {
            rank: classes.setdefault(tuple((r.fingerprint, r.participants, r.count) for r in mine), len(classes))
            for rank, mine in self._rows.items()
        }
        self._differences: dict[object, tuple[int, LaunchRow | None, LaunchRow | None] | None] = {}

    def differing_pairs(self) -> Iterator[tuple[int, int]]:
        for a, b in combinations(self._rows, 2):
            if self._class[a] != self._class[b]:
                yield a, b

    def find_difference(self, pair: tuple[int, int]) -> tuple[int, LaunchRow | None, LaunchRow | None] | None:
        """Return where two ranks first differ, and what each launched there."""
        a, b = pair
        shared = frozenset(
            ranks for ranks in self._participant_sets[a] | self._participant_sets[b] if a in ranks and b in ranks
        )
        if not shared:
            return None
        key = (self._class[a], self._class[b], shared)
        if key not in self._differences:
            self._differences[key] = _first_difference(
                _shared_rows(self._rows[a], shared), _shared_rows(self._rows[b], shared)
            )
        return self._differences[key]

    def build_groups(self, pair: tuple[int, int], index: int) -> tuple[LaunchGroup, ...]:
        """Group the launches where the pair differs, including comparable third ranks."""
        place = self.find_difference(pair)
        assert place is not None
        at = {pair[0]: place[1], pair[1]: place[2]}
        for rank in self._rows:
            if rank not in at:
                at |= self._third_rank_launch(pair, rank, index)
        members: dict[object, list[int]] = {}
        for rank in sorted(at):
            members.setdefault(_program_key(at[rank]), []).append(rank)
        return tuple(_build_group(tuple(ranks), at[ranks[0]]) for ranks in members.values())

    def _third_rank_launch(self, pair: tuple[int, int], rank: int, index: int) -> dict[int, LaunchRow | None]:
        """Return a third rank's launch there; {} if it is not comparable.

        It is comparable if it shares the same launches with both before that point.
        """
        a, b = pair
        common = frozenset(p for p in self._participant_sets[a] | self._participant_sets[b] if a in p and b in p)
        if not all(rank in ranks for ranks in common):
            return {}
        shared = frozenset(p for p in self._participant_sets[rank] if a in p and b in p) | common
        theirs = _shared_rows(self._rows[rank], shared)
        place = _first_difference(theirs, _shared_rows(self._rows[a], shared))
        if place is None or place[0] > index:
            return {rank: _row_at(theirs, index)}
        return {rank: place[1]} if place[0] == index else {}


def _shared_rows(rows: _Rows, shared: Collection[_Participants]) -> list[LaunchRow]:
    return [row for row in rows if row.participants in shared]


def _first_difference(
    mine: Iterable[LaunchRow], theirs: Iterable[LaunchRow]
) -> tuple[int, LaunchRow | None, LaunchRow | None] | None:
    """Compare two run-length-encoded sequences without expanding them."""
    index, a, b = 0, _Cursor(mine), _Cursor(theirs)
    while a.row is not None and b.row is not None and _program_key(a.row) == _program_key(b.row):
        step = min(a.remaining, b.remaining)
        index += step
        a.advance(step)
        b.advance(step)
    return None if a.row is None and b.row is None else (index, a.row, b.row)


class _Cursor:
    """A position in a run-length-encoded sequence: row and remaining launches."""

    def __init__(self, rows: Iterable[LaunchRow]) -> None:
        self._rest = iter(rows)
        self.row: LaunchRow | None = None
        self.remaining = 0
        self.advance(0)

    def advance(self, step: int) -> None:
        self.remaining -= step
        if self.remaining == 0:
            self.row = next(self._rest, None)
            self.remaining = self.row.count if self.row is not None else 0


def _row_at(rows: Iterable[LaunchRow], index: int) -> LaunchRow | None:
    for row in rows:
        if index < row.count:
            return row
        index -= row.count
    return None


def _program_key(row: LaunchRow | None) -> tuple[str, _Participants] | None:
    return None if row is None else (row.fingerprint, row.participants)


def _build_group(ranks: tuple[int, ...], row: LaunchRow | None) -> LaunchGroup:
    if row is None:
        return LaunchGroup(ranks, None, None, None)
    return LaunchGroup(ranks, row.fingerprint, row.name, row.line)


def _format_program(group: LaunchGroup, *, ambiguous: bool) -> str:
    if group.name is None or group.fingerprint is None:
        return group.reason or "finished the cell without reaching it"
    # Programs with equal names differ in a constant, a sharding or a donation.
    return f"{group.name} (program {group.fingerprint.removeprefix(LOCAL_PREFIX)[:6]})" if ambiguous else group.name


def _format_lines(numbers: Sequence[int], source: str) -> str:
    lines = source.splitlines()
    texts = [f":  {lines[n - 1].strip()}" if 0 < n <= len(lines) else "" for n in numbers]
    return "   " + " ← ".join(f"line {n}{text}" for n, text in zip(numbers, texts, strict=True)) if numbers else ""


def _format_outcomes(ran: Mapping[int, Outcome]) -> str:
    words = {"ok": "finished", "error": "raised", "interrupted": "was interrupted", "refused": "refused the cell"}
    parts = []
    for outcome, ranks in sorted(ranks_by_key(ran).items(), key=lambda item: (item[0] == "ok", item[1])):
        word = words.get(outcome, outcome)
        parts.append(f"{describe_ranks(ranks)} {word.replace('was', 'were') if len(ranks) > 1 else word}")
    return ", ".join(parts)


def _refused_notes(ran: Mapping[int, Outcome]) -> tuple[str, ...]:
    ranks = [rank for rank, outcome in sorted(ran.items()) if outcome == "refused"]
    return (
        (f"{describe_ranks(ranks)} refused the cell: another cell number was expected, so no further cell is accepted",)
        if ranks
        else ()
    )


def _abandoned_notes(abandoned_by_rank: Mapping[int, str | None]) -> tuple[str, ...]:
    return tuple(
        f"{describe_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'} interrupted, and no launch record shows"
        " whether a collective is still waiting there"
        if launch is None
        else f"{describe_ranks(ranks)} abandoned {launch} before it completed"
        for launch, ranks in ranks_by_key(abandoned_by_rank).items()
    )


def _lost_note(lost: Sequence[int]) -> str:
    verb = "was" if len(lost) == 1 else "were"
    return f"{describe_ranks(lost)} {verb} lost · {REPLAY_COMMAND}"


# -- notes on mismatches that the cell caught


_MAX_NOTES = 3


def note_swallowed_mismatches(caught: Mapping[int, Sequence[LaunchPlace]]) -> list[str]:
    """Return notes on the first launches whose refusal the cell caught.

    Args:
        caught: by rank, each launch that it was refused.

    >>> note_swallowed_mismatches({0: [LaunchPlace("jit(f)", 2)], 1: [LaunchPlace("jit(f)", 2)], 2: []})
    ['ranks 0-1 caught an OrderMismatch: jit(f), line 2, was not launched']
    """
    members: dict[tuple[str, int | None], list[int]] = {}
    for rank, launches in sorted(caught.items()):
        for launch in launches:
            members.setdefault((launch.name, launch.line), []).append(rank)
    notes = [
        f"{describe_ranks(ranks)} caught an OrderMismatch: {name}{'' if line is None else f', line {line},'} was not launched"
        for (name, line), ranks in list(members.items())[:_MAX_NOTES]
    ]
    more = len(members) - _MAX_NOTES
    overflow_note = f"an OrderMismatch was caught at {more} more place{'s' if more > 1 else ''} in the cell"
    return [*notes, *([overflow_note] if more > 0 else [])]
