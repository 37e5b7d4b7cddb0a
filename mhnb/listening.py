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
from typing import TypeVar

from mhnb.core.machine import Machine
from mhnb.core.results import CellResult
from mhnb.core.where import WhereCard
from mhnb.errors import MhnbError
from mhnb.roll import StartReport
from mhnb.rundir import write_where
from mhnb.view.where import format_where_text

__all__ = ["ClusterListener"]

_Shown = TypeVar("_Shown")


class ClusterListener:
    """Keeps how a start goes for the one who waits for it, and calls who shows the rest.

    Args:
        report: makes the progress report of a machine at a time.
        run_dir: where the hang card is kept, for `mhnb where NAME`; None to keep it nowhere.
    """

    def __init__(self, report: Callable[[Machine, float], StartReport], run_dir: Path | None = None) -> None:
        self._report = report
        self.starting: queue.SimpleQueue[StartReport | MhnbError] = queue.SimpleQueue()
        self.late: Callable[[CellResult], None] | None = None
        self.notice: Callable[[str], None] = partial(print, file=sys.stderr)
        self._keep_where = None if run_dir is None else partial(_write_card, run_dir)

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


def _write_card(run_dir: Path, card: WhereCard | None) -> None:
    write_where(run_dir, None if card is None else format_where_text(card))


def _show(show: Callable[[_Shown], None], what: _Shown) -> bool:
    """Call a view. One that fails says so, and does not end the reader thread that called it."""
    try:
        show(what)
    except Exception:  # noqa: BLE001  # a view is anybody's code
        traceback.print_exc()
        return False
    return True
