"""Who hears Ctrl-C, asked and set as the interpreter itself keeps it.

`signal` looks each handler up in an enum, and most are not in it: an exception for each, with the text of the handler in it.
That took 20 us of each rank, and 40 us of the notebook, in a cell that does nothing (measured by marks around the calls).
"""

from __future__ import annotations

from _signal import getsignal, signal  # type: ignore[import-not-found]  # typeshed knows only the front of it
from collections.abc import Callable
from signal import SIGINT
from types import FrameType
from typing import Any, TypeAlias

__all__ = ["Handler", "get_handler", "set_handler"]

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None
"""A function, SIG_DFL or SIG_IGN as a number, or None for one that was not set from Python and cannot be put back."""


def get_handler() -> Handler:
    """Say who hears SIGINT."""
    handler: Handler = getsignal(SIGINT)
    return handler


def set_handler(handler: Handler) -> Handler:
    """Have another hear it, and return who did. On the main thread only.

    Raises:
        ValueError: on any other thread.
        TypeError: None, which nobody can set.
    """
    before: Handler = signal(SIGINT, handler)
    return before
