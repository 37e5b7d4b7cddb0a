"""What the reader hears, passed on to the cluster's user: how the start goes, late output, notices.

It knows who is to be told, and nothing of how it is shown.
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
    """Who hears of what no submitter waits for. Called in the reader thread."""

    def on_progress(self, machine: Machine, now: float) -> None:
        """A rank came further while starting, a second has gone by, or all are ready."""

    def on_failure(self, error: MhnbError) -> None:
        """The start failed."""

    def on_late(self, result: CellResult) -> None:
        """Output came for a cell that had ended."""

    def on_notice(self, text: str) -> None:
        """The user must know."""

    def on_where(self, card: WhereCard | None) -> None:
        """Where the ranks are in a cell that lasts; None once it has ended."""


class ClusterListener:
    """Keeps how a start goes for the one who waits for it, and calls who shows the rest.

    Args:
        report: makes the progress report of a machine at a time.
    """

    def __init__(self, report: Callable[[Machine, float], StartReport]) -> None:
        self._report = report
        self.starting: queue.SimpleQueue[StartReport | MhnbError] = queue.SimpleQueue()
        self.late: Callable[[CellResult], None] | None = None
        self.notice: Callable[[str], None] = print_notice
        self._keep_where: Callable[[WhereCard | None], None] | None = None

    def keep_where(self, run_dir: Path) -> None:
        """Keep the hang card in a directory, for `mhnb where NAME`."""
        self._keep_where = partial(_write_card, run_dir)

    def wait_ready(self, on_progress: Callable[[StartReport], None] | None) -> float:
        """Wait until the ranks can take cells; return after how many seconds they could.

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
        """Queue how far the ranks are."""
        self.starting.put(self._report(machine, now))

    def on_failure(self, error: MhnbError) -> None:
        """Queue why the start failed."""
        self.starting.put(error)

    def on_late(self, result: CellResult) -> None:
        """Show late output, where somebody does."""
        if self.late is not None:
            _show(self.late, result)

    def on_notice(self, text: str) -> None:
        """Tell the user."""
        _show(self.notice, text)

    def on_where(self, card: WhereCard | None) -> None:
        """Keep where the ranks are in a file; not any more once that has failed (a full disk, say), as it would every second."""
        if self._keep_where is not None and not _show(self._keep_where, card):
            self._keep_where = None


def print_notice(text: str) -> None:
    """Print to what is stderr by then: where a terminal's lines are drawn anew, rich has taken it over, and puts the text above them."""
    print(text, file=sys.stderr)


def _write_card(run_dir: Path, card: WhereCard | None) -> None:
    write_where(
        run_dir, None if card is None else format_where_text(card, ends="the stop button or Ctrl-C where it runs")
    )


def _show(show: Callable[[_Shown], None], what: _Shown) -> bool:
    """Call a view. One that fails says so, and does not end the reader thread that called it."""
    try:
        show(what)
    except Exception:  # noqa: BLE001  # a view is anybody's code
        traceback.print_exc()
        return False
    return True
