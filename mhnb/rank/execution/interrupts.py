"""Deliver interrupts to a rank's cells, and track when they have effect.

The supervisor writes which cell is to stop, and sends SIGINT. From there an interrupt takes one of three ways:

- the signal handler raises it in the cell's code;
- if the cell awaits, the signal handler cancels its task;
- if the main thread is in the middle of a launch, the signal handler leaves it pending, and the launch gate raises it. The gate also
  raises it where the ranks agree to stop before a launch.

If the main thread is blocked in a program that waits for a callback, no signal reaches it: the callback is given up.
A request between cells runs code of the user's too, such as the `__reduce__` of a value. A signal that hits it ends the request.

An interrupt is repeated until it is delivered. After that, what the code does about it is its own decision: a checkpoint that
an `except KeyboardInterrupt` writes must not be hit by the interrupt that was meant for the loop before it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from os import getpid
from types import CodeType, FrameType
from typing import Any, Protocol, TypeVar

from mhnb.core.messages import InterruptDelivered, Message
from mhnb.rank.execution.callbacks import INLINE_CODE, ProgramCallbacks
from mhnb.rank.execution.tracebacks import print_unraisable
from mhnb.rank.flight import FlightRecorder

_T = TypeVar("_T")

_SAME_INTERRUPT_S = 1.0
"""Time after the report to the notebook in which an arriving interrupt counts as the same one: it was on its way."""

_CALLBACK_LIMIT_S = 1.0
"""Time after the request in which the callbacks of a program may end by themselves."""


class InterruptRequests(Protocol):
    """The memory in which the supervisor of this host makes requests."""

    @property
    def interrupted_seq(self) -> int:
        """The latest cell that was asked to stop.

        It is 0 if only a request before the first cell was asked to stop, and -1 if nothing was.
        """

    @property
    def report_count(self) -> int:
        """How often the ranks were asked to report soon where they are."""


class InterruptDelivery:
    """Delivers the interrupts of one rank's cells.

    The cell runner says which cell runs, the launch gate when a launch is under way, and the service thread reports to the notebook.

    Args:
        requests: the memory in which the supervisor makes requests; None in a mere engine, whose cells mhnb does not run.
        rank: this rank.
        send: sends a message to the notebook.
        clock: seconds, from any origin.
    """

    def __init__(
        self,
        requests: InterruptRequests | None = None,
        *,
        rank: int = 0,
        send: Callable[[Message], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._requests, self._rank, self._send, self._clock = requests, rank, send, clock
        self.lock = threading.RLock()
        """Held while anything is sent to the notebook."""
        self.callbacks = ProgramCallbacks()
        """The functions that the programs of this rank call."""
        self.flight = FlightRecorder()
        """Records what happens to the rank."""
        self.find_line: Callable[[], int | None] = lambda: None
        """Finds the line of the cell that the calling thread runs."""
        self._pid = getpid()
        self._user_code: Sequence[CodeType] = ()
        self._seq, self._is_running = 0, False
        self.task: asyncio.Task[Any] | None = None
        """The task of the running cell, if that awaits."""
        self._is_delivered = self._is_reported = False
        self._reported_at_s = 0.0
        self._requested_at_s: float | None = None
        """When the request for an interrupt was seen that the code has not received yet."""
        self.was_requested = False
        """Whether the running cell was asked to stop: then a cancellation is the user's interrupt."""
        self.has_raised = False
        """Whether a signal handler has raised in the running cell's code, also one of the user's own."""
        self.arrived_early = False
        """Whether it arrived after the cell began and before its code ran."""
        self.is_finishing = False
        """Whether the cell's code was interrupted and has ended. The cell ends soon, so another interrupt changes nothing."""
        self.recording_code: Sequence[CodeType] = ()
        """Functions that record a launch which C++ has made already: an interrupt must wait for their end."""
        self.is_launching = False
        """The main thread is between its proposal and the end of its launch: an interrupt must wait. Set by the launch gate."""
        self.is_pending = False
        """An interrupt waits for the end of that launch, or for the next launch."""
        self.at_prompt: Callable[[bool], None] | None = None
        """Called instead of raising while the code has stopped in the debugger, where nothing may be raised at some moments.

        Its argument is whether the cell was asked to stop; if not, the signal comes from elsewhere.
        """
        self.stopped_ranks: frozenset[int] | None = None
        """Ranks that stopped with this cell's main thread, each time before the same launch; None: no stop yet.

        Empty once it stopped alone.
        """
        self._original_hook = sys.unraisablehook

    def install(self, user_code: Sequence[CodeType]) -> None:
        """Handle interrupts from now on.

        Args:
            user_code: the functions that run the user's code: only in calls of them may an interrupt be raised.
        """
        self._user_code = user_code
        self._original_hook = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable
        signal.signal(signal.SIGINT, self._on_sigint)

    def restore_handler(self) -> None:
        """Restore the signal handler if a library or a cell replaced it."""
        if not self.is_installed():
            signal.signal(signal.SIGINT, self._on_sigint)

    def is_installed(self) -> bool:
        """Return whether nothing has replaced the signal handler."""
        return signal.getsignal(signal.SIGINT) == self._on_sigint

    def close(self) -> None:
        """Restore the interpreter's hook."""
        sys.unraisablehook = self._original_hook

    def reset(self, seq: int) -> None:
        """Reset the state for another cell, which runs from now on."""
        self._is_delivered = self._is_reported = self.arrived_early = self.is_finishing = self.was_requested = False
        self.has_raised = False
        self.is_pending, self.stopped_ranks = False, None
        self._seq, self._is_running = seq, True

    def end_cell(self) -> None:
        """Ignore interrupts until another cell begins."""
        self._is_running = False

    # -- the signal

    def is_requested(self) -> bool:
        """Return whether the ranks were asked to stop the running cell."""
        return self._requests is not None and self._requests.interrupted_seq == self._seq

    @property
    def report_count(self) -> int:
        """How often the notebook has asked ranks to report their position."""
        return 0 if self._requests is None else self._requests.report_count

    def _can_be_late(self) -> bool:
        """Return whether a signal now may have been meant for earlier work."""
        return self._requests is not None and self._requests.interrupted_seq == self._seq - 1

    def _is_for_earlier_request(self) -> bool:
        """Return whether a signal now was meant for earlier work."""
        return self._requests is not None and 0 <= self._requests.interrupted_seq < self._seq

    def run_request(self, work: Callable[[], _T]) -> _T:
        """Do the work of a request, which a signal ends.

        Raises:
            KeyboardInterrupt: a signal arrived.
        """
        self.restore_handler()
        return work()

    def _on_sigint(self, signum: int, frame: FrameType | None) -> None:
        """Interrupt the user's code directly, or cancel the cell that awaits.

        A request between cells is interrupted, too. Other code on the main thread is mhnb's, and is not interrupted.
        """
        del signum
        if getpid() != self._pid:
            return
        if is_within(frame, _REQUEST_CODE):
            if not self._is_for_earlier_request():
                raise KeyboardInterrupt("the request was interrupted")
        elif self._is_running:
            self._interrupt_cell(frame)

    def _interrupt_cell(self, frame: FrameType | None) -> None:
        if not self.is_requested():
            # mhnb signals only a cell that it has asked to stop: this signal comes from the code itself, or from a
            # shell.
            if self._can_be_late() or not is_within(frame, self._user_code):
                return
            if self.at_prompt is not None:
                self.at_prompt(False)
            elif not self._defer(frame):
                self.has_raised = True
                raise KeyboardInterrupt
            return
        if self.is_ignored():
            return
        if self.at_prompt is not None:
            self.was_requested = True
            self.at_prompt(True)
            return
        if self._defer(frame):
            self.was_requested = True
            return
        if is_within(frame, self._user_code):
            self.mark_unsynchronized()
            self._mark_delivered()
            raise KeyboardInterrupt
        if self.task is not None:
            self.was_requested = True
            self.task.get_loop().call_soon_threadsafe(self._cancel)
        else:
            self.arrived_early = True

    def _defer(self, frame: FrameType | None) -> bool:
        """Postpone an interrupt during a launch; return whether it was postponed.

        A launch whose callback runs in the main thread is not made before that ends: its time is limited, as in other threads.
        """
        is_launching = self.is_launching and not (self._is_overdue() and is_within(frame, INLINE_CODE))
        if is_launching or is_within(frame, self.recording_code):
            self.is_pending = True
            return True
        return False

    def _cancel(self) -> None:
        """Cancel the cell that awaits; the event loop is free now."""
        if self.task is not None and not self.is_ignored():
            self.mark_unsynchronized()
            self._mark_delivered()
            self.task.cancel()

    # -- in front of a launch

    def record_raised(self) -> None:
        """Record that a signal handler raises in the cell's code."""
        self.has_raised = True

    def mark_unsynchronized(self) -> None:
        """Record an interrupt without agreement: ranks may be at different places."""
        self.is_pending, self.stopped_ranks = False, frozenset()

    def make_exception(self) -> BaseException:
        """Create the exception that stops code that is about to launch.

        From a task of the cell's own, a KeyboardInterrupt would end the event loop, and the rank with it. There the cell is
        cancelled instead, as by a signal.
        """
        if threading.current_thread() is not threading.main_thread():
            return KeyboardInterrupt()
        self._mark_delivered()
        if (task := asyncio.current_task()) is None or task is self.task:
            return KeyboardInterrupt()
        if self.task is not None:
            self.task.cancel()
        return asyncio.CancelledError()

    # -- what the code and the notebook know

    def _mark_delivered(self) -> None:
        """Record that the cell's code receives an interrupt, and report it.

        It is reported here if possible, because the code may let no other thread run.
        """
        self.was_requested = self.has_raised = True
        self.flight.record("interrupt", self._seq, self.find_line())
        # An interrupt after the reported one is reported again, because the notebook waits for a report of each.
        self._is_delivered, self._is_reported = True, False
        # The holder of the lock may wait for what this thread holds: then the thread beside it reports.
        if self.lock.acquire(blocking=False):
            try:
                self.report()
            finally:
                self.lock.release()

    def give_up_callbacks(self) -> None:
        """Give up callbacks that delay an interrupt; another thread calls this repeatedly."""
        if not self._is_running or self._is_delivered or not self.is_requested():
            self._requested_at_s = None
            return
        self._requested_at_s = self._clock() if self._requested_at_s is None else self._requested_at_s
        if self._is_overdue():
            self.callbacks.give_up()

    def _is_overdue(self) -> bool:
        """Return whether callbacks have used up their time since the interrupt request."""
        return self._requested_at_s is not None and self._clock() - self._requested_at_s >= _CALLBACK_LIMIT_S

    def is_handled(self) -> bool:
        """Return whether the cell's code has received one, and is still running."""
        return self._is_delivered

    def is_ignored(self) -> bool:
        """Return whether an interrupt that arrives now must be ignored."""
        if not self._is_delivered:
            return self.is_finishing
        return self.is_finishing or not self._is_reported or self._clock() - self._reported_at_s < _SAME_INTERRUPT_S

    def report(self) -> None:
        """Report to the notebook what it does not know yet."""
        with self.lock:
            # Code that has ended handles nothing any more, though the rank waits for what it launched.
            if (is_delivered := self._is_delivered and not self.is_finishing) != self._is_reported:
                if self._is_running:
                    self._send(InterruptDelivered(self._rank, self._seq, is_delivered))
                # Set afterwards: an interrupt that arrives during a send must change nothing.
                self._reported_at_s = self._clock()
                self._is_reported = is_delivered

    def _on_unraisable(self, unraisable: Any) -> None:
        """Reset the state if a finalizer or callback swallowed an interrupt."""
        ours = self._is_delivered and threading.current_thread() is threading.main_thread()
        if ours and issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._is_delivered = False
        elif not print_unraisable(unraisable):
            self._original_hook(unraisable)


_REQUEST_CODE = (InterruptDelivery.run_request.__code__,)


def is_one_of(code: CodeType, codes: Sequence[CodeType]) -> bool:
    """Return whether a code object is one of these, by identity.

    Its hash and `==` use its constants, and a code object of the user's may have constants without a hash.

    >>> spoilt = is_one_of.__code__.replace(co_consts=({},))
    >>> is_one_of(spoilt, (is_one_of.__code__,)), is_one_of(spoilt, (spoilt,))
    (False, True)
    """
    return any(code is known for known in codes)


def is_within(frame: FrameType | None, codes: Sequence[CodeType]) -> bool:
    """Return whether a frame or one of its callers runs `codes`."""
    while frame is not None:
        if is_one_of(frame.f_code, codes):
            return True
        frame = frame.f_back
    return False
