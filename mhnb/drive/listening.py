"""Deliver events of the event loop to the cluster's user: start progress, late output, notifications.

It knows the receiver of each event, but not how the event is shown.
"""

from __future__ import annotations

import queue
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from mhnb.core.explain.where import WhereCard
from mhnb.core.life.machine import Machine
from mhnb.core.output.results import CellResult
from mhnb.drive.roll import StartReport
from mhnb.errors import MhnbError
from mhnb.system.rundir import write_where
from mhnb.view.boards.where import format_where_text

__all__ = ["ClusterListener", "Listener", "print_notice"]

_Shown = TypeVar("_Shown")


class Listener(Protocol):
    """Receiver of events that no submitter waits for. Its methods are called in the event-loop thread."""

    def on_progress(self, machine: Machine, now: float) -> None:
        """Handle start progress: a rank reached a new phase, a second has passed, or all ranks are ready."""

    def on_failure(self, error: MhnbError) -> None:
        """Handle a failed start."""

    def on_late(self, result: CellResult) -> None:
        """Handle output that arrived for a cell that had ended."""

    def on_notice(self, text: str) -> None:
        """Handle a text that the user must see."""

    def on_where(self, card: WhereCard | None) -> None:
        """Handle a hang report of a long-running cell; None once the cell has ended."""


class ClusterListener:
    """Listener that queues start progress for `wait_ready`, and passes other events to registered callbacks.

    Args:
        report: builds the progress report of a state machine at a time.
    """

    def __init__(self, report: Callable[[Machine, float], StartReport]) -> None:
        self._report = report
        self.starting: queue.SimpleQueue[StartReport | MhnbError] = queue.SimpleQueue()
        self.late: Callable[[CellResult], None] | None = None
        self.notice: Callable[[str], None] = print_notice
        self._keep_where: Callable[[WhereCard | None], None] | None = None

    def keep_where(self, run_dir: Path) -> None:
        """Store the hang report in a directory from now on, for `mhnb where NAME`."""
        self._keep_where = partial(_write_card, run_dir)

    def wait_ready(self, on_progress: Callable[[StartReport], None] | None) -> float:
        """Wait until the ranks can take cells; return how many seconds the start took.

        Raises:
            MhnbError: the start failed.
        """
        while True:
            update = self.starting.get()
            if isinstance(update, MhnbError):
                raise update
            if on_progress is not None:
                on_progress(update)
            if update.ready:
                return update.elapsed_s

    def on_progress(self, machine: Machine, now: float) -> None:
        """Queue the progress of the ranks."""
        self.starting.put(self._report(machine, now))

    def on_failure(self, error: MhnbError) -> None:
        """Queue the error of the failed start."""
        self.starting.put(error)

    def on_late(self, result: CellResult) -> None:
        """Show late output, if a callback is registered."""
        if self.late is not None:
            _show(self.late, result)

    def on_notice(self, text: str) -> None:
        """Show a text to the user."""
        _show(self.notice, text)

    def on_where(self, card: WhereCard | None) -> None:
        """Write the hang report to its file. After one failure (a full disk, say) it stops, because it would fail every second."""
        if self._keep_where is not None and not _show(self._keep_where, card):
            self._keep_where = None


def print_notice(text: str) -> None:
    """Print to the current stderr: while rich redraws a terminal's lines, it replaces stderr and puts the text above them."""
    print(text, file=sys.stderr)


def _write_card(run_dir: Path, card: WhereCard | None) -> None:
    write_where(
        run_dir, None if card is None else format_where_text(card, ends="the stop button or Ctrl-C where it runs")
    )


def _show(show: Callable[[_Shown], None], what: _Shown) -> bool:
    """Call a view; return whether it succeeded. A failing view prints its traceback and does not end the event-loop thread."""
    try:
        show(what)
    except Exception:  # noqa: BLE001  # a view is arbitrary code
        traceback.print_exc()
        return False
    return True
