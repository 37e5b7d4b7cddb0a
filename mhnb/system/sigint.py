"""Get and set the SIGINT handler without the enum lookup of the `signal` module.

`signal` looks each handler up in an enum. Most are not in it, so each lookup raises an exception with the handler's text in it.
In a cell that does nothing, that took 20 us on each rank and 40 us in the notebook (measured by marks around the calls).
"""

from __future__ import annotations

from _signal import getsignal, signal  # type: ignore[import-not-found]  # typeshed knows only `signal`, which wraps it
from collections.abc import Callable
from signal import SIGINT
from types import FrameType
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None
"""A function, SIG_DFL or SIG_IGN as a number, or None for a handler that was not set from Python and cannot be restored."""


def get_handler() -> Handler:
    """Return the SIGINT handler."""
    handler: Handler = getsignal(SIGINT)
    return handler


def set_handler(handler: Handler) -> Handler:
    """Set the SIGINT handler and return the previous one. On the main thread only.

    Raises:
        ValueError: called on another thread.
        TypeError: the handler is None, which cannot be set.
    """
    before: Handler = signal(SIGINT, handler)
    return before
