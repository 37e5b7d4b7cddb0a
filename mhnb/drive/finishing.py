"""Ends that are seen through: what was begun to be taken back is taken back whole, though the user's patience ends before."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["await_ends", "see_through"]

_LOOK_S = 0.2


class _End(threading.Thread):
    """Work that nobody's impatience ends. No daemon: a notebook that ends meanwhile waits for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="mhnb-end")
        self._work = work
        # A bare lock: of anything more Ctrl-C could leave the inner one held, and this thread would never end.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_done = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do it. Its error is kept for who waits."""
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  # it is raised in the caller's thread
            self.error = error
        self._is_done = True
        self._bell.release()

    def see(self) -> None:
        """Wait until it is done."""
        # Not by `join`: Python 3.11 takes a thread for ended when Ctrl-C comes while it is waited for.
        # By turns: Python may miss a Ctrl-C that comes in the moment in which it begins to wait for a lock.
        while not self._is_done:
            self._bell.acquire(timeout=_LOOK_S)


_ends: set[_End] = set()
"""Those that were begun and that nobody has seen done."""


def see_through(work: Callable[[], None]) -> None:
    """Do work to its end, and wait for that: Ctrl-C ends the waiting, not the work. Its error is the caller's.

    >>> see_through(lambda: print("done"))
    done
    """
    if threading.current_thread() is not threading.main_thread() or not threading.main_thread().is_alive():
        # No Ctrl-C comes here; and while the interpreter ends, Python starts no thread any more.
        work()
        return
    end = _End(work)
    _ends.add(end)
    try:
        end.start()
    except RuntimeError:
        # The system allows no further thread (ulimit -u): then the work is done here, and Ctrl-C may end it.
        _ends.discard(end)
        work()
        return
    end.see()
    _ends.discard(end)
    if end.error is not None:
        raise end.error


def await_ends() -> None:
    """Wait for what an impatient user did not wait for: what is begun now may have the names of what is being taken back."""
    # Another thread may stop or start another cluster meanwhile.
    for end in tuple(_ends):
        # Ctrl-C may have come before it began.
        if end.ident is not None:
            end.see()
        _ends.discard(end)
