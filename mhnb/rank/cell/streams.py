"""`sys.stdout` and `sys.stderr` of a rank: text streams that pass what is written to the capture, a line at a time.

The text side is Python's own, in C: printing a line costs one call into Python, not one for each of its pieces.
A forked child of a cell has no capture: its streams write to the file descriptors, like any process's.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable

# Imported by name, here and in the neighbouring modules: a cell may replace a function of `os`.
from os import write as write_to
from typing import Any

__all__ = ["RankStream"]


class _BinarySide(io.BufferedIOBase):
    """`sys.stdout.buffer`: passes bytes to the capture."""

    def __init__(self, on_write: Callable[[bytes, str], None], fd: int, name: str) -> None:
        self._on_write, self._fd, self.name = on_write, fd, name
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.is_forked = False

    def write(self, data: Any, /) -> int:
        """Write bytes; they are shown as UTF-8."""
        if data.__class__ is not bytes:
            data = bytes(data)
        if self.is_forked:
            self._write_through(data)
        else:
            self._on_write(data, self._decode(data))
        return len(data)

    def _write_through(self, data: bytes) -> None:
        while data:
            data = data[write_to(self._fd, data) :]

    def flush(self) -> None:
        """Do nothing: no bytes are buffered here."""

    def fileno(self) -> int:
        """Return the descriptor that C code and subprocesses use for this stream."""
        return self._fd

    def writable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Stay open."""


class RankStream(io.TextIOWrapper):
    """A text stream as programs expect one: a descriptor number, an encoding, a binary side; never a terminal.

    Args:
        on_write: called with each finished line, or with what was flushed, as bytes and as text.
        unbuffered: pass on every piece at once, as for stderr, so that the two streams keep their order.
    """

    def __init__(self, name: str, fd: int, on_write: Callable[[bytes, str], None], *, unbuffered: bool) -> None:
        self._binary_side = _BinarySide(on_write, fd, f"<{name}>")
        super().__init__(
            self._binary_side,
            encoding="utf-8",
            errors="backslashreplace",
            newline="",
            line_buffering=not unbuffered,
            write_through=unbuffered,
        )

    @property
    def mode(self) -> str:
        """The mode that a program sees."""
        return "w"

    def adapt_to_fork(self) -> None:
        """Write straight to the descriptor from now on."""
        self._binary_side.is_forked = True

    def flush_to_capture(self) -> None:
        """Flush, even if a cell has replaced `flush`."""
        io.TextIOWrapper.flush(self)

    def isatty(self) -> bool:
        """Return False."""
        return False

    def detach(self) -> io.BufferedIOBase:  # type: ignore[override]  # its type promises what no program needs
        """Return the binary side and keep it too: a wrapper around it writes to the same place."""
        self.flush()
        return self._binary_side

    def reconfigure(self, **_: Any) -> None:
        """Change nothing: output of a rank is shown as UTF-8, a line at a time."""
        self.flush()

    def is_wrapped_by(self, stream: object) -> bool:
        """Return whether another stream forwards to this one: it wraps this one, or its binary side."""
        parts = [getattr(stream, name, None) for name in ("buffer", "stream", "raw")]
        parts += vars(stream).values() if hasattr(stream, "__dict__") else []
        parts += [each for part in parts if isinstance(part, list | tuple) for each in part]
        return any(part is self or part is self._binary_side for part in parts)

    def close(self) -> None:
        """Stay open: the stream belongs to the rank, not to a cell."""
        self.flush()
