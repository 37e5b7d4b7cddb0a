"""Suggest how to pull a value that differs between the ranks; only options that would work are suggested.

It decides on the rows of `transfer`. A value whose arrays are each on one rank gets the default advice of `differs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhnb.core.exchange.transfer import ValueRow, lacking_box
from mhnb.core.ranks import format_ranks, say_ranks

__all__ = ["advise"]

_SIDES = 2
"""At most this many of the differing groups are offered."""


def advise(
    name: str, rows: Mapping[int, ValueRow], groups: Sequence[Sequence[int]], numbers: Mapping[int, Sequence[int]]
) -> str:
    """Suggest how to pull a differing value that holds arrays of which some rank has only a part; empty for any other value.

    Args:
        groups: the ranks with equal values.
        numbers: for a rank, its number of each array of the first rank; a rank that is not listed uses the same numbers.

    >>> advise("n", {0: ValueRow("n", "1", 0, (), "9a", ()), 1: ValueRow("n", "2", 0, (), "9b", ())}, [(0,), (1,)], {})
    ''
    """
    if all(_is_whole(rows, [rank], {}) for rank in rows):
        return ""
    # The group with more of an array is most likely the intended one; a long list of groups would not help.
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
    """Return whether ranks with equal values together hold all of its global arrays."""
    first = rows[ranks[0]]
    return all(
        lacking_box({r: rows[r].arrays[numbers[r][index] if r in numbers else index] for r in ranks}) is None
        for index, array in enumerate(first.arrays)
        if array.is_global
    )


def _makes_list(rows: Mapping[int, ValueRow]) -> bool:
    """Return whether `--each` works: the ranks have the same global arrays, and together hold them completely."""
    if len({row.digest for row in rows.values()}) > 1:
        return False
    # Rows with equal digests have equally many arrays.
    for same in zip(*(row.arrays for row in rows.values()), strict=True):
        if any(array.is_global for array in same):
            views = {(array.shape, array.dtype, array.owners) for array in same}
            if len(views) > 1 or lacking_box(dict(enumerate(same))) is not None:
                return False
    return True
