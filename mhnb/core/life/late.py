"""Output for a cell that has ended: each rank tells of it at a moment of its own, and it is shown when all have had the time to."""

from __future__ import annotations

from mhnb.core.output.results import CellResult

__all__ = ["LateOutput"]

_GATHER_S, _GATHER_BUSY_S = 0.35, 0.1
"""A rank between two cells looks at what it said every 0.3 s; one that runs a cell every 0.05 s."""


class LateOutput:
    """Cells whose late output waits to be shown. Ranks that say the same thing are then seen to say the same."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[CellResult, float]] = {}
        """By number: the cell as it is by now, and when it is to be shown."""

    def note(self, result: CellResult, now: float, *, busy: bool = False) -> None:
        """More came for a cell, or another one updated a display of it; that does not put off what came before.

        Args:
            busy: whether the ranks run a cell.
        """
        _, due = self._waiting.get(result.seq, (None, now + (_GATHER_BUSY_S if busy else _GATHER_S)))
        self._waiting[result.seq] = (result, due)

    def take(self, now: float | None = None) -> list[CellResult]:
        """Hand out what is to be shown now, in the order in which it came; all there is where no time is given.

        >>> late = LateOutput()
        >>> late.note(CellResult(3, "f()", (), wall_s=0.1), now=5.0)
        >>> len(late.take(5.1)), len(late.take(5.4)), len(late.take())
        (0, 1, 0)
        """
        if not self._waiting:
            return []
        ready = [seq for seq, (_, due) in self._waiting.items() if now is None or now >= due]
        return [self._waiting.pop(seq)[0] for seq in ready]
