"""A cell that somebody waits for, between the thread that handed it in and the reader."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from mhnb.core.output.results import CellResult
from mhnb.errors import MhnbError

__all__ = ["Submission", "Update"]

Update: TypeAlias = CellResult | MhnbError


@dataclass(slots=True)
class Submission:
    """A cell that somebody waits for: results so far, then the last one, or the error that refused it."""

    ticket: int
    """Its number among everything submitted."""
    live: bool
    updates: queue.SimpleQueue[Update] = field(default_factory=queue.SimpleQueue)

    def wait(self, on_snapshot: Callable[[CellResult], None] | None) -> CellResult:
        """Wait for the end, and hand on what comes before it.

        Raises:
            MhnbError: the cell was refused.
        """
        while True:
            update = self._latest()
            if isinstance(update, MhnbError):
                raise update
            if update.done:
                return update
            if on_snapshot is not None:
                on_snapshot(update)

    def _latest(self) -> Update:
        """Wait for an update; of several that wait only the last is of use, however slow the view is."""
        update = self.updates.get()
        while not self.updates.empty():
            update = self.updates.get()
        return update
