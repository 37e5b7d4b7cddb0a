"""How a value that differs between the ranks can be had all the same: only ways that work are named.

It decides on the rows of `transfer`. A value whose arrays lie on one rank each has other words, which are `differs`' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhnb.core.exchange.transfer import ValueRow, lacking_box
from mhnb.core.ranks import format_ranks, say_ranks

__all__ = ["advise"]

_SIDES = 2
"""Of several sides that differ, so many are offered."""


def advise(
    name: str, rows: Mapping[int, ValueRow], groups: Sequence[Sequence[int]], numbers: Mapping[int, Sequence[int]]
) -> str:
    """Say how a value that differs can be had where it holds arrays of which some rank has a part only; else nothing.

    Args:
        groups: the ranks that hold the same.
        numbers: for a rank, its number of each array of the first one; as they stand where it is not named.

    >>> advise("n", {0: ValueRow("n", "1", 0, (), "9a", ()), 1: ValueRow("n", "2", 0, (), "9b", ())}, [(0,), (1,)], {})
    ''
    """
    if all(_is_whole(rows, [rank], {}) for rank in rows):
        return ""
    # The side with more of an array is most likely what was meant; a long list of sides would help nobody.
    sides = sorted(groups, key=lambda ranks: (-_count_global(rows[ranks[0]]), -len(ranks), ranks[0]))
    ways = [
        f"from {say_ranks(ranks)}: %mhjax pull {name} --ranks {format_ranks(ranks)}"
        for ranks in sides
        if _is_whole(rows, ranks, numbers)
    ][:_SIDES]
    if _makes_list(rows):
        ways.append(f"as a list by rank: %mhjax pull {name} --each")
    if ways:
        return f"Take it {'; or '.join(ways)}"
    return (
        "None of them holds all of its arrays: on the ranks, bind those to names of their own, and pull each by itself"
    )


def _count_global(row: ValueRow) -> int:
    return sum(array.is_global for array in row.arrays)


def _is_whole(rows: Mapping[int, ValueRow], ranks: Sequence[int], numbers: Mapping[int, Sequence[int]]) -> bool:
    """Whether ranks that hold the same have all of its global arrays between them."""
    first = rows[ranks[0]]
    return all(
        lacking_box({r: rows[r].arrays[numbers[r][index] if r in numbers else index] for r in ranks}) is None
        for index, array in enumerate(first.arrays)
        if array.is_global
    )


def _makes_list(rows: Mapping[int, ValueRow]) -> bool:
    """Whether `--each` does: their global arrays are the same ones, and all ranks together have them whole."""
    if len({row.digest for row in rows.values()}) > 1:
        return False
    # With equal digests each has as many arrays.
    for same in zip(*(row.arrays for row in rows.values()), strict=True):
        if any(array.is_global for array in same):
            views = {(array.shape, array.dtype, array.owners) for array in same}
            if len(views) > 1 or lacking_box(dict(enumerate(same))) is not None:
                return False
    return True
