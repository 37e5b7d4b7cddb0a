"""Handlers of the user's for signals: between the agreement on a launch and the launch they wait.

Python runs them between any two steps of the main thread, and one that raises there would leave the other ranks alone in a
launch that this rank has agreed on. Ctrl-C is another's business.
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
    """Holds back what comes while `holding` is set; one for a process."""

    def __init__(self) -> None:
        self.holding = False
        """Set by the main thread alone, as it alone runs handlers."""
        self._held: list[tuple[_Handler, int, FrameType | None]] = []

    def install(self) -> None:
        """Have every handler that is set from now on, but Ctrl-C's, wait where it must. Whoever asks for it gets it as it was set."""
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

        handle.__wrapped__ = handler  # type: ignore[attr-defined]  # as functools.wraps does, which wants a function's attributes
        handle.is_mhnbs = True  # type: ignore[attr-defined]  # what is wrapped by others stays so
        return handle

    def let_go(self) -> None:
        """Run what was held back, in the order in which it came.

        Raises:
            BaseException: what a handler raised; the others have run, too.
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
