"""Buffer late output: ranks report it at different moments, and it is shown once all have had time to do so."""

from __future__ import annotations

from mhnb.core.output.results import CellResult

__all__ = ["LateOutputBuffer"]

_DELAY_S, _BUSY_DELAY_S = 0.35, 0.1
"""A rank checks its output every 0.3 s between cells, and every 0.05 s while it runs a cell."""


class LateOutputBuffer:
    """Finished cells whose late output waits to be shown, so that equal output of several ranks is shown together."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[CellResult, float]] = {}
        """By number: the cell's current result, and the time at which it is shown."""

    def add(self, result: CellResult, now: float, *, is_busy: bool = False) -> None:
        """Record more output for a cell, or a display update by another cell; earlier output is not delayed by it.

        Args:
            is_busy: whether the ranks run a cell.
        """
        _, due = self._waiting.get(result.seq, (None, now + (_BUSY_DELAY_S if is_busy else _DELAY_S)))
        self._waiting[result.seq] = (result, due)

    def take_due(self, now: float | None = None) -> list[CellResult]:
        """Return the results that are due, in the order in which they arrived; all of them if no time is given.

        >>> late = LateOutputBuffer()
        >>> late.add(CellResult(3, "f()", (), wall_s=0.1), now=5.0)
        >>> len(late.take_due(5.1)), len(late.take_due(5.4)), len(late.take_due())
        (0, 1, 0)
        """
        if not self._waiting:
            return []
        ready = [seq for seq, (_, due) in self._waiting.items() if now is None or now >= due]
        return [self._waiting.pop(seq)[0] for seq in ready]
