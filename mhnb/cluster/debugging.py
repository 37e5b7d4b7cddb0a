"""Debugger's console: read lines, send them to ranks, print the answers.

It runs in the thread that submitted the cell. While the user types, another thread takes the cell's updates.
`core/debugging.py` decides what is printed and which rank gets a line.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from mhnb.cluster.event_loop import CellFuture, Update
from mhnb.core.debugging import Console, DebugUpdate, TypedLine
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import describe_ranks
from mhnb.core.state.events import DebugLineTyped, InterruptRequested
from mhnb.errors import InvalidRequest
from mhnb.system.keyboard import Cancelled, Keyboard


class SuspendableView(Protocol):
    """A view that may draw where the user types."""

    def suspend(self) -> None:
        """Draw nothing in a terminal until `resume`."""

    def resume(self) -> None:
        """Draw again."""

    def close_input(self) -> None:
        """Remove the input box, because no line is awaited any more."""


def check_stop_ranks(stop_ranks: Iterable[int], ranks: Iterable[int]) -> None:
    """Check that the cell runs on the ranks that should stop.

    Raises:
        InvalidRequest: one does not.
    """
    known = tuple(ranks)
    if unknown := [rank for rank in stop_ranks if rank not in known]:
        raise InvalidRequest(
            f"stop_ranks: {', '.join(map(repr, unknown)):.80}: expected ranks of the cell, which runs on {describe_ranks(known)}"
        )


class DebugConsole:
    """Follows one cell whose ranks have stopped in the debugger.

    Args:
        submission: the cell.
        post: passes an event to the cluster.
        on_snapshot: gets the results so far.
        is_post_mortem: whether the cell only inspects what an earlier cell left.
        view: the view of the cell; None for no view.
        keyboard: where lines are read; None for `input()`.
    """

    def __init__(
        self,
        submission: CellFuture,
        post: Callable[[DebugLineTyped | InterruptRequested], None],
        on_snapshot: Callable[[CellResult], None] | None,
        *,
        is_post_mortem: bool = False,
        view: SuspendableView | None = None,
        keyboard: Keyboard | None = None,
    ) -> None:
        self._submission, self._post, self._on_snapshot, self._view = submission, post, on_snapshot, view
        self._console = Console(is_post_mortem=is_post_mortem)
        self._keyboard = Keyboard() if keyboard is None else keyboard
        self._is_suspended = False
        """Whether the view does not draw now."""
        self._leaves_box = False
        """Whether a line was not typed, so that a front end may still show where to type it."""
        self._is_over = False
        """Whether the cell has ended, or its view has failed, while a line was read."""
        self._error: BaseException | None = None
        """What `on_snapshot` raised meanwhile."""

    def follow(self) -> Update | None:
        """Read lines for stopped ranks until the cell ends; return its end."""
        try:
            self._read_lines()
            end = self._submission.follow(self._on_snapshot, self._handle)
            self._update()
            _write(self._console.finish())
            return end
        except BaseException:
            if not self._console.is_idle:
                # The ranks that have stopped would wait forever.
                self._carry_out(self._console.leave())
            self.leave_later_stops()
            raise
        finally:
            self._suspend_view(is_typing=False)
            if self._leaves_box and self._view is not None:
                # At the end, because the ranks must not wait for the front end.
                self._view.close_input()

    def leave_later_stops(self) -> None:
        """End the cell if a rank stops after the caller has failed."""
        threading.Thread(target=self._follow_to_leave, name="mhnb-console", daemon=True).start()

    def _follow_to_leave(self) -> None:
        # None comes from a call of `wake` for a thread that had ended by itself.
        while self._submission.follow(None, self._leave) is None:
            pass

    def _leave(self, update: DebugUpdate) -> None:
        self._console.update(update)
        if update.prompts:
            self._carry_out(self._console.leave())

    def _handle(self, update: DebugUpdate) -> None:
        if self._console.has_left:
            # Code that handles the interrupt may stop again, and no more lines are read.
            self._leave(update)
        else:
            self._read_lines()

    def _update(self) -> None:
        """Pass the newest update on, which another thread may have taken."""
        if self._submission.debugger is not None:
            self._console.update(self._submission.debugger)

    def _read_lines(self) -> None:
        """Print new text; at a prompt, read lines until one is sent."""
        while not (self._is_over or self._console.has_left):
            self._update()
            text, prompt = self._console.advance()
            # Not between a line and its answer: the view would appear for a moment only.
            self._suspend_view(is_typing=not self._console.is_idle)
            _write(text)
            if prompt is None:
                return
            self._type(prompt)

    def _suspend_view(self, *, is_typing: bool) -> None:
        if self._view is not None and is_typing != self._is_suspended:
            self._is_suspended = is_typing
            (self._view.suspend if is_typing else self._view.resume)()

    # -- what the user types

    def _type(self, prompt: str) -> None:
        """Read a line and send it, while another thread follows the cell."""
        # A kernel finds the cell that a display belongs to by the context.
        context = contextvars.copy_context()
        follower = threading.Thread(target=context.run, args=(self._follow_beside,), name="mhnb-console", daemon=True)
        follower.start()
        try:
            take_line = self._read(prompt)
        finally:
            self._submission.wake()
            follower.join()
        if self._error is not None:
            raise self._error
        if not self._is_over:
            self._update()
            self._carry_out(take_line())

    def _follow_beside(self) -> None:
        """Follow the cell during a read, which the cell's end cancels."""
        try:
            end = self._submission.follow(self._on_snapshot, _ignore)
        except BaseException as error:  # noqa: BLE001  # it is raised in the main thread
            self._error, end = error, None
        self._is_over = end is not None or self._error is not None
        if end is not None:
            self._submission.updates.put(end)
        if self._is_over:
            self._keyboard.cancel()

    def _read(self, prompt: str) -> Callable[[], TypedLine]:
        """Read a line, and return the function that processes it later."""
        take: Callable[[], TypedLine]
        try:
            return partial(self._console.type_line, self._keyboard.read(prompt))
        except EOFError:
            # It is typed, so there is no box left to remove.
            take, is_typed = self._console.type_end, True
        except KeyboardInterrupt:
            take, is_typed = self._console.leave, False
        except Cancelled:
            take, is_typed = TypedLine, False
        except (OSError, RuntimeError, ValueError) as error:
            # The terminal or the front end is gone, or does not take questions; the ranks must not wait for an answer.
            print(f"*** no line can be read: {type(error).__name__}: {error}", file=sys.stderr)
            take, is_typed = self._console.leave, False
        if sys.stdout.isatty():
            # The cursor is still behind the prompt.
            print()
        self._leaves_box = self._leaves_box or not is_typed
        return take

    def _carry_out(self, typed: TypedLine) -> None:
        _write(typed.text)
        if self._console.has_left:
            self._suspend_view(is_typing=False)
        if typed.is_interrupt:
            self._post(InterruptRequested(self._submission.ticket))
        for rank, line in typed.sent.items():
            self._post(DebugLineTyped(self._submission.ticket, rank, line))


def _ignore(update: DebugUpdate) -> None:
    del update


def _write(text: str) -> None:
    if text:
        print(text, end="", flush=True)
