"""Hashes of what arrays hold: of each part once, added up so that they take no room, and of what is still computed when it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xxhash

from mhnb.core.guard.host_data import GAPS
from mhnb.core.guard.provenance import ANY, MASK

__all__ = ["DeferredHashes", "HashLabel", "HostArray", "Reading", "RunningHash", "hash_bytes", "sample_of"]

_WORD = 2**64
_FACTOR = 0x9E3779B97F4A7C15
_MOST_SAMPLES, _SAMPLE_SIZE = 1024, 32
_MOST, _MOST_NBYTES = 256, 64 * 2**20
"""So many values that are still computed are kept at most, and so much of them."""


def hash_bytes(data: Any) -> int:
    """Hash bytes to 64 bits, about as fast as memory is read: each launch may be given megabytes."""
    return xxhash.xxh3_64_intdigest(data)


class Reading(NamedTuple):
    """The bytes of a value."""

    data: Any
    dtype: Any = None
    """NumPy's type of its elements; None where no values are to be kept."""
    in_part: bool = False
    """They are some pieces of it only."""


_samples: dict[int, Any] = {}
"""A few elements of each of the last things that were hashed, so that how far they differ can be said."""


def _keep_sample(word: int, read: Reading) -> None:
    if word in _samples or read.dtype is None:
        return
    if len(_samples) >= _MOST_SAMPLES:
        # Another thread may take some out, too.
        for old in list(_samples)[: _MOST_SAMPLES // 2]:
            _samples.pop(old, None)
    values = np.frombuffer(read.data, np.uint8).view(read.dtype)
    _samples[word] = values[:: -(-len(values) // _SAMPLE_SIZE) or 1].copy()


def sample_of(word: int) -> str:
    """Return a few elements of what has a hash, as doubles in hex; empty where none are known."""
    values = _samples.get(word)
    if values is None:
        return ""
    if values.dtype.kind == "c":
        values = values.view(values.real.dtype)
    return str(values.astype("<f8").tobytes().hex())


class HostArray:
    """What an array was made of, part by part. Each is hashed once, when it is computed, and then kept alive no longer.

    Args:
        kind: as `f32[8]`.
        parts: by the text of the box that each is; of what is the array's one box, by an empty one.
        place: who shares it, where that is of interest.
    """

    __slots__ = ("__weakref__", "dtype", "is_lost", "kind", "parts", "place", "words")

    def __init__(self, kind: str, dtype: Any, parts: Mapping[str, Any], place: Any = None) -> None:
        self.kind, self.dtype, self.place = kind, dtype, place
        self.parts = dict(parts)
        """Those that are not hashed yet."""
        self.words: dict[str, int] = {}
        self.is_lost = False
        """One was deleted before it was hashed."""

    @property
    def nbytes(self) -> int:
        """Size of what is not hashed yet."""
        return sum(int(getattr(part, "nbytes", 0)) for part in self.parts.values())

    def learn(self, read: Callable[[Any, Any], Reading], *, waits: bool = False) -> bool:
        """Hash what is computed by now; return whether all is known.

        Args:
            waits: for what is still computed.

        Raises:
            Exception: what a computation of the user's failed with.
        """
        # Other threads may do so, too.
        for text, part in list(self.parts.items()):
            if hasattr(part, "is_ready"):
                if part.is_deleted():
                    self.is_lost = True
                    continue
                if waits:
                    part.block_until_ready()
                elif not part.is_ready():
                    continue
            reading = read(part, self.dtype)
            self.words[text] = word = hash_bytes(reading.data)
            _keep_sample(word, reading)
            self.parts.pop(text, None)
        return not self.parts

    @property
    def value(self) -> int:
        """What an array is known by of which every rank has all; `ANY` while that is not known."""
        if self.parts:
            return ANY
        words = sorted(self.words.items())
        value = (
            hash((hash_bytes(self.kind.encode()), *((hash_bytes(text.encode()), word) for text, word in words))) & MASK
        )
        if words and (sample := _samples.get(words[0][1])) is not None:
            _samples[value] = sample
        return value


class RunningHash:
    """Hashes of things in the order in which they came; see `core/guard/host_data.py`."""

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

    def to_wire(self) -> list[Any]:
        """Give what is compared, and a few values of the last one."""
        self._close()
        hashes = [f"{number:x}" for number in (self.groups, self.ordered, self.total)]
        sample = sample_of(self.last_word)
        return [GAPS if self.is_partial else self.count, *hashes, self.last, *([sample] if sample else [])]


@dataclass(frozen=True, slots=True)
class HashLabel:
    """How a hash is added up and told: of a launch's argument with the launch, the argument's place, and the line."""

    number: int = 0
    place: int = 0
    line: int | None = None

    def tell(self, word: int) -> str:
        """Give the words for a hash."""
        where = "" if not self.number or self.line is None else f" on line {self.line}"
        return f"{word:016x}"[:12] + where

    def mix(self, word: int) -> int:
        """Hash what a launch was given with where: these are added up, and sums of `hash` of tuples are the same too easily."""
        return hash_bytes(f"{self.number} {self.place} {word}".encode()) if self.number else word


class _Deferred(NamedTuple):
    sums: RunningHash
    group: int
    array: HostArray
    box: str | None
    """None: the value of all of it is added up."""
    label: HashLabel


class DeferredHashes:
    """Those of one cell that wait for a computation. A sum of which one is missing is compared with none.

    Args:
        read: reads a value, as a type of element.
    """

    def __init__(self, read: Callable[[Any, Any], Reading]) -> None:
        self._read = read
        self._kept: list[_Deferred] = []
        self.is_partial = False
        """Whether a value was donated before it was computed, or is not computed at the cell's end."""

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, sums: RunningHash, group: int, array: HostArray, box: str | None, label: HashLabel) -> None:
        """Add up what an array holds, now or when it is computed; where there is no room for more, it is waited for."""
        deferred = _Deferred(sums, group, array, box, label)
        if not self._settle(deferred):
            if self.has_room_for([array]):
                self._kept.append(deferred)
            else:
                # Of this rank's own making: it comes by itself.
                self._settle(deferred, last=True, waits=True)

    def has_room_for(self, arrays: Sequence[HostArray]) -> bool:
        """Whether all of these could be kept, perhaps after what is computed by now has been added up."""
        if self._fits(arrays):
            return True
        self.settle_computed()
        return self._fits(arrays)

    def _fits(self, arrays: Sequence[HostArray]) -> bool:
        kept = {id(each.array): each.array.nbytes for each in self._kept}
        nbytes = sum((kept | {id(array): array.nbytes for array in arrays}).values())
        return len(self._kept) + len(arrays) <= _MOST and nbytes <= _MOST_NBYTES

    def settle_computed(self) -> None:
        """Add up what is computed by now."""
        self._kept = [deferred for deferred in self._kept if not self._settle(deferred)]

    def settle_all(self) -> None:
        """Add up what is left: everything that the cell launched has ended by now, or was given up."""
        kept, self._kept = self._kept, []
        for deferred in kept:
            self._settle(deferred, last=True)

    def _settle(self, deferred: _Deferred, *, last: bool = False, waits: bool = False) -> bool:
        """Add up what is computed by now; false where it is not, and this is not the last time to ask."""
        sums, group, array, box, label = deferred
        failed = False
        try:
            array.learn(self._read, waits=waits)
        except Exception as error:  # noqa: BLE001 - what the user's computation failed with: the cell's error, too
            sums.last, failed = type(error).__name__, True
        word = array.words.get(box) if box is not None else None if array.parts else array.value
        if word is not None:
            sums.add(group, label.tell(word), label.mix(word), content=word)
        elif failed or last or array.is_lost:
            # One that failed is the cell's own error; of one that is not there nothing else would tell.
            sums.is_partial, self.is_partial = True, self.is_partial or not failed
        return word is not None or failed or last or array.is_lost
