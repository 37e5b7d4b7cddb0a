"""What became of the arrays that programs without a collective made in a cell: held at its end, or let go of."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from mhnb.core.guard.rules import communicates
from mhnb.core.wire.protocol import LaunchRow

__all__ = ["FreeOutputs"]


class FreeOutputs:
    """The outputs of the last launch of each program without a collective at each line of the cell. Keeps none of them alive."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int | None], tuple[Callable[[], Any], ...]] = {}

    def note(self, row: LaunchRow, outputs: Sequence[object]) -> None:
        """Take what a launch gave."""
        self._last[row[0], row[3]] = tuple(map(weakref.ref, outputs))

    def settle(self, rows: Sequence[LaunchRow]) -> list[LaunchRow]:
        """Give the rows as they are compared, and begin anew.

        How often a program ran whose output nobody holds is of no consequence: `%timeit` chooses that on each rank for
        itself. That it ran is told, as one row with a count of 0.
        """
        last, self._last = self._last, {}
        told: set[tuple[str, int | None]] = set()
        compared = []
        for row in rows:
            key = (row[0], row[3])
            if communicates(row[0]) or any(_is_held(output()) for output in last.get(key, ())):
                compared.append(row)
            elif key not in told:
                told.add(key)
                compared.append([*row[:4], 0])
        return compared


def _is_held(output: Any) -> bool:
    return output is not None and not output.is_deleted()
