"""Ends that are seen through: what was begun to be taken back is taken back whole, though the user's patience ends before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

__all__ = ["await_ends", "see_through"]

_LOOK_S = 0.2


_ends: list[tuple[threading.Thread, Future[None]]] = []
"""Those that were begun, until somebody has waited for them."""


def see_through(work: Callable[[], None]) -> None:
    """Do work to its end, and wait for that: Ctrl-C ends the waiting, not the work. Its error is the caller's.

    >>> see_through(lambda: print("done"))
    done
    """
    if threading.current_thread() is not threading.main_thread() or not threading.main_thread().is_alive():
        # No Ctrl-C comes here; and while the interpreter ends, Python starts no thread any more.
        work()
        return
    done: Future[None] = Future()

    def do() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # it is raised in the caller's thread
            done.set_exception(error)
        else:
            done.set_result(None)

    # No daemon: a notebook that ends meanwhile waits for it.
    thread = threading.Thread(target=do, name="mhnb-end")
    _ends.append((thread, done))
    thread.start()
    _await(done)
    done.result()


def await_ends() -> None:
    """Wait for what an impatient user did not wait for: what is begun now may have the names of what is being taken back."""
    for thread, done in _ends:
        # Ctrl-C may have come before it began.
        if thread.ident is not None:
            _await(done)
    _ends.clear()


def _await(done: Future[None]) -> None:
    # Not by the thread: Python 3.11 takes one for ended when Ctrl-C comes while it is waited for.
    # By turns: Python may miss a Ctrl-C that comes in the moment in which it begins to wait for a lock.
    while not wait([done], _LOOK_S).done:
        pass
