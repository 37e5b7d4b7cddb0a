"""Capture what one thread prints for a while, for code that runs between cells and whose output belongs to no cell."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

__all__ = ["Overheard", "overhear"]


class Overheard:
    """The text captured so far.

    Args:
        limit: the most characters that are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._text = ""
        self._cut = False

    @property
    def text(self) -> str:
        """All of the text, or its beginning and a line that says so."""
        return f"{self._text}\n… (cut)\n" if self._cut else self._text

    def add(self, text: str) -> None:
        """Append text, up to the limit."""
        room = self._limit - len(self._text)
        self._cut = self._cut or len(text) > room
        self._text += text[:room]


class _Ear(io.TextIOBase):
    """A stream that captures what its own thread writes, and passes on what other threads write."""

    def __init__(self, heard: Overheard, others: TextIO) -> None:
        self._heard, self._others, self._thread = heard, others, threading.get_ident()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return self._others.write(text)
        self._heard.add(text)
        return len(text)

    def flush(self) -> None:
        self._others.flush()


@contextmanager
def overhear(*, limit: int = 4000) -> Iterator[Overheard]:
    """Capture what this thread prints, to either stream, until the end of the block."""
    heard = Overheard(limit)
    with redirect_stdout(_Ear(heard, sys.stdout)), redirect_stderr(_Ear(heard, sys.stderr)):
        yield heard
