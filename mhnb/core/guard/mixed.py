"""Programs without a collective: nobody waits for another in them, but the arrays that they make belong to several ranks.

They are not agreed on, and a rank may launch one alone. Where all of them launched some, and not the same, an array may
have shards of different programs or steps: no rank hangs, and what is computed from it may be wrong. In lockstep a
collective that takes such an array is refused; where launches are compared after the cell, it is said then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from mhnb.core.guard.rules import LaunchSide, communicates, format_sides
from mhnb.core.wire.protocol import LaunchRow

__all__ = ["apart_notes", "mixed_notes"]

_ByRank: TypeAlias = dict[int, list[LaunchRow]]

_MIXED = "the ranks ran different programs on arrays that they share"
_SO = (
    "None has a collective, so nothing hangs and nothing was stopped; but the shards of what they made do not belong "
    "together. Let every rank run the same program, on data of its own where the ranks are to differ"
)


def mixed_notes(rows_by_rank: Mapping[int, Sequence[LaunchRow]], source: str = "") -> tuple[str, ...]:
    """Say where a cell that ended well ran different programs without a collective on different ranks, or other numbers of them.

    Compared is what all ranks of an array launched at one line of the cell, and what each launched at lines that others
    passed by. A rank that alone launched something there, to print it say, is no difference; nor is what a thread of the
    user's launched, which may be ahead on one rank: it comes without a line.

    Args:
        rows_by_rank: what each rank launched.
        source: the cell's text.

    >>> row = ["free:a", "jit(f)", [0, 1], 1, 1]
    >>> mixed_notes({0: [row], 1: [row]}), mixed_notes({0: [row], 1: []})
    ((), ())
    >>> print(mixed_notes({0: [row], 1: [["free:b", "jit(g)", [0, 1], 1, 1]]})[0].partition("None")[0].rstrip())
    the ranks ran different programs on arrays that they share
      rank 0   jit(f)   line 1
      rank 1   jit(g)   line 1
    """
    first, *others = rows_by_rank.values() or ((),)
    if all(rows == first for rows in others):
        return ()  # as nearly always; a hot loop has many rows
    for by_rank in _by_participants(rows_by_rank):
        for place in _places(by_rank):
            if (sides := _sides(place)) is not None:
                return ("\n".join([_MIXED, *format_sides(sides, source), _SO]),)
    return ()


def _by_participants(rows_by_rank: Mapping[int, Sequence[LaunchRow]]) -> Iterator[_ByRank]:
    """Give, for each set of participants, what those of them that ran the cell launched without a collective."""
    found: dict[tuple[int, ...], _ByRank] = {}
    for rank, rows in rows_by_rank.items():
        for row in rows:
            if not communicates(row[0]) and row[3] is not None:
                found.setdefault(tuple(row[2]), {}).setdefault(rank, []).append(row)
    for participants, by_rank in found.items():
        if all(rank in by_rank for rank in participants if rank in rows_by_rank):
            yield by_rank


def _places(by_rank: _ByRank) -> Iterator[_ByRank]:
    """Give what was launched at each line where all launched something; then what each launched at the other lines."""
    lines: dict[object, _ByRank] = {}
    for rank, rows in by_rank.items():
        for row in rows:
            lines.setdefault(row[3], {}).setdefault(rank, []).append(row)
    rest: _ByRank = {}
    for place in lines.values():
        if len(place) == len(by_rank):
            yield place
        else:
            for rank, rows in place.items():
                rest.setdefault(rank, []).extend(rows)
    if len(rest) == len(by_rank):
        yield rest


def _sides(place: _ByRank) -> list[LaunchSide] | None:
    """Who launched what at a place; None where all launched the same, in whatever order."""
    # How often one ran whose output some rank has let go of is of no consequence there.
    dropped = {row[0] for rows in place.values() for row in rows if row[4] == 0}
    tallies = {rank: _tally(rows, dropped) for rank, rows in sorted(place.items())}
    members: dict[frozenset[tuple[str, int]], list[int]] = {}
    for rank, tally in tallies.items():
        members.setdefault(frozenset(tally.items()), []).append(rank)
    if len(members) < 2:
        return None
    common = frozenset.intersection(*members)
    return [_side(ranks, place[ranks[0]], tallies[ranks[0]], common) for ranks in members.values()]


def _tally(rows: Sequence[LaunchRow], dropped: Collection[str]) -> Counter[str]:
    tally: Counter[str] = Counter()
    for fingerprint, _, _, _, count in rows:
        tally[fingerprint] += 0 if fingerprint in dropped else count
    return tally


def _side(
    ranks: Sequence[int], rows: Sequence[LaunchRow], tally: Counter[str], common: frozenset[tuple[str, int]]
) -> LaunchSide:
    # What sets these ranks apart; where they did the same and less, whatever they did last.
    own = next((row for row in rows if (row[0], tally[row[0]]) not in common), rows[-1])
    times = tally[own[0]]
    name = own[1] if times < 2 else f"{own[1]} {times} times"
    return LaunchSide(tuple(ranks), own[0], name, own[3])


def apart_notes(rows_by_rank: Mapping[int, Sequence[LaunchRow]]) -> tuple[str, ...]:
    """Say which program without a collective some ranks of an interrupted cell had launched more often than others.

    Nobody agrees on such a program. But the shards of what it made are of different steps, and what is computed from them is wrong.

    >>> apart_notes({0: [["free:a", "jit(f)", [0, 1], 1, 5]], 1: []})[0].partition(":")[0]
    'the ranks were interrupted at different places'
    """
    counts: dict[tuple[int, ...], dict[tuple[str, str], dict[int, int]]] = {}
    dropped = {row[0] for rows in rows_by_rank.values() for row in rows if row[4] == 0}
    for rank, rows in rows_by_rank.items():
        for fingerprint, name, participants, _, count in rows:
            if not communicates(fingerprint) and fingerprint not in dropped:
                launched = counts.setdefault(tuple(participants), {}).setdefault((fingerprint, name), {})
                launched[rank] = launched.get(rank, 0) + count
    for participants, programs in counts.items():
        for (_, name), launched in programs.items():
            times = [launched.get(rank, 0) for rank in participants if rank in rows_by_rank]
            if len(set(times)) > 1:
                said = f"{name} without a collective was launched {min(times)} to {max(times)} times"
                return (
                    f"the ranks were interrupted at different places: {said} · arrays that this cell sets may mix steps",
                )
    return ()
