"""Where a cell began in the files of a rank, noted so that it outlives the rank: what it said before is not what it said last."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["Begun", "LogMark", "read_mark"]


class Begun(NamedTuple):
    """Bytes that each file had when the rank's latest cell began."""

    log: int = 0
    out: int = 0
    err: int = 0


class LogMark:
    """The note of one rank: a file of one line, written over in place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._noted: Begun | None = None

    def put(self, begun: Begun) -> None:
        """Note it: one short write, and none after a cell that said nothing, since every cell begins with it."""
        if begun == self._noted:
            return
        self._noted = begun
        line = " ".join(f"{nbytes:020}" for nbytes in begun) + "\n"
        try:
            os.pwrite(self._fd, line.encode(), 0)
        except OSError:
            # The disk is full, say. No note is better than that of an earlier cell, and the cell runs all the same.
            self._take_back()

    def _take_back(self) -> None:
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            return
        with suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Let the file go."""
        os.close(self._fd)


def read_mark(path: Path) -> Begun:
    """Read the note; where there is none, everything counts."""
    numbers = path.read_text().split() if path.exists() else []
    return Begun(*map(int, numbers)) if len(numbers) == len(Begun._fields) else Begun()
