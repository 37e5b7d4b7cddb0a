"""Defer the user's signal handlers between the agreement on a launch and the launch.

Python runs handlers between any two steps of the main thread. One that raises there would leave the other ranks alone in a launch that
this rank has agreed on. Ctrl-C is handled elsewhere.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

__all__ = ["DeferredSignals"]

_Handler: TypeAlias = Callable[[int, FrameType | None], Any]


class DeferredSignals:
    """Defers signals while `is_deferring` is set; one instance per process."""

    def __init__(self) -> None:
        self.is_deferring = False
        """Set only by the main thread, because only the main thread runs handlers."""
        self._deferred: list[tuple[_Handler, int, FrameType | None]] = []

    def install(self) -> None:
        """Patch `signal.signal` and `signal.getsignal`: handlers set from now on, except that of Ctrl-C, can be deferred.

        Both functions return handlers as the user set them.
        """
        set_handler, get_handler = signal.signal, signal.getsignal

        @functools.wraps(set_handler)
        def set_deferrable(signalnum: Any, handler: Any) -> Any:
            can_defer = callable(handler) and signalnum != signal.SIGINT
            return _unwrap_handler(set_handler(signalnum, self._wrap(handler) if can_defer else handler))

        @functools.wraps(get_handler)
        def get_unwrapped(signalnum: Any) -> Any:
            return _unwrap_handler(get_handler(signalnum))

        signal.signal, signal.getsignal = set_deferrable, get_unwrapped

    def _wrap(self, handler: _Handler) -> _Handler:
        def handle(signum: int, frame: FrameType | None) -> Any:
            if self.is_deferring:
                self._deferred.append((handler, signum, frame))
                return None
            return handler(signum, frame)

        handle.__wrapped__ = handler  # type: ignore[attr-defined]  # as functools.wraps does, which requires a function's attributes
        handle.is_mhnbs = True  # type: ignore[attr-defined]  # a handler that others wrapped is not unwrapped
        return handle

    def deliver(self) -> None:
        """Run the deferred handlers, in the order in which their signals came.

        Raises:
            BaseException: the exception of a handler; the other handlers have run, too.
        """
        self.is_deferring = False
        if self._deferred:
            handler, signum, frame = self._deferred.pop(0)
            try:
                handler(signum, frame)
            finally:
                self.deliver()


def _unwrap_handler(handler: Any) -> Any:
    return handler.__wrapped__ if getattr(handler, "is_mhnbs", False) else handler
