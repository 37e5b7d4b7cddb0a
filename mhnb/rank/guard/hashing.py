"""Hashes of array contents, added to running sums of constant size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xxhash

from mhnb.core.guard.host_data import INCOMPLETE, HashSummary
from mhnb.core.guard.provenance import ANY, HASH_MASK

_MODULUS = 2**64
_FACTOR = 0x9E3779B97F4A7C15
_MOST_SAMPLES, _SAMPLE_SIZE = 1024, 32
_MOST_DEFERRED, _MOST_DEFERRED_NBYTES = 256, 64 * 2**20
"""At most this many values that are not computed yet are kept, and this much of them."""


def hash_bytes(data: Any) -> int:
    """Return a 64-bit hash of bytes, computed at about memory speed.

    Each launch may have megabytes of inputs.
    """
    return xxhash.xxh3_64_intdigest(data)


class ArrayBytes(NamedTuple):
    """The bytes of a value."""

    data: Any
    dtype: Any = None
    """NumPy's type of the elements; None if no sample of them is to be kept."""
    is_sampled: bool = False
    """True if they are only some pieces of the value."""


_samples: dict[int, Any] = {}
"""A few elements of each of the last hashed values, so that messages can describe how far they differ."""


def _keep_sample(value_hash: int, array_bytes: ArrayBytes) -> None:
    if (known := _samples.pop(value_hash, None)) is not None:
        # The oldest go first, and this one is used again.
        _samples[value_hash] = known
    if array_bytes.dtype is None or (known is not None and known.dtype == array_bytes.dtype):
        return
    # Values of different types may have the same bytes: four bytes that are 0, and the number 0.0.
    if len(_samples) >= _MOST_SAMPLES:
        # Another thread may remove some, too.
        for old in list(_samples)[: _MOST_SAMPLES // 2]:
            _samples.pop(old, None)
    values = np.frombuffer(array_bytes.data, np.uint8).view(array_bytes.dtype)
    _samples[value_hash] = values[:: -(-len(values) // _SAMPLE_SIZE) or 1].copy()


def sample_of(value_hash: int) -> str:
    """Return a hashed value's sample as hex doubles, or an empty string."""
    values = _samples.get(value_hash)
    if values is None:
        return ""
    if values.dtype.kind == "c":
        values = values.view(values.real.dtype)[:_SAMPLE_SIZE]
    # The bits may be any, also of a signalling NaN: the user's cell must not show a warning about them.
    with np.errstate(all="ignore"):
        return str(values.astype("<f8").tobytes().hex())


class Copies(tuple[Any, ...]):
    """Several values on one rank's devices for a box; JAX assumes one."""

    __slots__ = ()


class HostArray:
    """Content of an array, by parts that are released once hashed.

    Args:
        kind: as `f32[8]`.
        parts: by the text of each part's box; the text is empty if the part is the array's only box. A part may be `Copies`.
        sharing: which ranks share it, if that matters.
    """

    __slots__ = ("__weakref__", "different_copies", "dtype", "has_lost_part", "kind", "part_hashes", "parts", "sharing")

    def __init__(self, kind: str, dtype: Any, parts: Mapping[str, Any], sharing: Any = None) -> None:
        self.kind, self.dtype, self.sharing = kind, dtype, sharing
        self.parts = dict(parts)
        """The parts that are not hashed yet."""
        self.part_hashes: dict[str, int] = {}
        self.different_copies: dict[str, tuple[int, int]] = {}
        """The hashes of two copies of a part that differ."""
        self.has_lost_part = False
        """A part was deleted before it was hashed."""

    @property
    def nbytes(self) -> int:
        """Size of the parts that are not hashed yet."""
        return sum(int(getattr(copy, "nbytes", 0)) for part in self.parts.values() for copy in _copies(part))

    def hash_parts(self, read: Callable[[Any, Any], ArrayBytes], *, wait: bool = False) -> bool:
        """Hash the parts computed by now; return whether all are known.

        Args:
            wait: wait for those that are not computed yet.

        Raises:
            Exception: the error of a user's computation.
        """
        # Other threads may do this at the same time.
        for text, part in list(self.parts.items()):
            if all(self._is_computed(copy, wait=wait) for copy in _copies(part)):
                hashes = [self._hash_copy(copy, read) for copy in _copies(part)]
                first, other = hashes[0], next((each for each in hashes if each != hashes[0]), None)
                if other is not None:
                    self.different_copies[text] = first, other
                self.part_hashes[text] = first if other is None else hash_bytes(repr(hashes).encode())
                self.parts.pop(text, None)
        return not self.parts

    def _is_computed(self, value: Any, *, wait: bool) -> bool:
        if not hasattr(value, "is_ready"):
            return True
        if value.is_deleted():
            self.has_lost_part = True
            return False
        if wait:
            value.block_until_ready()
        return wait or bool(value.is_ready())

    def _hash_copy(self, value: Any, read: Callable[[Any, Any], ArrayBytes]) -> int:
        array_bytes = read(value, self.dtype)
        value_hash = hash_bytes(array_bytes.data)
        _keep_sample(value_hash, array_bytes)
        return value_hash

    @property
    def tag_value(self) -> int:
        """Tag value of a replicated array; `ANY` while it is not known."""
        if self.parts:
            return ANY
        words = sorted(self.part_hashes.items())
        value = (
            hash((hash_bytes(self.kind.encode()), *((hash_bytes(text.encode()), word) for text, word in words)))
            & HASH_MASK
        )
        if words and (sample := _samples.get(words[0][1])) is not None:
            # The value includes the kind, and so is of one type: the first sample stays.
            _samples.setdefault(value, sample)
        return value


def _copies(part: Any) -> tuple[Any, ...]:
    return part if isinstance(part, Copies) else (part,)


class RunningHash:
    """Running hash of items in order; see `core/guard/host_data.py`."""

    __slots__ = (
        "_group",
        "_group_count",
        "_group_hash",
        "count",
        "different_copies",
        "groups",
        "is_partial",
        "last",
        "last_hash",
        "ordered",
        "unordered",
    )

    def __init__(self) -> None:
        self.is_partial = False
        """An item is missing: the rest cannot be compared."""
        self.different_copies: tuple[int, int] | None = None
        """The hashes of two copies of an item that differ between the devices of this rank."""
        self.count = self.groups = self.ordered = self.unordered = 0
        self.last, self.last_hash = "", 0
        self._group = self._group_hash = self._group_count = 0

    def add(self, group: int, description: str, item_hash: int, *, content_hash: int = 0) -> None:
        """Add one item.

        Args:
            group: the same for items between the same two launches.
            description: the item in words.
            item_hash: its hash.
            content_hash: the hash of its content, if that is another.
        """
        if group != self._group:
            self._close_group()
            self._group = group
        self.count, self.last, self.last_hash = self.count + 1, description, content_hash or item_hash
        self.unordered = (self.unordered + item_hash) % _MODULUS
        self._group_hash, self._group_count = (self._group_hash + item_hash) % _MODULUS, self._group_count + 1

    def _close_group(self) -> None:
        if self._group_count:
            self.groups = (self.groups * _FACTOR + self._group * 65537 + self._group_count) % _MODULUS
            self.ordered = (self.ordered * _FACTOR + self._group_hash) % _MODULUS
            self._group_hash = self._group_count = 0

    def summarise(self) -> HashSummary:
        """Return what is compared, and a few values of the last item."""
        self._close_group()
        groups, ordered, unordered = (f"{number:x}" for number in (self.groups, self.ordered, self.unordered))
        count = INCOMPLETE if self.is_partial else self.count
        return HashSummary(count, groups, ordered, unordered, self.last, sample_of(self.last_hash))


@dataclass(frozen=True, slots=True)
class HashLabel:
    """Label of a hash: launch, argument position and line, if any."""

    number: int = 0
    position: int = 0
    line: int | None = None

    def format_hash(self, value_hash: int) -> str:
        """Format a hash for messages."""
        where = "" if not self.number or self.line is None else f" on line {self.line}"
        return f"{value_hash:016x}"[:12] + where

    def combine(self, value_hash: int) -> int:
        """Return the hash of a launch's argument together with its position.

        Such hashes are added up, and sums of `hash` of tuples are equal too easily.
        """
        return hash_bytes(f"{self.number} {self.position} {value_hash}".encode()) if self.number else value_hash


class _Deferred(NamedTuple):
    running_hash: RunningHash
    group: int
    array: HostArray
    box: str | None
    """None: the tag value of the whole array is added."""
    label: HashLabel


class DeferredHashes:
    """Hashes of one cell that wait for a computation.

    Args:
        read: reads a value, as a type of element.
    """

    def __init__(self, read: Callable[[Any, Any], ArrayBytes]) -> None:
        self._read = read
        self._deferred: list[_Deferred] = []
        self.is_partial = False
        """Whether a value was donated before it was computed, or is not computed at the end of the cell."""

    def __len__(self) -> int:
        return len(self._deferred)

    def add(self, running_hash: RunningHash, group: int, array: HostArray, box: str | None, label: HashLabel) -> None:
        """Add an array's hash now or when computed; without room, wait."""
        deferred = _Deferred(running_hash, group, array, box, label)
        if not self._try_add(deferred):
            if self.has_room_for([array]):
                self._deferred.append(deferred)
            else:
                # It is this rank's own computation, which ends by itself.
                self._try_add(deferred, is_last_attempt=True, wait=True)

    def has_room_for(self, arrays: Sequence[HostArray]) -> bool:
        """Return whether these arrays can be deferred; may add computed hashes first."""
        if self._fits(arrays):
            return True
        self.add_computed()
        return self._fits(arrays)

    def _fits(self, arrays: Sequence[HostArray]) -> bool:
        kept = {id(each.array): each.array.nbytes for each in self._deferred}
        nbytes = sum((kept | {id(array): array.nbytes for array in arrays}).values())
        return len(self._deferred) + len(arrays) <= _MOST_DEFERRED and nbytes <= _MOST_DEFERRED_NBYTES

    def add_computed(self) -> None:
        """Add the hashes of what is computed by now."""
        self._deferred = [deferred for deferred in self._deferred if not self._try_add(deferred)]

    def add_remaining(self) -> None:
        """Add the remaining hashes after all launches ended or were given up."""
        kept, self._deferred = self._deferred, []
        for deferred in kept:
            self._try_add(deferred, is_last_attempt=True)

    def _try_add(self, deferred: _Deferred, *, is_last_attempt: bool = False, wait: bool = False) -> bool:
        """Add the hash if computed; return False to try again later."""
        running_hash, group, array, box, label = deferred
        failed = False
        try:
            array.hash_parts(self._read, wait=wait)
        except Exception as error:  # noqa: BLE001 - the error of the user's computation, which is the cell's error, too
            running_hash.last, failed = type(error).__name__, True
        value_hash = array.part_hashes.get(box) if box is not None else None if array.parts else array.tag_value
        if value_hash is not None:
            pairs = array.different_copies
            running_hash.different_copies = pairs.get(box or "", running_hash.different_copies)
            running_hash.add(group, label.format_hash(value_hash), label.combine(value_hash), content_hash=value_hash)
        elif failed or is_last_attempt or array.has_lost_part:
            # A failed computation is the cell's own error; a missing value would not be reported otherwise.
            running_hash.is_partial, self.is_partial = True, self.is_partial or not failed
        return value_hash is not None or failed or is_last_attempt or array.has_lost_part
