"""Displays of a start, transfer or replay that become its outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from mhnb.core.replay import ReplayStep, format_step
from mhnb.sharding.layout import format_nbytes
from mhnb.types import StartProgress
from mhnb.view.document import Code, Document, Progress
from mhnb.view.html import format_seconds, new_uid
from mhnb.view.live.screen import Region, Screen, detect_screen
from mhnb.view.live.widget import warm_up
from mhnb.view.print_html import print_html, print_parts
from mhnb.view.print_text import print_text
from mhnb.view.reports.start import StartSummary, build_start, build_summary, format_failed_start


class _ReplaceableDisplay:
    """One display, shown once and then replaced by its updates."""

    def __init__(self, screen: Screen | None = None, *, uid: str | None = None) -> None:
        self._screen = screen or detect_screen()
        self._uid = uid or new_uid()
        self._is_shown = False
        self._region: Region | None = None

    def _show_progress(self, document: Document) -> None:
        """Show the progress in the display, or in a temporary terminal area."""
        if self._screen.rich:
            self._show(document)
            return
        self._region = self._region or self._screen.open_region()
        if self._region is not None:
            self._region.show(print_text(document))

    def _show(self, document: Document) -> None:
        self._replace(print_html(document), print_text(document))

    def _show_outcome(self, text: str) -> None:
        """Show text that remains; it may have several lines."""
        self._replace(print_parts([Code(text)]), text)

    def _replace(self, html: str, text: str) -> None:
        data = {"text/html": html, "text/plain": text}
        if self._region is not None:
            region, self._region = self._region, None
            region.close()
        if self._is_shown:
            self._screen.replace(data, self._uid)
        else:
            self._is_shown = True
            self._screen.show(data, self._uid)


class StartDisplay(_ReplaceableDisplay):
    """One display that follows a start and becomes its summary.

    Where text cannot be replaced, only the summary is shown.
    As a context manager it shows how far each rank had come if the start fails.
    """

    _last_progress: StartProgress | None = None
    _last_update_s = 0.0
    _needs_warm_up = True
    _clock = staticmethod(time.monotonic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._last_progress is not None and (self._is_shown or self._region is not None):
            self._show_failure(self._last_progress, "failed" if issubclass(kind, Exception) else "was interrupted")

    def update(self, progress: StartProgress) -> None:
        """Show how far the ranks have come, and the time taken."""
        self._warm_up()
        self._last_progress, self._last_update_s = progress, self._clock()
        self._show_progress(build_start(progress))

    def finish(self, summary: StartSummary) -> None:
        """Show the summary of the start."""
        self._warm_up()
        self._show(build_summary(summary))

    def show_failure(self, outcome: str) -> None:
        """Show how far each rank had come, and how the start ended."""
        if self._last_progress is not None:
            self._show_failure(self._last_progress, outcome)

    def _warm_up(self) -> None:
        """Load the widget's libraries while the ranks start.

        Not earlier, because imports would keep the interpreter busy while the ranks are launched.
        """
        if self._needs_warm_up and self._screen.rich:
            self._needs_warm_up = False
            threading.Thread(target=warm_up, name="mhnb-warm-up", daemon=True).start()

    def _show_failure(self, progress: StartProgress, outcome: str) -> None:
        """Show the last phases and the outcome, without a frozen bar."""
        elapsed_s = progress.elapsed_s + self._clock() - self._last_update_s
        self._show_outcome(format_failed_start(replace(progress, elapsed_s=elapsed_s), outcome))


class ProgressLine(_ReplaceableDisplay):
    """One line that follows a task and becomes its outcome.

    Where text cannot be replaced, only the outcome is shown.
    """

    def update(self, text: str, completed: float) -> None:
        """Show the progress.

        Args:
            completed: the completed share, from 0 to 1.
        """
        self._show_progress([Progress(text, float(completed), 1)])

    def finish(self, text: str) -> None:
        """Replace the line by the outcome, which may have several lines."""
        self._show_outcome(text)

    def finish_with(self, document: Document) -> None:
        """Replace the line by a report."""
        self._show(document)


_FIRST_TRANSFER_LINE_S = 0.5
_TRANSFER_LINE_INTERVAL_S = 0.2


class TransferLine(ProgressLine):
    """A line that follows a pull or push until its outcome.

    A short transfer prints only its outcome. As a context manager the line says how far a failed transfer came.

    Args:
        task: the transfer in words, as `pulling x`.
        screen: where the line appears; None for the current cell.
        uid: id of the display; None for a new one.
    """

    _clock = staticmethod(time.monotonic)

    def __init__(self, task: str, screen: Screen | None = None, *, uid: str | None = None) -> None:
        super().__init__(screen, uid=uid)
        self._task, self._text = task, ""
        self._next_update_s = self._clock() + _FIRST_TRANSFER_LINE_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._text:
            # The error gives the reason; the line must not look as if it were still moving.
            self.finish(f"{self._text} · {'stopped' if issubclass(kind, Exception) else 'interrupted'}")

    def report(self, done: int, total: int) -> None:
        """Show the bytes that were transferred, if it is time to."""
        now_s = self._clock()
        if now_s < self._next_update_s:
            return
        self._next_update_s = now_s + _TRANSFER_LINE_INTERVAL_S
        self._text = f"mhjax · {self._task} · {format_nbytes(done)} of {format_nbytes(total)}"
        self.update(self._text, done / total if total else 1.0)

    def end(self, text: str) -> None:
        """Show the outcome in the line, or print it without one."""
        if self._text:
            self.finish(text)
        else:
            self._screen.write(text)


_REPLAY_TIME_AFTER_S = 1.0


class ReplayLine(ProgressLine):
    """The line of a replay: its step and the time taken.

    Args:
        screen: where the line appears; None for the current cell.
        uid: id of the display; None for a new one.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self, screen: Screen | None = None, *, uid: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(screen, uid=uid)
        self._clock, self._began_s = clock, clock()
        self._step: ReplayStep | None = None
        self._shown_text = ""

    def begin(self, step: ReplayStep) -> None:
        """Show the step that begins."""
        self._step = step
        self.tick()

    def tick(self) -> None:
        """Show the elapsed time, if the text changes by it."""
        if self._step is None:
            return
        elapsed_s = self._clock() - self._began_s
        time_text = f" · {format_seconds(elapsed_s)}" if elapsed_s >= _REPLAY_TIME_AFTER_S else ""
        text = f"{format_step(self._step)}{time_text}"
        if text != self._shown_text:
            self._shown_text = text
            self.update(text, self._step.done / len(self._step.plan.steps))
