"""Ctrl-C in the notebook: interrupt a cell, but complete a shutdown.

While a cell is submitted or awaited, Ctrl-C calls a function instead of raising wherever the code happens to be.
During a shutdown, Ctrl-C ends the caller's wait, but not the work.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self, TypeAlias

_POLL_S = 0.2
_Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None
"""What `signal.getsignal` returns; None for a handler that was not set from Python and cannot be restored."""


class _ShutdownThread(threading.Thread):
    """Non-daemon thread for shutdown work, which Ctrl-C does not end."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="mhnb-end")
        self._work = work
        # A bare lock: Ctrl-C could leave the inner lock of anything more acquired, and this thread would never end.
        self._done_lock = threading.Lock()
        self._done_lock.acquire()
        self._is_done = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do the work, and store its error for the waiting thread."""
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  # it is raised in the caller's thread
            self.error = error
        self._is_done = True
        self._done_lock.release()

    def wait_done(self, on_wait: Callable[[], None] | None = None) -> None:
        """Wait for the work; call `on_wait` several times a second meanwhile."""
        # Not by `join`: Python 3.11 takes a thread for ended if Ctrl-C arrives while it is awaited.
        # By polling: Python may miss a Ctrl-C that arrives at the moment when it begins to wait for a lock.
        while not self._is_done:
            if not self._done_lock.acquire(timeout=_POLL_S) and on_wait is not None:
                on_wait()


_pending: set[_ShutdownThread] = set()
"""Shutdown threads that were started and whose end has not been observed."""


def run_uninterrupted(work: Callable[[], None], on_wait: Callable[[], None] | None = None) -> None:
    """Do shutdown work; Ctrl-C ends the wait for it, not the work.

    Args:
        work: the work; its error is raised in the caller.
        on_wait: called in this thread several times a second, if it waits for another one.

    >>> run_uninterrupted(lambda: print("done"))
    done
    """
    if threading.current_thread() is not threading.main_thread() or not threading.main_thread().is_alive():
        # Ctrl-C does not reach this thread; or the interpreter is exiting, when Python starts no new thread.
        work()
        return
    thread = _ShutdownThread(work)
    _pending.add(thread)
    try:
        thread.start()
    except RuntimeError:
        # The system allows no further thread (ulimit -u), so the work is done here, and Ctrl-C may end it.
        _pending.discard(thread)
        work()
        return
    thread.wait_done(on_wait)
    _pending.discard(thread)
    if thread.error is not None:
        raise thread.error


def wait_for_pending_shutdowns() -> None:
    """Wait for interrupted shutdowns before new work uses the same names."""
    # Another thread may stop or start another cluster meanwhile.
    for thread in tuple(_pending):
        # Ctrl-C may have come before the thread began.
        if thread.ident is not None:
            thread.wait_done()
        _pending.discard(thread)


# -- Ctrl-C while a cell is submitted or awaited


class SigintHandler:
    """Context manager in which Ctrl-C calls the function of `set_callback`.

    An earlier Ctrl-C calls the function when it is set. Python delivers Ctrl-C to the main thread only, so on any other
    thread this changes nothing.

    Raises:
        KeyboardInterrupt: at the end, if Ctrl-C came and no function was ever passed.
    """

    def __init__(self) -> None:
        self._callback: Callable[[], None] | None = None
        self._was_received = False
        self._previous_handler: _Handler = None

    def set_callback(self, callback: Callable[[], None]) -> None:
        """Set the Ctrl-C function, which must not wait for the main thread."""
        self._callback = callback
        if self._was_received:
            callback()

    def _on_sigint(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self._was_received = True
        if self._callback is not None:
            self._callback()

    def __enter__(self) -> Self:
        # A handler that was not set from Python could not be restored.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is not None:
            self._previous_handler = signal.signal(signal.SIGINT, self._on_sigint)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)
        if self._was_received and self._callback is None and error is None:
            raise KeyboardInterrupt
