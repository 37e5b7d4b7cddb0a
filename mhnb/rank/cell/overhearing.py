"""Capture what one thread prints for a while, for code that runs between cells and whose output belongs to no cell."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

__all__ = ["ThreadOutput", "capture_thread_output"]


class ThreadOutput:
    """The text captured so far.

    Args:
        limit: the most characters that are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._text = ""
        self._is_cut = False

    @property
    def text(self) -> str:
        """All of the text, or its beginning and a line that says so."""
        return f"{self._text}\n… (cut)\n" if self._is_cut else self._text

    def add(self, text: str) -> None:
        """Append text, up to the limit."""
        room = self._limit - len(self._text)
        self._is_cut = self._is_cut or len(text) > room
        self._text += text[:room]


class _Tee(io.TextIOBase):
    """A stream that captures what its own thread writes, and passes on what other threads write."""

    def __init__(self, output: ThreadOutput, other_threads: TextIO) -> None:
        self._output, self._other_threads, self._thread = output, other_threads, threading.get_ident()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return self._other_threads.write(text)
        self._output.add(text)
        return len(text)

    def flush(self) -> None:
        self._other_threads.flush()


@contextmanager
def capture_thread_output(*, limit: int = 4000) -> Iterator[ThreadOutput]:
    """Capture what this thread prints, to either stream, until the end of the block."""
    output = ThreadOutput(limit)
    with redirect_stdout(_Tee(output, sys.stdout)), redirect_stderr(_Tee(output, sys.stderr)):
        yield output
