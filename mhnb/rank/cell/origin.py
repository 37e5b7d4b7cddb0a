"""Which cell said it: the number of the cell that a piece of output belongs to.

Tasks of the event loop carry it in their context, threads on their thread object, work for a pool with the work itself.
It does not know what is done with it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

__all__ = ["CELL_SEQ", "current_seq", "mark_threads"]

CELL_SEQ: ContextVar[int] = ContextVar("mhnb_cell_seq", default=0)
"""The cell whose code runs in this context; 0 where nobody knows, as in threads that C++ code has started."""


def current_seq() -> int:
    """Return the number of the cell that the calling code belongs to, 0 where nobody knows."""
    return CELL_SEQ.get() or getattr(threading.current_thread(), "_mhnb_seq", 0)


def mark_threads() -> None:
    """Make threads and pools remember the cell they were started from. Does so once per process."""
    if not hasattr(threading.Thread.start, "__wrapped__"):
        _wrap(threading.Thread, "start", _start)
        _wrap(ThreadPoolExecutor, "submit", _submit)


def _wrap(cls: type, name: str, ours: Callable[..., Any]) -> None:
    original = getattr(cls, name)

    @functools.wraps(original)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return ours(original, self, *args, **kwargs)

    setattr(cls, name, method)


def _start(original: Callable[..., None], thread: threading.Thread) -> None:
    thread._mhnb_seq = current_seq()  # type: ignore[attr-defined]
    original(thread)


def _submit(
    original: Callable[..., Future[Any]],
    pool: ThreadPoolExecutor,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Future[Any]:
    # A pool's threads outlive the cell that made them; the work belongs to the cell that hands it in.
    seq = current_seq()
    return original(pool, _run_as, seq, function, *args, **kwargs) if seq else original(pool, function, *args, **kwargs)


def _run_as(seq: int, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    token = CELL_SEQ.set(seq)
    try:
        return function(*args, **kwargs)
    finally:
        CELL_SEQ.reset(token)
