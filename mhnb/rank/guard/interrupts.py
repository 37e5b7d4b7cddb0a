"""The words by which the supervisor of a host without the board asks its ranks to stop a cell, and to close their connections.

A file of its own, named after the supervisor: several hosts may share one run directory, and only one of them the board.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from mhnb.system.private import open_private

__all__ = ["InterruptWord", "make_interrupt_word"]

_NBYTES = 16


def _path(run_dir: Path, supervisor: int) -> Path:
    return run_dir / f"interrupt{supervisor}"


def make_interrupt_word(run_dir: Path, supervisor: int) -> None:
    """Make the file, before any rank looks for it."""
    with open(_path(run_dir, supervisor), "wb", opener=open_private) as file:
        file.write(bytes(_NBYTES))


class InterruptWord:
    """One process's view of it: words of 8 bytes, aligned, each written at once."""

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

    @property
    def close_count(self) -> int:
        """How often the ranks were asked to close their connections to each other."""
        return self._words[1]

    def ask_close(self) -> None:
        """Ask the ranks of this host to close their connections to each other."""
        self._words[1] += 1

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._map.close()
