"""Compare the provenance of a launch's arrays across ranks before the launch, and describe how it differs.

An array's value is a hash of the launch that made it, of its contents, or of where it was made of host data. Equal values mean equal
arrays. Two values are special. `ANY` matches every other: for example, the array is not computed yet. `UNKNOWN` belongs to an array
without provenance: the guard did not see where it was made, and it matches only other such arrays.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from mhnb.core.guard.host_data import OWN_DATA, UNEQUAL_CURE, format_gap, read_sample
from mhnb.core.ranks import group_ranks, say_ranks

__all__ = [
    "ANY",
    "HOST_DATA",
    "InputRow",
    "MASK",
    "PLACED",
    "UNKNOWN",
    "are_input_rows",
    "combine_values",
    "describe_divergence",
    "describe_provenance",
    "find_conflict",
    "find_divergence",
    "format_producer",
    "format_uncompared",
    "join_free",
    "masked_places",
    "what_is_free",
]

InputRow: TypeAlias = list[Any]
"""An array of a launch that was refused, as on one rank: [value, cell that made it, kind, what made it, sample].

The cell is 0 if no cell made it, or if the state before that cell is no better. `kind` is such as `f32[8]`. What made it is a text;
it is empty for an array that was laid out for this launch only. The sample is a few of its elements as doubles in
hex; it is empty if they are not known.
"""

HOST_DATA = "host data"
"""Producer of an array that was not made by a launch."""
PLACED = f"sharded {HOST_DATA}"
"""Producer of an array of which no rank holds all: its value depends on where it was made."""
UNKNOWN = 0
"""Value of an array without provenance."""
ANY = (1 << 63) - 1
"""Value of an array that cannot be compared before the launch: it matches every other."""
MASK = (1 << 62) - 1
"""Largest of all other values."""
_PARTIAL, _BLOCKS = 1 << 62, 31
"""Value of several arrays, some of which are `ANY`: this bit, one bit for each block of arrays that holds such an array, and a hash of
the rest. Up to this many arrays, each is a block of its own.
"""
_SHOWN_LINES, _SHOWN_ARRAYS = 4, 3
_UNGUARDED = "from where the guard does not look (--guard off or parity)"
_NOT_GUARDED = "Make it in the same cell, under one guard, on every rank."
_SORT = "Sort what you list; make each array on the same line, as often on every rank."


def combine_values(values: Sequence[int], free: int = 0) -> int:
    """Hash the values of a launch's arrays; the result is less than 2**63.

    Args:
        free: blocks of arrays that are `ANY` on another rank, as returned by `what_is_free`.

    >>> combine_values([5, 7]) == combine_values([7, 5]), combine_values([5, UNKNOWN]) == combine_values([5, UNKNOWN])
    (False, True)
    >>> combine_values([5, 7], what_is_free(combine_values([ANY, 7]))) == combine_values([ANY, 7])
    True
    """
    if not free and ANY not in values:
        return hash(tuple(values)) & MASK
    count = len(values)
    for place, value in enumerate(values):
        free |= (value == ANY) << _block(place, count)
    compared = [value for place, value in enumerate(values) if not free >> _block(place, count) & 1]
    return _PARTIAL | free << _BLOCKS | hash(tuple(compared)) % (1 << _BLOCKS)


def _block(place: int, count: int) -> int:
    return place if count <= _BLOCKS else place * _BLOCKS // count


def find_conflict(values: Iterable[int]) -> list[int]:
    """Return the values that contradict each other, in their order; empty if all may be of the same arrays.

    Two values are compared only if the same arrays are `ANY` in both: see `join_free`.

    >>> find_conflict([5, 7, 5, ANY]), find_conflict([5, combine_values([ANY, 7])])
    ([5, 7], [])
    >>> len(find_conflict([combine_values([ANY, 7]), combine_values([ANY, 8])]))
    2
    """
    kinds: dict[int, dict[int, None]] = {}
    for value in values:
        kinds.setdefault(what_is_free(value), {})[value] = None
    return next((list(found) for found in kinds.values() if len(found) > 1), [])


def join_free(values: Iterable[int]) -> int:
    """Return the blocks of arrays that are `ANY` on some rank, as bits; 0 if they are the same on all ranks.

    >>> join_free([5, 5]), join_free([combine_values([ANY, 7])]), join_free([5, combine_values([ANY, 7])])
    (0, 0, 1)
    """
    found = {what_is_free(value) for value in values}
    return functools.reduce(operator.or_, found) if len(found) > 1 else 0


def what_is_free(value: int) -> int:
    """Return the blocks of a launch's arrays that are not compared, one bit each; 0 if all are compared.

    >>> what_is_free(combine_values([5, 7])), what_is_free(combine_values([5, ANY]))
    (0, 2)
    """
    return (value & ~_PARTIAL) >> _BLOCKS if value & _PARTIAL else 0


def masked_places(free: int, count: int) -> list[int]:
    """Return the positions of the arrays that are not compared.

    Args:
        count: of the launch's arrays.

    >>> masked_places(what_is_free(combine_values([ANY, 7, ANY])), 3), masked_places(0, 3)
    ([0, 2], [])
    """
    return [place for place in range(count) if free >> _block(place, count) & 1] if free else []


def find_divergence(rows: Iterable[Sequence[InputRow]]) -> int:
    """Return the first cell in which ranks made different arrays for one launch; 0 if none is known.

    Of the cells that made an array which differs, the latest counts, because the other ranks still hold an earlier version.

    Args:
        rows: by rank.

    >>> find_divergence([[[5, 2], [7, 3]], [[5, 2], [8, 22]]]), find_divergence([[[5, 2]], [[5, 2]]])
    (22, 0)
    """
    sides = [list(zip(*(row[:2] for row in same), strict=True)) for same in zip(*rows, strict=False)]
    makers = [max(cells) for values, cells in sides if len({*values} - {ANY}) > 1]
    return min(filter(None, makers), default=0)


def are_input_rows(rows: Any) -> bool:
    """Check whether a rank's message about the arrays of a launch is well-formed.

    >>> are_input_rows([[5, 2, "f32[8]", "jit(f) (cell 2)", ""]]), are_input_rows([[5, 2]])
    (True, False)
    """
    return type(rows) is list and all(map(_is_input_row, rows))


def _is_input_row(row: Any) -> bool:
    match row:
        case [int(value), int(cell), str(), str(), str(sample)]:
            hexadecimal = not sample.strip("0123456789abcdef") and len(sample) % 16 == 0
            return 0 <= value <= ANY and 0 <= cell < 1 << 32 and hexadecimal
    return False


def describe_divergence(rows: Mapping[int, Sequence[InputRow]]) -> list[str]:
    """Describe which arrays of a refused launch differ, what each rank has there, and how to fix it.

    >>> one, two = ([[value, 0, "f32[]", "", f"000000000000{n}40"]] for value, n in ((5, "00"), (6, "40")))
    >>> print(describe_divergence({0: one, 1: two, 2: two})[0])
    array 1 of the launch, f32[], is 32.0 on ranks 1-2, 2.0 on rank 0
    """
    told: list[str] = []
    cures: list[str] = []
    places = zip(*rows.values(), strict=False)
    for number, same in enumerate(places, 1):
        by_rank = {rank: row for rank, row in zip(rows, same, strict=True) if row[0] != ANY}
        if len({row[0] for row in by_rank.values()}) > 1:
            text, cure = _describe_array(number, by_rank)
            told.append(text)
            cures += [cure] if cure and cure not in cures else []
    more = len(told) - _SHOWN_ARRAYS
    return [*told[:_SHOWN_ARRAYS], *([f"{more} more arrays of the launch differ"] if more > 0 else []), *cures]


def _describe_array(number: int, by_rank: Mapping[int, InputRow]) -> tuple[str, str]:
    groups = [(ranks, by_rank[ranks[0]]) for ranks, _ in group_ranks({rank: row[0] for rank, row in by_rank.items()})]
    rows, samples = [row for _, row in groups], [read_sample(row[4]) for _, row in groups]
    kind = rows[0][2]
    head = f"array {number} of the launch{f', {kind},' if kind else ''}"
    made = describe_provenance({rank: (row[0], row[3] or "what it was given") for rank, row in by_rank.items()})
    if any(row[0] == UNKNOWN for row in rows):
        return f"{head} is {made}", _NOT_GUARDED
    gap = format_gap(kind, samples)
    if any(row[3] for row in rows):
        cure = UNEQUAL_CURE if all(samples) else ""
        cure = _SORT if all(row[3].startswith(PLACED) for row in rows) else cure
        return f"{head} is {made}{f'; {gap}' if gap else ''}", cure
    if all(len(sample) == 1 for sample in samples):
        told = ", ".join(
            f"{sample[0]!r} on {say_ranks(ranks)}" for (ranks, _), sample in zip(groups, samples, strict=True)
        )
        return f"{head} is {told}", UNEQUAL_CURE
    who = " than on ".join(say_ranks(ranks) for ranks, _ in reversed(groups))
    return f"{head} has other values on {who}{f'; {gap}' if gap else ''}", f"{UNEQUAL_CURE} {OWN_DATA}"


def describe_provenance(known: Mapping[int, tuple[int, str]]) -> str:
    """Describe where one array comes from on each rank; empty if that is the same on all.

    Args:
        known: by rank, the array's value, and what made it as text.

    >>> describe_provenance({0: (7, "jit(f) (cell 2)"), 1: (5, "host data"), 2: (5, "host data")})
    'from host data on ranks 1-2, from jit(f) (cell 2) on rank 0'
    >>> describe_provenance({0: (7, "jit(f)"), 1: (7, "jit(f)")})
    ''
    """
    groups = group_ranks({rank: value for rank, (value, _) in known.items() if value != ANY})
    if len(groups) < 2:
        return ""
    words = [_UNGUARDED if value == UNKNOWN else f"from {known[ranks[0]][1] or HOST_DATA}" for ranks, value in groups]
    words = [f"{word} once more" if word in words[:at] else word for at, word in enumerate(words)]
    return ", ".join(f"{word} on {say_ranks(ranks)}" for word, (ranks, _) in zip(words, groups, strict=True))


def format_uncompared(count: int, lines: Iterable[int]) -> str:
    """Format the note of how many arrays of a cell's launches were not compared, and which lines launched on them.

    >>> format_uncompared(1, [2])
    '1 array was not compared: made with --guard off, parity or --ranks, or not seen by the guard (line 2)'
    """
    shown = sorted(lines)
    many = len(shown) > 1
    listed = ", ".join(map(str, shown[:_SHOWN_LINES])) + (", …" if len(shown) > _SHOWN_LINES else "")
    where = f" (line{'s' if many else ''} {listed})" if shown else ""
    what = "1 array was" if count == 1 else f"{count} arrays were"
    return f"{what} not compared: made with --guard off, parity or --ranks, or not seen by the guard{where}"


def format_producer(name: str, seq: int, line: int | None) -> str:
    """Format the launch that made an array.

    >>> format_producer("jit(multiply)", 4, 2)
    'jit(multiply) (cell 4, line 2)'
    """
    return f"{name} (cell {seq}{f', line {line}' if line else ''})"
