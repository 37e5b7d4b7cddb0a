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

from mhnb.core.explain.where import HangReport
from mhnb.core.life.machine import ClusterStateMachine
from mhnb.core.output.results import CellResult
from mhnb.drive.roll import StartProgress
from mhnb.errors import MhnbError
from mhnb.system.rundir import write_hang_report
from mhnb.view.boards.collectives import format_hang_text

__all__ = ["ClusterListener", "EventListener", "print_notice"]

_Value = TypeVar("_Value")


class EventListener(Protocol):
    """Receiver of events that no submitter waits for. Its methods are called in the event-loop thread."""

    def on_progress(self, state_machine: ClusterStateMachine, now: float) -> None:
        """Handle start progress: a rank reached a new phase, a second has passed, or all ranks are ready."""

    def on_failure(self, error: MhnbError) -> None:
        """Handle a failed start."""

    def on_late(self, result: CellResult) -> None:
        """Handle output that arrived for a cell that had ended."""

    def on_notice(self, text: str) -> None:
        """Handle a text that the user must see."""

    def on_hang_report(self, report: HangReport | None) -> None:
        """Handle a hang report of a long-running cell; None once the cell has ended."""


class ClusterListener:
    """Listener that queues start progress for `wait_ready`, and passes other events to registered callbacks.

    Args:
        build_progress: builds the progress report of a state machine at a time.
    """

    def __init__(self, build_progress: Callable[[ClusterStateMachine, float], StartProgress]) -> None:
        self._build_progress = build_progress
        self.start_updates: queue.SimpleQueue[StartProgress | MhnbError] = queue.SimpleQueue()
        self.show_late: Callable[[CellResult], None] | None = None
        self.show_notice: Callable[[str], None] = print_notice
        self._write_hang_report: Callable[[HangReport | None], None] | None = None

    def enable_hang_report_file(self, run_dir: Path) -> None:
        """Store the hang report in a directory from now on, for `mhnb where NAME`."""
        self._write_hang_report = partial(_write_hang_report_file, run_dir)

    def wait_ready(self, on_progress: Callable[[StartProgress], None] | None) -> float:
        """Wait until the ranks can take cells; return how many seconds the start took.

        Raises:
            MhnbError: the start failed.
        """
        while True:
            update = self.start_updates.get()
            if isinstance(update, MhnbError):
                raise update
            if on_progress is not None:
                on_progress(update)
            if update.ready:
                return update.elapsed_s

    def on_progress(self, state_machine: ClusterStateMachine, now: float) -> None:
        """Queue the progress of the ranks."""
        self.start_updates.put(self._build_progress(state_machine, now))

    def on_failure(self, error: MhnbError) -> None:
        """Queue the error of the failed start."""
        self.start_updates.put(error)

    def on_late(self, result: CellResult) -> None:
        """Show late output, if a callback is registered."""
        if self.show_late is not None:
            _call_view(self.show_late, result)

    def on_notice(self, text: str) -> None:
        """Show a text to the user."""
        _call_view(self.show_notice, text)

    def on_hang_report(self, report: HangReport | None) -> None:
        """Write the hang report to its file. After one failure (a full disk, say) it stops, because it would fail every second."""
        if self._write_hang_report is not None and not _call_view(self._write_hang_report, report):
            self._write_hang_report = None


def print_notice(text: str) -> None:
    """Print to the current stderr: while rich redraws a terminal's lines, it replaces stderr and puts the text above them."""
    print(text, file=sys.stderr)


def _write_hang_report_file(run_dir: Path, report: HangReport | None) -> None:
    write_hang_report(
        run_dir,
        None if report is None else format_hang_text(report, how_to_end="the stop button or Ctrl-C where it runs"),
    )


def _call_view(view: Callable[[_Value], None], value: _Value) -> bool:
    """Call a view; return whether it succeeded. A failing view prints its traceback and does not end the event-loop thread."""
    try:
        view(value)
    except Exception:  # noqa: BLE001  # a view is arbitrary code
        traceback.print_exc()
        return False
    return True
