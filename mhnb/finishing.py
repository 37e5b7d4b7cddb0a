"""Ends that are seen through: what was begun to be taken back is taken back whole, though the user's patience ends before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

__all__ = ["await_ends", "see_through"]

_LOOK_S = 0.2


_ends: list[threading.Thread] = []
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
    _ends.append(thread)
    thread.start()
    while thread.is_alive():
        # By turns: Python may miss a Ctrl-C that comes in the moment in which it begins to wait for a lock.
        thread.join(_LOOK_S)
    done.result()


def await_ends() -> None:
    """Wait for what an impatient user did not wait for: what is begun now may have the names of what is being taken back."""
    for thread in _ends:
        while thread.is_alive():
            thread.join(_LOOK_S)
    _ends[:] = [thread for thread in _ends if thread.ident is None or thread.is_alive()]
