"""Read a line from the user's front end or terminal with `input()`.

Another thread can end the read. Nothing but a signal ends a blocked `input()`, so that thread sends the signal of Ctrl-C, and the
handler here knows which of the two it was.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import signal
import sys
import threading
from types import BuiltinFunctionType, FrameType

_SIGNAL_EVERY_S = 0.05


class Cancelled(Exception):  # not an error: there is nothing left to type for
    """Another thread ended the read."""


def can_type() -> bool:
    """Return whether a user can type in this thread, through a terminal.

    In a kernel this is false: `input` is the kernel's there, and its front end may have no keyboard.
    """
    is_plain = isinstance(builtins.input, BuiltinFunctionType)
    if not is_plain or threading.current_thread() is not threading.main_thread():
        return False
    # The prompt of a program with redirected output would not be seen.
    return all(stream is not None and not stream.closed and stream.isatty() for stream in (sys.stdin, sys.stdout))


class Keyboard:
    """Reads lines in the main thread, until it is cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while the end of a read is decided: no signal is sent after it."""
        self._is_reading = self._is_cancelled = False
        self._has_ended = threading.Event()
        self._raises = False
        """Whether a signal ends what the main thread does: only until the line is there."""
        self._has_late_ctrl_c = False

    def cancel(self) -> None:
        """End the current read and prevent later ones; wait until it ends."""
        self._is_cancelled = True
        while True:
            with self._lock:
                if not self._is_reading:
                    return
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            # A signal that arrives just before the main thread blocks does not wake it, so there may have to be another.
            self._has_ended.wait(_SIGNAL_EVERY_S)

    def read(self, prompt: str) -> str:
        """Read a line, and return it without its end.

        Raises:
            EOFError: the user ended the input.
            KeyboardInterrupt: the user pressed Ctrl-C.
            Cancelled: another thread called `cancel`.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a line can be read in the main thread only, because no other thread receives Ctrl-C")
        previous = signal.getsignal(signal.SIGINT)
        self._has_ended = threading.Event()
        self._raises, self._has_late_ctrl_c = True, False
        try:
            signal.signal(signal.SIGINT, self._on_sigint)
            return self._read_line(prompt)
        finally:
            self._raises = False
            self._end_read()
            # A handler that was not set from Python cannot be restored.
            signal.signal(signal.SIGINT, signal.default_int_handler if previous is None else previous)
            if self._has_late_ctrl_c:
                # The line was there already, so Ctrl-C is for the handler around this read.
                signal.raise_signal(signal.SIGINT)

    def _read_line(self, prompt: str) -> str:
        try:
            sys.stdout.flush()
            if can_type():
                _enable_line_editing()
            # Before the check, because `cancel` sends no signal to a read that has not begun.
            self._is_reading = True
            if self._is_cancelled:
                raise Cancelled
            line = input(prompt)
            self._raises = False
        except KeyboardInterrupt:
            self._raises = False
            if self._is_cancelled:
                raise Cancelled from None
            raise
        return line

    def _end_read(self) -> None:
        """End the read, after which `cancel` has no signal in flight."""
        with self._lock:
            self._is_reading = False
        self._has_ended.set()
        if self._is_cancelled:
            # The system delivers a signal at the latest at the end of any system call of the thread, and after this one Python
            # calls the handler.
            signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def _on_sigint(self, signum: int, frame: FrameType | None) -> None:
        if self._raises:
            # A kernel passes on no other exception.
            signal.default_int_handler(signum, frame)
        elif not self._is_cancelled:
            self._has_late_ctrl_c = True


def _enable_line_editing() -> None:
    """Enable line editing and history for `input()`, if this Python has them."""
    if "readline" not in sys.modules and importlib.util.find_spec("readline") is not None:
        importlib.import_module("readline")
