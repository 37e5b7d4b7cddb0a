"""Hashes of many things, added up so that they take no room: in the order in which they came, and in any order."""

from __future__ import annotations

from typing import Any

import xxhash

from mhnb.core.guard.made import GAPS

__all__ = ["Sums", "hash_bytes"]

_WORD = 2**64
_FACTOR = 0x9E3779B97F4A7C15


class Sums:
    """Hashes of things in the order in which they came; see `core/guard/made.py`."""

    __slots__ = ("_group", "_here", "_here_count", "count", "groups", "is_partial", "last", "ordered", "total")

    def __init__(self) -> None:
        self.is_partial = False
        """Something is missing: what is left cannot be compared."""
        self.count = self.groups = self.ordered = self.total = 0
        self.last = ""
        self._group = self._here = self._here_count = 0

    def add(self, group: int, what: str, word: int) -> None:
        """Add up one more.

        Args:
            group: of those between the same two launches it is the same.
            what: in words.
            word: its hash.
        """
        if group != self._group:
            self._close()
            self._group = group
        self.count, self.last = self.count + 1, what
        self.total = (self.total + word) % _WORD
        self._here, self._here_count = (self._here + word) % _WORD, self._here_count + 1

    def _close(self) -> None:
        if self._here_count:
            self.groups = (self.groups * _FACTOR + self._group * 65537 + self._here_count) % _WORD
            self.ordered = (self.ordered * _FACTOR + self._here) % _WORD
            self._here = self._here_count = 0

    def to_wire(self) -> list[Any]:
        """Give what is compared."""
        self._close()
        return [
            GAPS if self.is_partial else self.count,
            f"{self.groups:x}",
            f"{self.ordered:x}",
            f"{self.total:x}",
            self.last,
        ]


def hash_bytes(data: Any) -> int:
    """Hash bytes to 64 bits, about as fast as memory is read: each launch may be given megabytes."""
    return xxhash.xxh3_64_intdigest(data)
