"""Notes on launches that were refused with an `OrderMismatch` which the cell's code caught; only these notes report them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhnb.core.ranks import describe_ranks

__all__ = ["note_swallowed_mismatches"]

_MAX_NOTES = 3


def note_swallowed_mismatches(caught: Mapping[int, Sequence[Sequence[Any]]]) -> list[str]:
    """Return one note per refused launch whose mismatch was caught; of many launches only the first ones.

    Args:
        caught: by rank, name and line of each launch that it was refused; None for a line outside the cell.

    >>> note_swallowed_mismatches({0: [("jit(f)", 2)], 1: [("jit(f)", 2)], 2: []})
    ['ranks 0-1 caught an OrderMismatch: jit(f), line 2, was not launched']
    """
    members: dict[tuple[str, int | None], list[int]] = {}
    for rank, launches in sorted(caught.items()):
        for name, line in launches:
            members.setdefault((name, line), []).append(rank)
    notes = [
        f"{describe_ranks(ranks)} caught an OrderMismatch: {name}{'' if line is None else f', line {line},'} was not launched"
        for (name, line), ranks in list(members.items())[:_MAX_NOTES]
    ]
    more = len(members) - _MAX_NOTES
    overflow_note = f"an OrderMismatch was caught at {more} more place{'s' if more > 1 else ''} of the cell"
    return [*notes, *([overflow_note] if more > 0 else [])]
