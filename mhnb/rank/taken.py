"""What has become of the interrupt of the running cell: whether its code got it, and what it may still change.

An interrupt comes again and again until it gets there. Once it did, what the code does about it is its own: a checkpoint that an
`except KeyboardInterrupt` writes is not to be hit by what was meant for the loop before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["TakenInterrupt"]

_SAME_S = 1.0
"""An interrupt that comes so soon after the one that got there is the same one: the notebook has not heard of it yet."""


class TakenInterrupt:
    """Keeps it; asked by the signal handler, and by the thread that tells the notebook.

    Args:
        clock: seconds, of any origin.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at_s: float | None = None
        self._told = False
        self.came_early = False
        """It came after the cell was begun and before its code ran."""
        self.is_finishing = False
        """The cell's code was interrupted and has ended, and so does the cell soon: another interrupt changes nothing."""
        self._show_unraisable = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def close(self) -> None:
        """Let go of the interpreter."""
        sys.unraisablehook = self._show_unraisable

    def begin_cell(self) -> None:
        """Another cell: nothing has come."""
        self._at_s = None
        self._told = self.came_early = self.is_finishing = False

    def note(self) -> None:
        """The cell's code gets one now."""
        self._at_s = self._clock()

    @property
    def got_there(self) -> bool:
        """Whether the cell's code has got one."""
        return self._at_s is not None

    def changes_nothing(self) -> bool:
        """Whether one that comes now is to be left alone."""
        at_s = self._at_s
        return self.is_finishing or (at_s is not None and self._clock() - at_s < _SAME_S)

    def is_news(self) -> bool:
        """Whether the notebook has not been told yet that the code got one; asked once."""
        news = self.got_there and not self._told
        self._told = self._told or news
        return news

    def _on_unraisable(self, unraisable: Any) -> None:
        """One that came while a finalizer or a callback ran went nowhere: the next one is to be taken."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._at_s, self._told = None, False
        else:
            self._show_unraisable(unraisable)
