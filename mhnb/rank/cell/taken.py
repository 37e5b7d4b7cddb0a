"""What has become of the interrupt of the running cell: whether its code got it, and what it may still change.

An interrupt comes again and again until it gets there. Once it did, what the code does about it is its own: a checkpoint that an
`except KeyboardInterrupt` writes is not to be hit by what was meant for the loop before it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

from mhnb.rank.cell.cells import print_unraisable

__all__ = ["TakenInterrupt", "is_one_of", "is_within"]

_SAME_S = 1.0
"""Until so long after the notebook was told, an interrupt that comes is the same one: it was on its way."""


class TakenInterrupt:
    """Keeps it; asked by the signal handler, and by the thread that tells the notebook.

    Args:
        clock: seconds, of any origin.
        lock: held while the notebook is told anything.
        send: tells it that the code got one, or that this went nowhere after all.
    """

    def __init__(self, clock: Callable[[], float], lock: threading.RLock, send: Callable[[bool], None]) -> None:
        self._clock, self._lock, self._send = clock, lock, send
        self._taken = self._told = False
        self._told_at_s = 0.0
        self.came_early = False
        """It came after the cell was begun and before its code ran."""
        self.is_finishing = False
        """The cell's code was interrupted and has ended, and so does the cell soon: another interrupt changes nothing."""
        self._hook_before = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def close(self) -> None:
        """Let go of the interpreter."""
        sys.unraisablehook = self._hook_before

    def begin_cell(self) -> None:
        """Another cell: nothing has come."""
        self._taken = self._told = self.came_early = self.is_finishing = False

    def note(self) -> None:
        """The cell's code gets one now. What it does next may let no other thread run, so it is told here if it can be."""
        # Another one than that which was told before is told again: the notebook waits to hear of each.
        self._taken, self._told = True, False
        # Who holds the lock may wait for what this thread holds: the thread beside it tells then.
        if self._lock.acquire(blocking=False):
            try:
                self.tell()
            finally:
                self._lock.release()

    def is_handled(self) -> bool:
        """Whether the cell's code has got one, and runs on."""
        return self._taken

    def changes_nothing(self) -> bool:
        """Whether one that comes now is to be left alone."""
        if not self._taken:
            return self.is_finishing
        return self.is_finishing or not self._told or self._clock() - self._told_at_s < _SAME_S

    def tell(self) -> None:
        """Tell the notebook what it does not know yet."""
        with self._lock:
            # Code that has ended handles nothing any more, though what it launched is waited for.
            if (taken := self._taken and not self.is_finishing) != self._told:
                self._send(taken)
                # Afterwards: an interrupt that comes in the middle of a send is to change nothing.
                self._told_at_s = self._clock()
                self._told = taken

    def _on_unraisable(self, unraisable: Any) -> None:
        """One that came while a finalizer or a callback ran went nowhere: the next one is to be taken."""
        ours = self._taken and threading.current_thread() is threading.main_thread()
        if ours and issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._taken = False
        elif not print_unraisable(unraisable):
            self._hook_before(unraisable)


def is_one_of(code: CodeType, codes: Sequence[CodeType]) -> bool:
    """Whether a code object is one of these, by identity.

    Its hash and `==` use its constants, and a code object of the user's may have constants without a hash.

    >>> spoilt = is_one_of.__code__.replace(co_consts=({},))
    >>> is_one_of(spoilt, (is_one_of.__code__,)), is_one_of(spoilt, (spoilt,))
    (False, True)
    """
    return any(code is known for known in codes)


def is_within(frame: FrameType | None, codes: Sequence[CodeType]) -> bool:
    """Whether a frame is one of these functions', or was called by one."""
    while frame is not None:
        if is_one_of(frame.f_code, codes):
            return True
        frame = frame.f_back
    return False
