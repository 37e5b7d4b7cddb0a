"""Where arrays come from, in words: which launch made them, and on which ranks another one; and whether launches took the same."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from mhnb.core.guard.rules import LaunchSide, format_sides
from mhnb.core.ranks import group_ranks, say_ranks

__all__ = [
    "ANY",
    "HOST_DATA",
    "MOST_MAKERS",
    "OriginRow",
    "apart_origins",
    "combine_origins",
    "count_free",
    "differ_by_place",
    "find_conflict",
    "find_parting",
    "fold_makers",
    "format_makers",
    "format_uncompared",
    "join_free",
    "say_maker",
    "tell_origins",
    "what_is_free",
]

OriginRow: TypeAlias = list[Any]
"""What the launches of one line took: [ranks, line, count, sum, sum of what is like every other, name, origin, makers].

`ranks` take part in the launches. The sums are of hashes: of each launch's origin, and of which of its arrays are like
every other, with its number among those of these ranks in the cell. `name`, `origin` and `makers` are of the last one.
"""

MOST_MAKERS = 3
_SHOWN_LINES = 4
HOST_DATA = "host data"
"""What made an array that no launch made."""
ANY = (1 << 63) - 1
"""The origin of what was made without a guard: it is like every other."""
_PARTIAL, _BLOCKS = 1 << 62, 31
"""An origin of several arrays, some of which are like every other: this bit, a bit for each block of arrays that holds such a
one, a hash of the rest. Up to so many arrays are a block each."""


_ARRAYS, _COME = "arrays ", " come from "


def combine_origins(origins: Sequence[int], free: int = 0, placed: Sequence[int] = ()) -> int:
    """Hash where the arrays of a launch come from; less than 2**63, and 0 where that is known of none.

    Args:
        free: which blocks of arrays are like every other on another rank, as `what_is_free` gives it.
        placed: the places of arrays that are known by where they were made of host data.

    >>> combine_origins([0, 0]), combine_origins([5, 7]) == combine_origins([7, 5])
    (0, False)
    >>> combine_origins([5, 7], what_is_free(combine_origins([ANY, 7]))) == combine_origins([ANY, 7])
    True
    """
    count = len(origins)
    if ANY in origins:
        for place, origin in enumerate(origins):
            free |= (origin == ANY) << _block(place, count)
    if not free:
        rest, known = list(origins), 0
        if placed:
            known = hash(tuple([origins[place] for place in placed])) % (1 << _BLOCKS)
            for place in placed:
                rest[place] = 0
        return known << _BLOCKS | hash(tuple(rest)) % (1 << _BLOCKS) if any(origins) else 0
    compared = [origin for place, origin in enumerate(origins) if not free >> _block(place, count) & 1]
    return _PARTIAL | free << _BLOCKS | hash(tuple(compared)) % (1 << _BLOCKS)


def differ_by_place(origins: Iterable[int]) -> bool:
    """Return whether launches differ in nothing but where their arrays were made of host data, or in which order.

    >>> differ_by_place([combine_origins([5, 7], 0, [1]), combine_origins([5, 8], 0, [1])])
    True
    >>> differ_by_place([combine_origins([5, 7], 0, [1]), combine_origins([6, 8], 0, [1])]), differ_by_place([5, 7])
    (False, False)
    """
    found = {*origins}
    return not any(map(what_is_free, found)) and len({origin % (1 << _BLOCKS) for origin in found}) < 2 <= len(found)


def _block(place: int, count: int) -> int:
    return place if count <= _BLOCKS else place * _BLOCKS // count


def find_conflict(origins: Iterable[int]) -> list[int]:
    """Give those that contradict each other, in their order; none where all may be of the same arrays.

    Which arrays are like every other must be the same of two for them to be compared: see `join_free`.

    >>> find_conflict([5, 7, 5, ANY]), find_conflict([5, combine_origins([ANY, 7])])
    ([5, 7], [])
    >>> len(find_conflict([combine_origins([ANY, 7]), combine_origins([ANY, 8])]))
    2
    """
    kinds: dict[int, dict[int, None]] = {}
    for origin in origins:
        kinds.setdefault(what_is_free(origin), {})[origin] = None
    return next((list(found) for found in kinds.values() if len(found) > 1), [])


def join_free(origins: Iterable[int]) -> int:
    """Return which arrays are like every other on any rank, where that is not the same on all; 0 where it is.

    >>> join_free([5, 5]), join_free([combine_origins([ANY, 7])]), join_free([5, combine_origins([ANY, 7])])
    (0, 0, 1)
    """
    found = {what_is_free(origin) for origin in origins}
    return functools.reduce(operator.or_, found) if len(found) > 1 else 0


def count_free(origin: int, count: int) -> int:
    """Return how many of a launch's arrays are not compared, of as many as it takes.

    >>> count_free(combine_origins([ANY, 7, ANY]), 3), count_free(7, 3), count_free(combine_origins([ANY] + [7] * 61), 62)
    (2, 0, 2)
    """
    free = what_is_free(origin)
    return sum(free >> _block(place, count) & 1 for place in range(count)) if free else 0


def find_parting(taken: Iterable[Sequence[Sequence[int]]]) -> int:
    """Give the first cell in which ranks made arrays apart that they would launch on together; 0 where none is known.

    The later maker of an array that differs is meant: what the other ranks still have is of before.

    Args:
        taken: by rank, of each array in order its origin and the cell that made it, 0 for none.

    >>> find_parting([[(5, 2), (7, 3)], [(5, 2), (8, 22)]]), find_parting([[(5, 2)], [(5, 2)]])
    (22, 0)
    """
    sides = [list(zip(*same, strict=True)) for same in zip(*taken, strict=False)]
    makers = [max(cells) for origins, cells in sides if len({*origins} - {ANY}) > 1]
    return min(filter(None, makers), default=0)


def what_is_free(origin: int) -> int:
    """Tell which blocks of a launch's arrays are like every other, a bit each; 0 for none.

    >>> what_is_free(combine_origins([5, 7])), what_is_free(combine_origins([5, ANY]))
    (0, 2)
    """
    return (origin & ~_PARTIAL) >> _BLOCKS if origin & _PARTIAL else 0


def format_uncompared(count: int, lines: Iterable[int]) -> str:
    """Say how many arrays of a cell's launches were not compared, and which lines took them.

    >>> format_uncompared(1, [2])
    '1 array was not compared: made with --guard off or --ranks, or not seen by the guard (line 2)'
    """
    shown = sorted(lines)
    many = len(shown) > 1
    listed = ", ".join(map(str, shown[:_SHOWN_LINES])) + (", …" if len(shown) > _SHOWN_LINES else "")
    where = f" (line{'s' if many else ''} {listed})" if shown else ""
    what = "1 array was" if count == 1 else f"{count} arrays were"
    return f"{what} not compared: made with --guard off or --ranks, or not seen by the guard{where}"


def say_maker(name: str, seq: int, line: int | None) -> str:
    """Name a launch.

    >>> say_maker("jit(multiply)", 4, 2)
    'jit(multiply) (cell 4, line 2)'
    """
    return f"{name} (cell {seq}{f', line {line}' if line else ''})"


def format_makers(letter: str, makers: Sequence[tuple[str, int, int | None]]) -> str:
    """Say which launches made the arrays of one side of a mismatch: only its own ranks know.

    Args:
        makers: name, cell and line.

    >>> format_makers("A", [("jit(multiply)", 4, 2), ("jit(step)", 3, None)])
    'arrays A come from jit(multiply) (cell 4, line 2) and jit(step) (cell 3)'
    """
    told = [say_maker(*maker) for maker in makers[:MOST_MAKERS]]
    told += ["others"] if len(makers) > MOST_MAKERS else []
    who = " and ".join([", ".join(told[:-1]), told[-1]]) if len(told) > 1 else "".join(told)
    return f"{_ARRAYS}{letter}{_COME}{who or HOST_DATA}"


def fold_makers(notes: Iterable[str]) -> tuple[str, ...]:
    """Say once what `format_makers` says in the same words of several sides; other notes stay as they are.

    >>> fold_makers(["arrays A come from host data", "x", "arrays B come from host data", "arrays C come from jit(f)"])
    ('arrays A, B each come from host data', 'x', 'arrays C come from jit(f)')
    """
    sides: dict[str, list[str]] = {}
    for note in notes:
        head, come, who = note.partition(_COME)
        letter = head.removeprefix(_ARRAYS)
        sides.setdefault(f"{come}{who}" if come and letter != head else note, []).append(letter)
    return tuple(
        f"{_ARRAYS}{', '.join(letters)}{' each' if len(letters) > 1 else ''}{key}" if key.startswith(_COME) else key
        for key, letters in sides.items()
    )


def tell_origins(origins: Mapping[int, tuple[int, str]]) -> str:
    """Say where the ranks have one array from, where that is not the same; empty where it is.

    Args:
        origins: by rank, the hash of it, and the launch in words; those are empty where no launch made it.

    >>> tell_origins({0: (7, "jit(f) (cell 2)"), 1: (0, ""), 2: (0, "")}), tell_origins({0: (7, "jit(f)"), 1: (7, "jit(f)")})
    ('from host data on ranks 1-2, from jit(f) (cell 2) on rank 0', '')
    """
    groups = group_ranks({rank: origin for rank, (origin, _) in origins.items() if origin != ANY})
    if len(groups) < 2:
        return ""
    words = [f"from {origins[ranks[0]][1] or HOST_DATA}" for ranks, _ in groups]
    words = [f"{word} once more" if word in words[:at] else word for at, word in enumerate(words)]
    return ", ".join(f"{word} on {say_ranks(ranks)}" for word, (ranks, _) in zip(words, groups, strict=True))


_APART = "the ranks launched a program with a collective on arrays that did not come about by the same steps"
_STEPS = "Let every rank take the same steps: what only one of them did, or chose by its rank, mixes their numbers"


def apart_origins(rows_by_rank: Mapping[int, Sequence[OriginRow]], source: str = "") -> tuple[str, ...]:
    r"""Say where ranks that launched the same programs did so on arrays that do not belong together, for the first set of ranks.

    Args:
        rows_by_rank: of the ranks that ran the cell.
        source: the cell's text.

    >>> one, two = ([[0, 1], 1, 1, h, "0", "jit(f)", h, [["jit(g)", 3, 2]] * n] for h, n in (("a", 1), ("b", 0)))
    >>> apart_origins({0: [one], 1: [one]})
    ()
    >>> print(apart_origins({0: [one], 1: [two]}, "f(x)")[0].partition("steps\n")[2].rpartition("\n")[0])
      rank 0   jit(f) of arrays A   line 1:  f(x)
      rank 1   jit(f) of arrays B   line 1:  f(x)
      arrays A come from jit(g) (cell 3, line 2)
      arrays B come from host data
    """
    places: dict[tuple[int, ...], dict[int, list[OriginRow]]] = {}
    for rank, rows in sorted(rows_by_rank.items()):
        for row in rows:
            places.setdefault(tuple(row[0]), {}).setdefault(rank, []).append(row)
    for by_rank in places.values():
        if (sides := _sides(by_rank)) is not None:
            told = [
                f"  {text}" for text in fold_makers(format_makers(letter, row[7]) for letter, row in _letter(sides))
            ]
            if len({row[6] for _, row in sides}) < len(sides):
                told = ["  the last of these launches took the same, an earlier one did not"]
            return ("\n".join([_APART, *format_sides(_tell(sides), source), *told, f"  {_STEPS}"]),)
    return ()


_Sides: TypeAlias = list[tuple[tuple[int, ...], OriginRow]]


def _sides(by_rank: Mapping[int, Sequence[OriginRow]]) -> _Sides | None:
    """Give who took what at the first line that sets the ranks apart; None where all took the same, or it cannot be said."""
    counts = {sum(row[2] for row in rows) for rows in by_rank.values()}
    # Of another number of launches the guard tells by itself.
    if len(counts) > 1:
        return None
    # Ranks of which some took what is like every other, and some did not, are not compared with each other.
    kinds: dict[int, dict[int, Sequence[OriginRow]]] = {}
    for rank, rows in by_rank.items():
        kinds.setdefault(_add_up(row[4] for row in rows), {})[rank] = rows
    return next((sides for alike in kinds.values() if (sides := _sides_of(alike)) is not None), None)


def _sides_of(by_rank: Mapping[int, Sequence[OriginRow]]) -> _Sides | None:
    groups = sorted(group_ranks({rank: _add_up(row[3] for row in rows) for rank, rows in by_rank.items()}))
    if len(groups) < 2:
        return None
    firsts = [by_rank[ranks[0]] for ranks, _ in groups]
    known = [{(row[1], row[3]) for row in rows} for rows in firsts]
    common = set.intersection(*known)
    own = [min((row for row in rows if (row[1], row[3]) not in common), key=_line, default=rows[-1]) for rows in firsts]
    return [(ranks, row) for (ranks, _), row in zip(groups, own, strict=True)]


def _line(row: OriginRow) -> int:
    return row[1] or 0


def _add_up(words: Iterable[str]) -> int:
    return sum(int(word, 16) for word in words) % 2**64


def _letter(sides: _Sides) -> list[tuple[str, OriginRow]]:
    return [(f"{chr(ord('A') + n % 26)}{n // 26 or ''}", row) for n, (_, row) in enumerate(sides)]


def _tell(sides: _Sides) -> list[LaunchSide]:
    return [
        LaunchSide(ranks, "", f"{row[5]} of arrays {letter}", row[1])
        for (ranks, row), (letter, _) in zip(sides, _letter(sides), strict=True)
    ]
