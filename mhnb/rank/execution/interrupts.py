"""Track whether the running cell's code has received the interrupt, and what an interrupt may still change.

An interrupt is repeated until it is delivered. After that, what the code does about it is its own decision: a checkpoint that
an `except KeyboardInterrupt` writes must not be hit by the interrupt that was meant for the loop before it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

from mhnb.rank.execution.tracebacks import print_unraisable

_SAME_INTERRUPT_S = 1.0
"""Time after the report to the notebook in which an arriving interrupt counts as the same one: it was on its way."""


class InterruptDelivery:
    """Delivery state of an interrupt, used by the signal handler and by the thread that reports to the notebook.

    Args:
        clock: seconds, from any origin.
        lock: held while anything is sent to the notebook.
        send: reports that the code received an interrupt, or that it had no effect after all.
    """

    def __init__(self, clock: Callable[[], float], lock: threading.RLock, send: Callable[[bool], None]) -> None:
        self._clock, self._lock, self._send = clock, lock, send
        self._is_delivered = self._is_reported = False
        self._reported_at_s = 0.0
        self.arrived_early = False
        """Whether it arrived after the cell began and before its code ran."""
        self.is_finishing = False
        """Whether the cell's code was interrupted and has ended. The cell ends soon, so another interrupt changes nothing."""
        self._original_hook = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def close(self) -> None:
        """Restore the interpreter's hook."""
        sys.unraisablehook = self._original_hook

    def begin_cell(self) -> None:
        """Reset the state for another cell."""
        self._is_delivered = self._is_reported = self.arrived_early = self.is_finishing = False

    def mark_delivered(self) -> None:
        """Record that the cell's code receives one now. Report it here if possible: the code may let no other thread run."""
        # An interrupt after the reported one is reported again, because the notebook waits for a report of each.
        self._is_delivered, self._is_reported = True, False
        # The holder of the lock may wait for what this thread holds: then the thread beside it reports.
        if self._lock.acquire(blocking=False):
            try:
                self.report()
            finally:
                self._lock.release()

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
        with self._lock:
            # Code that has ended handles nothing any more, though the rank waits for what it launched.
            if (is_delivered := self._is_delivered and not self.is_finishing) != self._is_reported:
                self._send(is_delivered)
                # Set afterwards: an interrupt that arrives during a send must change nothing.
                self._reported_at_s = self._clock()
                self._is_reported = is_delivered

    def _on_unraisable(self, unraisable: Any) -> None:
        """Reset the state if an interrupt was raised in a finalizer or a callback: it had no effect, so the next one counts."""
        ours = self._is_delivered and threading.current_thread() is threading.main_thread()
        if ours and issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._is_delivered = False
        elif not print_unraisable(unraisable):
            self._original_hook(unraisable)


def is_one_of(code: CodeType, codes: Sequence[CodeType]) -> bool:
    """Return whether a code object is one of these, by identity.

    Its hash and `==` use its constants, and a code object of the user's may have constants without a hash.

    >>> spoilt = is_one_of.__code__.replace(co_consts=({},))
    >>> is_one_of(spoilt, (is_one_of.__code__,)), is_one_of(spoilt, (spoilt,))
    (False, True)
    """
    return any(code is known for known in codes)


def is_within(frame: FrameType | None, codes: Sequence[CodeType]) -> bool:
    """Return whether a frame belongs to one of these functions, or was called by one."""
    while frame is not None:
        if is_one_of(frame.f_code, codes):
            return True
        frame = frame.f_back
    return False
