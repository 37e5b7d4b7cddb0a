"""Values that are still computed, kept until their hashes can be added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mhnb.rank.guard.sums import Sums, hash_bytes

__all__ = ["LateValues", "Saying", "count_nbytes"]

_MOST, _MOST_NBYTES = 256, 64 * 2**20
"""So many are kept at most, and so much of them."""


@dataclass(frozen=True, slots=True)
class Saying:
    """How a hash is added up and told: of a launch's argument with the launch, the argument's place, and the line."""

    number: int = 0
    place: int = 0
    line: int | None = None

    def __call__(self, word: int) -> tuple[str, int]:
        """Give the words for a hash, and what is added up."""
        told = f"{word:016x}"[:12]
        if not self.number:
            return told, word
        where = "" if self.line is None else f" on line {self.line}"
        return told + where, self.mix(word)

    def mix(self, word: int) -> int:
        """Hash what a launch was given with where: these are added up, and sums of `hash` of tuples are the same too easily."""
        return hash_bytes(f"{self.number} {self.place} {word}".encode())


class _Late(NamedTuple):
    sums: Sums
    group: int
    value: Any
    saying: Saying


class LateValues:
    """Those of one cell. What they cannot hold is missing from its sum, which is compared with none then.

    Args:
        hash_value: of a value and a type of element; None where it is not there yet, or no longer.
    """

    def __init__(self, hash_value: Callable[[Any, Any], int | None]) -> None:
        self._hash_value = hash_value
        self._kept: list[_Late] = []
        self._nbytes = 0
        self.is_partial = False
        """Whether a value was donated before it was computed, or is not computed at the cell's end."""

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, sums: Sums, group: int, value: Any, saying: Saying) -> None:
        """Keep a value for a sum; wait for it where there is no room, also when those that are computed by now are added up."""
        if not self._has_room(value):
            self.settle_computed()
        if self._has_room(value):
            self._kept.append(_Late(sums, group, value, saying))
            self._nbytes += count_nbytes(value)
        else:
            # Of this rank's own making: it comes by itself.
            self._settle(_Late(sums, group, value, saying), last=True, waits=True)

    def has_room_for(self, values: Sequence[Any]) -> bool:
        """Whether all of these could be kept."""
        nbytes = sum(map(count_nbytes, values))
        if values and not self._fits(len(values), nbytes):
            self.settle_computed()
        return not values or self._fits(len(values), nbytes)

    def settle_computed(self) -> None:
        """Add up what is computed by now."""
        self._kept = [late for late in self._kept if not self._settle(late)]
        self._nbytes = sum(count_nbytes(late.value) for late in self._kept)

    def settle_all(self) -> None:
        """Add up what is left: everything that the cell launched has ended by now, or was given up."""
        kept, self._kept, self._nbytes = self._kept, [], 0
        for late in kept:
            self._settle(late, last=True)

    def _has_room(self, value: Any) -> bool:
        return self._fits(1, count_nbytes(value))

    def _fits(self, count: int, nbytes: int) -> bool:
        return len(self._kept) + count <= _MOST and self._nbytes + nbytes <= _MOST_NBYTES

    def _settle(self, late: _Late, *, last: bool = False, waits: bool = False) -> bool:
        """Add up what is computed by now; false where it is not, and this is not the last time to ask."""
        sums, value = late.sums, late.value
        if not (last or value.is_deleted() or value.is_ready()):
            return False
        failed = False
        try:
            if waits and not value.is_deleted():
                value.block_until_ready()
            word = self._hash_value(value, value.dtype)
        except Exception as error:  # noqa: BLE001 - what the user's computation failed with: the cell's error, too
            word, sums.last, failed = None, type(error).__name__, True
        if word is None:
            # One that failed is the cell's own error; of one that is not there nothing else would tell.
            sums.is_partial, self.is_partial = True, self.is_partial or not failed
        else:
            sums.add(late.group, *late.saying(word), content=word)
        return True


def count_nbytes(value: Any) -> int:
    """Give a value's size; a number has none."""
    return int(getattr(value, "nbytes", 0))
