"""The record of where the arrays of a cell's launches came from, for cells whose ranks do not agree before each launch.

What it hands out is compared at the cell's end, by `core/guard/origins.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mhnb.core.guard.origins import MOST_MAKERS, OriginRow, count_free, format_uncompared, what_is_free
from mhnb.rank.guard.origins import Birth, Maker, Tag, bear_together, combine_tags, list_makers, read_tags
from mhnb.rank.guard.sums import hash_bytes

__all__ = ["OriginRecord", "Uncompared"]

_WORD = 2**64


@dataclass(slots=True)
class _Line:
    """What the launches of one line took; hashes are added up, so that a long loop takes no room."""

    count: int = 0
    total: int = 0
    free: int = 0
    """Of which arrays are like every other."""
    name: str = ""
    tags: Sequence[Tag] = ()
    origin: int = 0
    """Both of the last launch."""

    def add(self, count: int, words: tuple[int, int]) -> None:
        """Add up a launch, or take one back."""
        self.count += count
        self.total, self.free = (self.total + words[0]) % _WORD, (self.free + words[1]) % _WORD


class Uncompared:
    """The arrays of a cell's launches that were not compared: some rank made them without the guard, or a thread launched on them."""

    def __init__(self) -> None:
        self._count = 0
        self._lines: set[int] = set()
        self.in_threads = False
        """Whether other threads launched, whose launches have no order that all ranks share."""

    def note(self, origin: int, count: int, line: int | None) -> None:
        """Record a launch.

        Args:
            origin: of its arrays.
            count: how many it takes.
        """
        if free := count_free(origin, count):
            self._count = max(self._count, free)
            self._lines |= set() if line is None else {line}

    def tell(self) -> list[str]:
        """Return the notes of the cell; empty where all were compared."""
        threads = (
            ["arrays that threads launched on were not compared: --guard lockstep does that"] if self.in_threads else []
        )
        return threads + ([format_uncompared(self._count, self._lines)] if self._count else [])


class OriginRecord:
    """What the main thread of this rank launched in the current cell; other threads run at their own pace on each rank."""

    def __init__(self) -> None:
        self._main = threading.main_thread()
        self.uncompared = Uncompared()
        self._counts: dict[tuple[int, ...], int] = {}
        self._lines: dict[tuple[tuple[int, ...], int | None], _Line] = {}
        self._last: tuple[tuple[int, ...], _Line, tuple[int, int]] | None = None

    def begin_cell(self) -> None:
        """Forget the last cell."""
        self._counts, self._lines, self._last = {}, {}, None

    def note(self, participants: tuple[int, ...], maker: Maker, inputs: Iterable[object]) -> Birth:
        """Record a launch that communicates, before it is made. The n-th ones of its ranks are one, whatever the line.

        Returns:
            What its outputs are to be known by.
        """
        if threading.current_thread() is not self._main:
            self.uncompared.in_threads = True
            return Birth(agreed=False)
        number = self._counts[participants] = self._counts.get(participants, 0) + 1
        tags = read_tags(inputs)
        origin = combine_tags(tags)
        self.uncompared.note(origin, len(tags), maker.line)
        words = _hash(number, origin), _hash(number, free) if (free := what_is_free(origin)) else 0
        line = self._lines.setdefault((participants, maker.line), _Line())
        line.name, line.tags, line.origin = maker.name, tags, origin
        line.add(1, words)
        self._last = participants, line, words
        return bear_together(participants, number, maker, agreed=False)

    def withdraw(self) -> None:
        """The launch of this thread that was noted last was refused before it was made: the next one has its number."""
        if self._last is None or threading.current_thread() is not self._main:
            return
        participants, line, (word, free) = self._last
        self._last = None
        self._counts[participants] -= 1
        line.add(-1, (-word, -free))

    def end_cell(self) -> list[OriginRow]:
        """Hand out the rows."""
        lines, self._lines = self._lines, {}
        return [
            [list(ranks), at, line.count, f"{line.total:x}", f"{line.free:x}", line.name, *_last(line)]
            for (ranks, at), line in lines.items()
        ]


def _hash(number: int, what: int) -> int:
    # What is added up: sums of `hash` of tuples are the same too easily.
    return hash_bytes(f"{number} {what}".encode())


def _last(line: _Line) -> tuple[str, list[list[object]]]:
    return f"{line.origin:x}", [list(maker) for maker in list_makers(line.tags)[: MOST_MAKERS + 1]]
