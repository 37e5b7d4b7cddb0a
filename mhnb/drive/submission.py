"""Handle of a submitted cell, shared by the thread that submitted it and the event loop."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from mhnb.core.output.results import CellResult
from mhnb.errors import MhnbError

__all__ = ["CellFuture", "Update"]

Update: TypeAlias = CellResult | MhnbError


@dataclass(slots=True)
class CellFuture:
    """Handle of a submitted cell: receives the results so far, then the last one, or the error that refused it."""

    ticket: int
    """Its number among all submissions."""
    live: bool
    updates: queue.SimpleQueue[Update] = field(default_factory=queue.SimpleQueue)

    def wait(self, on_snapshot: Callable[[CellResult], None] | None) -> CellResult:
        """Wait for the last result, and pass earlier ones to `on_snapshot`.

        Raises:
            MhnbError: the cell was refused.
        """
        while True:
            update = self._wait_newest()
            if isinstance(update, MhnbError):
                raise update
            if update.done:
                return update
            if on_snapshot is not None:
                on_snapshot(update)

    def _wait_newest(self) -> Update:
        """Wait for an update, and return the newest. Older ones are dropped, however slow the view is."""
        update = self.updates.get()
        while not self.updates.empty():
            update = self.updates.get()
        return update
