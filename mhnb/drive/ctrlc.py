"""Handle Ctrl-C while a cell is submitted or awaited: call a function instead of raising wherever the code happens to be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from mhnb.system.sigint import Handler, get_handler, set_handler

__all__ = ["SigintHandler"]


class SigintHandler:
    """Context manager in which Ctrl-C calls the function passed to `set_callback`; an earlier Ctrl-C calls it at that point.

    Python delivers Ctrl-C to the main thread only, so on any other thread this changes nothing.

    Raises:
        KeyboardInterrupt: at the end, if Ctrl-C came and no function was ever passed.
    """

    def __init__(self) -> None:
        self._callback: Callable[[], None] | None = None
        self._was_received = False
        self._previous_handler: Handler = None

    def set_callback(self, callback: Callable[[], None]) -> None:
        """Set the function that Ctrl-C calls. It runs between two steps of the main thread and must not wait for them."""
        self._callback = callback
        if self._was_received:
            callback()

    def _on_sigint(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self._was_received = True
        if self._callback is not None:
            self._callback()

    def __enter__(self) -> Self:
        # A handler that was not set from Python could not be restored.
        if threading.current_thread() is threading.main_thread() and get_handler() is not None:
            self._previous_handler = set_handler(self._on_sigint)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._previous_handler is not None:
            set_handler(self._previous_handler)
        if self._was_received and self._callback is None and error is None:
            raise KeyboardInterrupt
