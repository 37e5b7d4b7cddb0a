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

__all__ = ["HeldSignals"]

_Handler: TypeAlias = Callable[[int, FrameType | None], Any]


class HeldSignals:
    """Defers signals while `holding` is set; one instance per process."""

    def __init__(self) -> None:
        self.holding = False
        """Set only by the main thread, because only the main thread runs handlers."""
        self._held: list[tuple[_Handler, int, FrameType | None]] = []

    def install(self) -> None:
        """Patch `signal.signal` and `signal.getsignal`: handlers set from now on, except that of Ctrl-C, can be deferred.

        Both functions return handlers as the user set them.
        """
        set_handler, get_handler = signal.signal, signal.getsignal

        @functools.wraps(set_handler)
        def set_holding(signalnum: Any, handler: Any) -> Any:
            holds = callable(handler) and signalnum != signal.SIGINT
            return _as_set(set_handler(signalnum, self._wrap(handler) if holds else handler))

        @functools.wraps(get_handler)
        def get_as_set(signalnum: Any) -> Any:
            return _as_set(get_handler(signalnum))

        signal.signal, signal.getsignal = set_holding, get_as_set

    def _wrap(self, handler: _Handler) -> _Handler:
        def handle(signum: int, frame: FrameType | None) -> Any:
            if self.holding:
                self._held.append((handler, signum, frame))
                return None
            return handler(signum, frame)

        handle.__wrapped__ = handler  # type: ignore[attr-defined]  # as functools.wraps does, which requires a function's attributes
        handle.is_mhnbs = True  # type: ignore[attr-defined]  # a handler that others wrapped is not unwrapped
        return handle

    def let_go(self) -> None:
        """Run the deferred handlers, in the order in which their signals came.

        Raises:
            BaseException: the exception of a handler; the other handlers have run, too.
        """
        self.holding = False
        if self._held:
            handler, signum, frame = self._held.pop(0)
            try:
                handler(signum, frame)
            finally:
                self.let_go()


def _as_set(handler: Any) -> Any:
    return handler.__wrapped__ if getattr(handler, "is_mhnbs", False) else handler
