"""The console of the debugger, in the thread that submitted the cell: read lines, send them to the ranks, print their answers.

What is printed and who gets a line is decided in `core/debugging.py`. While the user types, another thread takes the cell's updates.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from mhnb.cluster.event_loop import CellFuture, CellUpdates
from mhnb.core.debugging import Console, DebugRequest, TypedLine
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import describe_ranks
from mhnb.core.state.events import DebugLineTyped, InterruptRequested
from mhnb.errors import InvalidRequest, MhnbError
from mhnb.system.keyboard import Cancelled, Keyboard


class LineReader(Protocol):
    """Reads lines that the user types."""

    def read(self, prompt: str) -> str:
        """Read a line; raise EOFError, KeyboardInterrupt or `Cancelled` if the user types no line."""

    def cancel(self) -> None:
        """End the read in progress, and every later one, from another thread."""


class SuspendableView(Protocol):
    """A view that may draw where the user types."""

    def suspend(self) -> None:
        """Draw nothing in a terminal until `resume`."""

    def resume(self) -> None:
        """Draw again."""

    def close_input(self) -> None:
        """Remove the box in which the user was to type, because the line is not waited for any more."""


_VIEW_METHODS = ("suspend", "resume", "close_input")


def check_debug_arguments(debug: object, console: object) -> None:
    """Check the arguments of a cell that may stop in the debugger.

    Raises:
        InvalidRequest: an argument is of another type, or this is not the main thread.
    """
    if debug is not None and not isinstance(debug, DebugRequest):
        raise InvalidRequest(f"debug={debug!r:.80}: expected a DebugRequest of mhnb.core.debugging, or None")
    if debug is not None and threading.current_thread() is not threading.main_thread():
        raise InvalidRequest(
            f"debug={debug!r:.80}: expected None, because lines are typed in the main thread, and this is thread "
            f"{threading.current_thread().name!r}"
        )
    if console is not None and not all(callable(getattr(console, name, None)) for name in _VIEW_METHODS):
        raise InvalidRequest(
            f"console={console!r:.80}: expected a view with the methods {', '.join(_VIEW_METHODS)}, or None"
        )


def check_stop_ranks(debug: DebugRequest | None, ranks: Iterable[int]) -> None:
    """Check that the ranks that are to stop run the cell, because another one would never stop.

    Raises:
        InvalidRequest: one does not.
    """
    known = tuple(ranks)
    if unknown := [rank for rank in (() if debug is None else debug.stop_ranks or ()) if rank not in known]:
        raise InvalidRequest(
            f"stop_ranks: {', '.join(map(repr, unknown)):.80}: expected ranks of the cell, which runs on {describe_ranks(known)}"
        )


class DebugConsole:
    """Follows one cell whose ranks may stop in the debugger.

    Args:
        submission: the cell.
        post: passes an event to the cluster.
        is_post_mortem: whether the cell only inspects what an earlier cell left.
        view: the view of the cell; None for no view.
        keyboard: where lines are read; None for `input()`.
    """

    def __init__(
        self,
        submission: CellFuture,
        post: Callable[[DebugLineTyped | InterruptRequested], None],
        *,
        is_post_mortem: bool = False,
        view: SuspendableView | None = None,
        keyboard: LineReader | None = None,
    ) -> None:
        self._submission, self._post, self._view = submission, post, view
        self._console = Console(is_post_mortem=is_post_mortem)
        self._keyboard = Keyboard() if keyboard is None else keyboard
        self._is_suspended = False
        """Whether the view does not draw now."""
        self._leaves_box = False
        """Whether a line was not typed, so that a front end may still show where to type it."""

    def follow(self, on_snapshot: Callable[[CellResult], None] | None) -> CellResult:
        """Wait for the last result, and pass earlier ones to `on_snapshot`; read lines while ranks have stopped.

        Raises:
            MhnbError: the cell was refused.
        """
        updates = self._submission.take()
        try:
            while (result := self._handle(updates, on_snapshot)) is None:
                prompt = None if self._console.has_left else self._advance()
                updates = self._submission.take() if prompt is None else self._type(prompt, on_snapshot)
            _write(self._console.finish())
            return result
        except BaseException as error:
            if not self._console.is_idle:
                # The ranks that have stopped would wait forever.
                self._carry_out(self._console.leave())
            if not isinstance(error, MhnbError):
                # The cell may run on, and stop later.
                threading.Thread(target=self._leave_later_stops, name="mhnb-console", daemon=True).start()
            raise
        finally:
            self._suspend_view(is_typing=False)
            if self._leaves_box and self._view is not None:
                # At the end, because the ranks must not wait for the front end.
                self._view.close_input()

    def _leave_later_stops(self) -> None:
        """End the cell when a rank stops in it, until its end; for a cell whose caller has got an error."""
        is_running = True
        while is_running:
            updates = self._submission.take()
            if updates.debugger is not None:
                self._console.update(updates.debugger)
                if updates.debugger.prompts:
                    self._carry_out(self._console.leave())
            is_running = not _is_end(updates.result)

    def _handle(self, updates: CellUpdates, on_snapshot: Callable[[CellResult], None] | None) -> CellResult | None:
        """Take note of updates, and return the last result, if it is there."""
        if updates.debugger is not None:
            self._console.update(updates.debugger)
            if self._console.has_left:
                # Code that handles the interrupt may stop again, and no more lines are read.
                self._carry_out(self._console.leave())
        result = updates.result
        if isinstance(result, MhnbError):
            raise result
        if result is None or result.done:
            return result
        if on_snapshot is not None:
            on_snapshot(result)
        return None

    def _advance(self) -> str | None:
        """Print what there is to print, and return the prompt to read a line with."""
        text, prompt = self._console.advance()
        # Not between a line and its answer: the view would appear for a moment only.
        self._suspend_view(is_typing=not self._console.is_idle)
        _write(text)
        return prompt

    def _suspend_view(self, *, is_typing: bool) -> None:
        if self._view is not None and is_typing != self._is_suspended:
            self._is_suspended = is_typing
            (self._view.suspend if is_typing else self._view.resume)()

    # -- what the user types

    def _type(self, prompt: str, on_snapshot: Callable[[CellResult], None] | None) -> CellUpdates:
        """Read a line and send it; return the updates that came meanwhile."""
        taker = _UpdateTaker(self._submission, on_snapshot, self._keyboard.cancel)
        try:
            take_line = self._read(prompt)
        finally:
            taker.stop()
        if taker.error is not None:
            raise taker.error
        if (update := taker.updates.debugger) is not None:
            self._console.update(update)
        if taker.updates.result is None:
            self._carry_out(take_line())
        return CellUpdates(taker.updates.result)

    def _read(self, prompt: str) -> Callable[[], TypedLine]:
        """Read a line, and return what takes it once it is known what the ranks do now."""
        take: Callable[[], TypedLine]
        try:
            return partial(self._console.type_line, self._keyboard.read(prompt))
        except EOFError:
            take = self._console.type_end
        except KeyboardInterrupt:
            take = self._console.leave
        except Cancelled:
            take = TypedLine
        except (OSError, RuntimeError, ValueError) as error:
            # The terminal or the front end is gone, or does not take questions; the ranks must not wait for an answer.
            print(f"*** no line can be read: {type(error).__name__}: {error}", file=sys.stderr)
            take = self._console.leave
        if sys.stdout.isatty():
            # The cursor is still behind the prompt.
            print()
        # After the end of input, which is typed, there is no box left to remove.
        self._leaves_box = self._leaves_box or take != self._console.type_end
        return take

    def _carry_out(self, typed: TypedLine) -> None:
        _write(typed.text)
        if self._console.has_left:
            self._suspend_view(is_typing=False)
        if typed.is_interrupt:
            self._post(InterruptRequested(self._submission.ticket))
        for rank, line in typed.sent.items():
            self._post(DebugLineTyped(self._submission.ticket, rank, line))


class _UpdateTaker:
    """Takes the updates of a cell in a thread, while the main thread reads a line.

    Args:
        submission: the cell.
        on_snapshot: gets the results so far.
        cancel: ends the read; called when the cell has ended.
    """

    def __init__(
        self, submission: CellFuture, on_snapshot: Callable[[CellResult], None] | None, cancel: Callable[[], None]
    ) -> None:
        self.updates = CellUpdates()
        """What has come and was not passed on: the newest state of the debugger, and the end of the cell."""
        self.error: BaseException | None = None
        """What `on_snapshot` raised."""
        self._submission, self._on_snapshot, self._cancel = submission, on_snapshot, cancel
        self._is_stopped = False
        # A kernel finds the cell that a display belongs to by the context.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="mhnb-console", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._is_stopped = True
        self._submission.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_stopped and self.updates.result is None:
                self._take()
        except BaseException as error:  # noqa: BLE001  # it is raised in the main thread
            self.error = error
        if self.updates.result is not None or self.error is not None:
            self._cancel()

    def _take(self) -> None:
        taken = self._submission.take()
        if taken.debugger is not None:
            self.updates.debugger = taken.debugger
        result = taken.result
        if _is_end(result):
            self.updates.result = result
        elif isinstance(result, CellResult) and self._on_snapshot is not None:
            self._on_snapshot(result)


def _is_end(result: CellResult | MhnbError | None) -> bool:
    """Return whether nothing follows an update of a cell."""
    return isinstance(result, MhnbError) or (result is not None and result.done)


def _write(text: str) -> None:
    if text:
        print(text, end="", flush=True)
