"""Hashes of many things, added up so that they take no room: in the order in which they came, and in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from mhnb.core.guard.made import GAPS

__all__ = ["Samples", "Sums", "hash_bytes"]

_WORD = 2**64
_FACTOR = 0x9E3779B97F4A7C15
_MOST_SAMPLES, _SAMPLE_SIZE = 1024, 32


class Sums:
    """Hashes of things in the order in which they came; see `core/guard/made.py`."""

    __slots__ = (
        "_group",
        "_here",
        "_here_count",
        "count",
        "groups",
        "is_partial",
        "last",
        "last_word",
        "ordered",
        "total",
    )

    def __init__(self) -> None:
        self.is_partial = False
        """Something is missing: what is left cannot be compared."""
        self.count = self.groups = self.ordered = self.total = 0
        self.last, self.last_word = "", 0
        self._group = self._here = self._here_count = 0

    def add(self, group: int, what: str, word: int, *, content: int = 0) -> None:
        """Add up one more.

        Args:
            group: of those between the same two launches it is the same.
            what: in words.
            word: its hash.
            content: the hash of what it holds, where that is another.
        """
        if group != self._group:
            self._close()
            self._group = group
        self.count, self.last, self.last_word = self.count + 1, what, content or word
        self.total = (self.total + word) % _WORD
        self._here, self._here_count = (self._here + word) % _WORD, self._here_count + 1

    def _close(self) -> None:
        if self._here_count:
            self.groups = (self.groups * _FACTOR + self._group * 65537 + self._here_count) % _WORD
            self.ordered = (self.ordered * _FACTOR + self._here) % _WORD
            self._here = self._here_count = 0

    def to_wire(self, sample: str = "") -> list[Any]:
        """Give what is compared, and a few values of the last one."""
        self._close()
        return [
            GAPS if self.is_partial else self.count,
            f"{self.groups:x}",
            f"{self.ordered:x}",
            f"{self.total:x}",
            self.last,
            *([sample] if sample else []),
        ]


class Samples:
    """A few values of each of the last things that were hashed, so that how far they differ can be said."""

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}

    def add(self, word: int, data: Any, dtype: Any) -> None:
        """Keep some values of what has this hash.

        Args:
            data: its bytes.
            dtype: NumPy's type of its elements.
        """
        if word in self._values:
            return
        if len(self._values) >= _MOST_SAMPLES:
            self._values = dict(list(self._values.items())[_MOST_SAMPLES // 2 :])
        values = np.frombuffer(data, np.uint8).view(dtype)
        step = -(-len(values) // _SAMPLE_SIZE) or 1
        self._values[word] = values[::step].copy()

    def to_hex(self, word: int) -> str:
        """Return them as doubles in hex; empty where none are known."""
        values = self._values.get(word)
        if values is None:
            return ""
        if values.dtype.kind == "c":
            values = values.view(values.real.dtype)
        return str(values.astype("<f8").tobytes().hex())


def hash_bytes(data: Any) -> int:
    """Hash bytes to 64 bits, about as fast as memory is read: each launch may be given megabytes."""
    return xxhash.xxh3_64_intdigest(data)
