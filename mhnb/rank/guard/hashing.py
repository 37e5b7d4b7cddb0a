"""Hashes of array contents: each part is hashed once, when it is computed, and added to running sums of constant size."""

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
"""At most this many values that are not computed yet are kept, and this much of them."""


def hash_bytes(data: Any) -> int:
    """Return a 64-bit hash of bytes, about as fast as memory is read: each launch may have megabytes of inputs."""
    return xxhash.xxh3_64_intdigest(data)


class Reading(NamedTuple):
    """The bytes of a value."""

    data: Any
    dtype: Any = None
    """NumPy's type of the elements; None if no sample of them is to be kept."""
    in_part: bool = False
    """True if they are only some pieces of the value."""


_samples: dict[int, Any] = {}
"""A few elements of each of the last hashed values, so that messages can describe how far they differ."""


def _keep_sample(word: int, read: Reading) -> None:
    if word in _samples or read.dtype is None:
        return
    if len(_samples) >= _MOST_SAMPLES:
        # Another thread may remove some, too.
        for old in list(_samples)[: _MOST_SAMPLES // 2]:
            _samples.pop(old, None)
    values = np.frombuffer(read.data, np.uint8).view(read.dtype)
    _samples[word] = values[:: -(-len(values) // _SAMPLE_SIZE) or 1].copy()


def sample_of(word: int) -> str:
    """Return a few elements of the value with a hash, as doubles in hex; empty string if none are known."""
    values = _samples.get(word)
    if values is None:
        return ""
    if values.dtype.kind == "c":
        values = values.view(values.real.dtype)
    return str(values.astype("<f8").tobytes().hex())


class HostArray:
    """Content of an array, part by part. Each part is hashed once, when it is computed, and then kept alive no longer.

    Args:
        kind: as `f32[8]`.
        parts: by the text of each part's box; the text is empty if the part is the array's only box.
        place: which ranks share it, if that matters.
    """

    __slots__ = ("__weakref__", "dtype", "is_lost", "kind", "parts", "place", "words")

    def __init__(self, kind: str, dtype: Any, parts: Mapping[str, Any], place: Any = None) -> None:
        self.kind, self.dtype, self.place = kind, dtype, place
        self.parts = dict(parts)
        """The parts that are not hashed yet."""
        self.words: dict[str, int] = {}
        self.is_lost = False
        """A part was deleted before it was hashed."""

    @property
    def nbytes(self) -> int:
        """Size of the parts that are not hashed yet."""
        return sum(int(getattr(part, "nbytes", 0)) for part in self.parts.values())

    def learn(self, read: Callable[[Any, Any], Reading], *, waits: bool = False) -> bool:
        """Hash the parts that are computed by now; return whether all are known.

        Args:
            waits: wait for those that are not computed yet.

        Raises:
            Exception: the error of a user's computation.
        """
        # Other threads may do this at the same time.
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
        """Tag value of an array of which every rank holds all; `ANY` while it is not known."""
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
    """Running hash of items in the order in which they came; see `core/guard/host_data.py`."""

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
        """An item is missing: the rest cannot be compared."""
        self.count = self.groups = self.ordered = self.total = 0
        self.last, self.last_word = "", 0
        self._group = self._here = self._here_count = 0

    def add(self, group: int, what: str, word: int, *, content: int = 0) -> None:
        """Add one item.

        Args:
            group: the same for items between the same two launches.
            what: the item in words.
            word: its hash.
            content: the hash of its content, if that is another.
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
        """Return what is compared, and a few values of the last item."""
        self._close()
        hashes = [f"{number:x}" for number in (self.groups, self.ordered, self.total)]
        sample = sample_of(self.last_word)
        return [GAPS if self.is_partial else self.count, *hashes, self.last, *([sample] if sample else [])]


@dataclass(frozen=True, slots=True)
class HashLabel:
    """How a hash is added and described: for a launch's argument with the launch, the argument's position, and the line."""

    number: int = 0
    place: int = 0
    line: int | None = None

    def tell(self, word: int) -> str:
        """Format a hash for messages."""
        where = "" if not self.number or self.line is None else f" on line {self.line}"
        return f"{word:016x}"[:12] + where

    def mix(self, word: int) -> int:
        """Return the hash of a launch's argument together with its position.

        Such hashes are added up, and sums of `hash` of tuples are equal too easily.
        """
        return hash_bytes(f"{self.number} {self.place} {word}".encode()) if self.number else word


class _Deferred(NamedTuple):
    sums: RunningHash
    group: int
    array: HostArray
    box: str | None
    """None: the tag value of the whole array is added."""
    label: HashLabel


class DeferredHashes:
    """Hashes of one cell that wait for a computation. A sum with a missing hash is not compared.

    Args:
        read: reads a value, as a type of element.
    """

    def __init__(self, read: Callable[[Any, Any], Reading]) -> None:
        self._read = read
        self._kept: list[_Deferred] = []
        self.is_partial = False
        """Whether a value was donated before it was computed, or is not computed at the end of the cell."""

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, sums: RunningHash, group: int, array: HostArray, box: str | None, label: HashLabel) -> None:
        """Add the hash of an array's content, now or when it is computed; if there is no room for more, wait for it."""
        deferred = _Deferred(sums, group, array, box, label)
        if not self._settle(deferred):
            if self.has_room_for([array]):
                self._kept.append(deferred)
            else:
                # It is this rank's own computation, which ends by itself.
                self._settle(deferred, last=True, waits=True)

    def has_room_for(self, arrays: Sequence[HostArray]) -> bool:
        """Return whether all these arrays could be kept, perhaps after adding what is computed by now."""
        if self._fits(arrays):
            return True
        self.settle_computed()
        return self._fits(arrays)

    def _fits(self, arrays: Sequence[HostArray]) -> bool:
        kept = {id(each.array): each.array.nbytes for each in self._kept}
        nbytes = sum((kept | {id(array): array.nbytes for array in arrays}).values())
        return len(self._kept) + len(arrays) <= _MOST and nbytes <= _MOST_NBYTES

    def settle_computed(self) -> None:
        """Add the hashes of what is computed by now."""
        self._kept = [deferred for deferred in self._kept if not self._settle(deferred)]

    def settle_all(self) -> None:
        """Add the remaining hashes: everything that the cell launched has ended by now, or was given up."""
        kept, self._kept = self._kept, []
        for deferred in kept:
            self._settle(deferred, last=True)

    def _settle(self, deferred: _Deferred, *, last: bool = False, waits: bool = False) -> bool:
        """Add the hash if it is computed by now; return False if it is not, and this is not the last attempt."""
        sums, group, array, box, label = deferred
        failed = False
        try:
            array.learn(self._read, waits=waits)
        except Exception as error:  # noqa: BLE001 - the error of the user's computation, which is the cell's error, too
            sums.last, failed = type(error).__name__, True
        word = array.words.get(box) if box is not None else None if array.parts else array.value
        if word is not None:
            sums.add(group, label.tell(word), label.mix(word), content=word)
        elif failed or last or array.is_lost:
            # A failed computation is the cell's own error; a missing value would not be reported otherwise.
            sums.is_partial, self.is_partial = True, self.is_partial or not failed
        return word is not None or failed or last or array.is_lost
