"""Notes on launches that were refused with an `OrderMismatch` which the cell's code caught; only these notes report them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhnb.core.ranks import say_ranks

__all__ = ["note_caught"]

_SHOWN = 3


def note_caught(caught: Mapping[int, Sequence[Sequence[Any]]]) -> list[str]:
    """Return one note per refused launch whose mismatch was caught; of many launches only the first ones.

    Args:
        caught: by rank, name and line of each launch that it was refused; None for a line outside the cell.

    >>> note_caught({0: [("jit(f)", 2)], 1: [("jit(f)", 2)], 2: []})
    ['ranks 0-1 caught an OrderMismatch: jit(f), line 2, was not launched']
    """
    members: dict[tuple[str, int | None], list[int]] = {}
    for rank, launches in sorted(caught.items()):
        for name, line in launches:
            members.setdefault((name, line), []).append(rank)
    notes = [
        f"{say_ranks(ranks)} caught an OrderMismatch: {name}{'' if line is None else f', line {line},'} was not launched"
        for (name, line), ranks in list(members.items())[:_SHOWN]
    ]
    more = len(members) - _SHOWN
    elsewhere = f"an OrderMismatch was caught at {more} more place{'s' if more > 1 else ''} of the cell"
    return [*notes, *([elsewhere] if more > 0 else [])]
