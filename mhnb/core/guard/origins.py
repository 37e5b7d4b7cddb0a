"""Where arrays come from, in words: which launch made them, and on which ranks another one; and whether launches took the same."""

from __future__ import annotations

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
    "find_conflict",
    "find_parting",
    "fold_makers",
    "format_makers",
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
HOST_DATA = "host data"
"""What made an array that no launch made."""
ANY = (1 << 63) - 1
"""The origin of what was made without a guard: it is like every other."""
_PARTIAL, _HASH_BITS = 1 << 62, 46
"""An origin of several arrays, some of which are like every other: this bit, a hash of which those are, one of the rest."""


_ARRAYS, _COME = "arrays ", " come from "


def combine_origins(origins: Sequence[int]) -> int:
    """Hash where the arrays of a launch come from; less than 2**63, and 0 where that is known of none.

    >>> combine_origins([0, 0]), combine_origins([5, 7]) == combine_origins([7, 5])
    (0, False)
    """
    free = tuple([place for place, origin in enumerate(origins) if origin == ANY])
    if not free:
        return hash(tuple(origins)) % _PARTIAL if any(origins) else 0
    known = hash(tuple(origins)) % (1 << _HASH_BITS)
    return _PARTIAL | hash(free) % (1 << 16) << _HASH_BITS | known


def find_conflict(origins: Iterable[int]) -> list[int]:
    """Give those that contradict each other, in their order; none where all may be of the same arrays.

    Which arrays are like every other must be the same of two for them to be compared.

    >>> find_conflict([5, 7, 5, ANY]), find_conflict([5, combine_origins([ANY, 7])])
    ([5, 7], [])
    >>> len(find_conflict([combine_origins([ANY, 7]), combine_origins([ANY, 8])]))
    2
    """
    kinds: dict[int, dict[int, None]] = {}
    for origin in origins:
        kinds.setdefault(what_is_free(origin), {})[origin] = None
    return next((list(found) for found in kinds.values() if len(found) > 1), [])


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
    """Tell which of a launch's arrays are like every other, as a number; 0 for none.

    >>> what_is_free(combine_origins([5, 7])), what_is_free(combine_origins([ANY, 7])) > 0
    (0, True)
    """
    return origin >> _HASH_BITS if origin & _PARTIAL else 0


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
    free = {_add_up(row[4] for row in rows) for rows in by_rank.values()}
    # Of another number of launches the guard tells by itself; and of what is like every other on one rank only, nobody knows.
    if len(counts) > 1 or len(free) > 1:
        return None
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
