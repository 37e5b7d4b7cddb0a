"""What is done in a forked child of a rank."""

from __future__ import annotations

import weakref
from collections.abc import Callable

__all__ = ["weakly"]


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Call the method as long as its object lives: what is registered for forks can never be taken back."""
    known = weakref.WeakMethod(method)

    def call() -> None:
        if (found := known()) is not None:
            found()

    return call
