"""Run shutdown work to completion even if Ctrl-C interrupts the caller's wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["run_uninterrupted", "wait_for_pending_shutdowns"]

_POLL_S = 0.2


class _ShutdownThread(threading.Thread):
    """Thread for shutdown work that Ctrl-C does not end. It is not a daemon, so a notebook that exits meanwhile waits for it."""

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

    def wait_done(self) -> None:
        """Wait until the work is done."""
        # Not by `join`: Python 3.11 takes a thread for ended if Ctrl-C arrives while it is awaited.
        # By polling: Python may miss a Ctrl-C that arrives at the moment when it begins to wait for a lock.
        while not self._is_done:
            self._done_lock.acquire(timeout=_POLL_S)


_pending: set[_ShutdownThread] = set()
"""Shutdown threads that were started and whose end has not been observed."""


def run_uninterrupted(work: Callable[[], None]) -> None:
    """Do shutdown work and wait for its end; Ctrl-C ends the wait, not the work. Its error is raised in the caller.

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
    thread.wait_done()
    _pending.discard(thread)
    if thread.error is not None:
        raise thread.error


def wait_for_pending_shutdowns() -> None:
    """Wait for shutdowns whose wait was interrupted, because new work may use the names that they are still removing."""
    # Another thread may stop or start another cluster meanwhile.
    for thread in tuple(_pending):
        # Ctrl-C may have come before the thread began.
        if thread.ident is not None:
            thread.wait_done()
        _pending.discard(thread)
