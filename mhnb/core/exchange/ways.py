"""Suggest how to pull a value that differs between the ranks; only options that would work are suggested.

It decides on the rows of `transfer`. A value whose arrays are each on one rank gets the default advice of `differs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhnb.core.exchange.transfer import ValueDescription, find_missing_box
from mhnb.core.ranks import describe_ranks, format_ranks

__all__ = ["suggest_pull_options"]

_MAX_GROUPS = 2
"""At most this many of the differing groups are offered."""


def suggest_pull_options(
    name: str,
    rows: Mapping[int, ValueDescription],
    groups: Sequence[Sequence[int]],
    array_numbers: Mapping[int, Sequence[int]],
) -> str:
    """Suggest how to pull a differing value that holds arrays of which some rank has only a part; empty for any other value.

    Args:
        groups: the ranks with equal values.
        array_numbers: for a rank, its number of each array of the first rank; a rank that is not listed uses the same numbers.

    >>> values = {0: ValueDescription("n", "1", 0, (), "9a", ()), 1: ValueDescription("n", "2", 0, (), "9b", ())}
    >>> suggest_pull_options("n", values, [(0,), (1,)], {})
    ''
    """
    if all(_is_complete(rows, [rank], {}) for rank in rows):
        return ""
    # The group with more of an array is most likely the intended one; a long list of groups would not help.
    ordered = sorted(groups, key=lambda ranks: (-_count_global(rows[ranks[0]]), -len(ranks), ranks[0]))
    options = [
        f"from {describe_ranks(ranks)}: %mhjax pull {name} --ranks {format_ranks(ranks)}"
        for ranks in ordered
        if _is_complete(rows, ranks, array_numbers)
    ][:_MAX_GROUPS]
    if _can_list(rows):
        options.append(f"as a list by rank: %mhjax pull {name} --each")
    if options:
        return f"Take it {'; or '.join(options)}"
    return (
        "None of them holds all of its arrays: on the ranks, bind those to names of their own, and pull each by itself"
    )


def _count_global(row: ValueDescription) -> int:
    return sum(array.is_global for array in row.arrays)


def _is_complete(
    rows: Mapping[int, ValueDescription], ranks: Sequence[int], array_numbers: Mapping[int, Sequence[int]]
) -> bool:
    """Return whether ranks with equal values together hold all of its global arrays."""
    first = rows[ranks[0]]
    return all(
        find_missing_box({r: rows[r].arrays[array_numbers[r][index] if r in array_numbers else index] for r in ranks})
        is None
        for index, array in enumerate(first.arrays)
        if array.is_global
    )


def _can_list(rows: Mapping[int, ValueDescription]) -> bool:
    """Return whether `--each` works: the ranks have the same global arrays, and together hold them completely."""
    if len({row.digest for row in rows.values()}) > 1:
        return False
    # Rows with equal digests have equally many arrays.
    for same in zip(*(row.arrays for row in rows.values()), strict=True):
        if any(array.is_global for array in same):
            views = {(array.shape, array.dtype, array.owners) for array in same}
            if len(views) > 1 or find_missing_box(dict(enumerate(same))) is not None:
                return False
    return True
