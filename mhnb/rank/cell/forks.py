"""Callbacks for a forked child of a rank."""

from __future__ import annotations

import weakref
from collections.abc import Callable

__all__ = ["weak_callback"]


def weak_callback(method: Callable[[], None]) -> Callable[[], None]:
    """Return a callback that calls the method while its object lives, because a fork callback cannot be unregistered."""
    known = weakref.WeakMethod(method)

    def call() -> None:
        if (found := known()) is not None:
            found()

    return call
