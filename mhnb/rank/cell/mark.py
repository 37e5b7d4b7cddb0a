"""Record where the latest cell began in a rank's output files, in a file that outlives the rank.

What the rank printed before that cell is not its last output.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["LogOffsets", "Offsets", "read_offsets"]


class Offsets(NamedTuple):
    """Bytes that each file had when the rank's latest cell began."""

    log: int = 0
    out: int = 0
    err: int = 0


class LogOffsets:
    """The record of one rank: a file of one line, overwritten in place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._written: Offsets | None = None

    def write(self, offsets: Offsets) -> None:
        """Record the sizes: one short write, and none after a cell that printed nothing, since every cell begins with it."""
        if offsets == self._written:
            return
        self._written = offsets
        line = " ".join(f"{nbytes:020}" for nbytes in offsets) + "\n"
        try:
            os.pwrite(self._fd, line.encode(), 0)
        except OSError:
            # For example, the disk is full. No record is better than that of an earlier cell, and the cell still runs.
            self._discard()

    def _discard(self) -> None:
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            return
        with suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_offsets(path: Path) -> Offsets:
    """Read the record; without one, all output counts."""
    numbers = path.read_text().split() if path.exists() else []
    return Offsets(*map(int, numbers)) if len(numbers) == len(Offsets._fields) else Offsets()
