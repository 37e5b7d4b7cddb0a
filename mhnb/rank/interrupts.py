"""The word by which the supervisor of a host without the board tells its ranks which cell was asked to stop.

A file of its own, named after the supervisor: several hosts may share one run directory, and only one of them the board.
"""

from __future__ import annotations

import mmap
from pathlib import Path

__all__ = ["InterruptWord", "make_interrupt_word"]

_NBYTES = 8


def _path(run_dir: Path, supervisor: int) -> Path:
    return run_dir / f"interrupt{supervisor}"


def make_interrupt_word(run_dir: Path, supervisor: int) -> None:
    """Make the file, before any rank looks for it."""
    _path(run_dir, supervisor).write_bytes(bytes(_NBYTES))


class InterruptWord:
    """One process's view of it: 8 bytes, aligned, written at once."""

    def __init__(self, run_dir: Path, supervisor: int) -> None:
        with _path(run_dir, supervisor).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _NBYTES)
        self._words = memoryview(self._map).cast("Q")

    @property
    def interrupted_seq(self) -> int:
        """The latest cell that was asked to stop; 0 for none."""
        return self._words[0]

    def ask_interrupt(self, seq: int) -> None:
        """Ask the ranks of this host to stop a cell."""
        self._words[0] = seq

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._map.close()
