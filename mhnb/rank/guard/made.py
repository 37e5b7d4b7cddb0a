"""The record of the arrays that a cell made of host data: shapes, and hashes of what other ranks should hold too.

It launches nothing and waits for nothing: what is not computed yet is hashed at the cell's end.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

from mhnb.core.exchange.variables import format_array
from mhnb.core.guard.made import GIVEN, PARTIAL, MadeRow
from mhnb.rank.guard.origins import HOST_DATA, Maker, mark_copies

__all__ = ["MadeRecord"]

_LIMIT_NBYTES = 16 * 2**20
"""Of a box; larger ones are compared by shape here, and by `%mhjax check`."""
_LATER = 64
"""So many arrays that are still computed are kept at most, the cell's end at the latest."""
_WORD = 2**64
_FACTOR = 0x9E3779B97F4A7C15
_MADE_FOR = "_mhnb_made_for_launch"
"""Of an array that was made of an argument: its kind, what it was made of, and the hash of that where it is known."""

Source: TypeAlias = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class _Place:
    """What a sharding makes of a shape: which ranks share the array, and which boxes of ours others hold too."""

    ranks: tuple[int, ...]
    name: str
    """Devices and spec, as a hash: the same on every rank."""
    is_whole: bool
    """Every device holds all of it."""
    shared: dict[Any, tuple[Any, str]] = field(default_factory=dict)
    """By local device: index and text of the box; each box once."""


class _Sums:
    """Hashes of things in the order in which they came; see `core.made.MadeRow`."""

    __slots__ = ("_group", "_here", "_here_count", "count", "groups", "is_partial", "last", "ordered", "total")

    def __init__(self) -> None:
        self.is_partial = False
        """Something is missing: what is left cannot be compared."""
        self.count = self.groups = self.ordered = self.total = 0
        self.last = ""
        self._group = self._here = self._here_count = 0

    def add(self, group: int, what: str, word: int) -> None:
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
        self._close()
        return [
            PARTIAL if self.is_partial else self.count,
            f"{self.groups:x}",
            f"{self.ordered:x}",
            f"{self.total:x}",
            self.last,
        ]


@dataclass(slots=True)
class _Row:
    kinds: _Sums = field(default_factory=_Sums)
    boxes: dict[str, _Sums] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Saying:
    """How a hash is added up and told: of a launch's argument with the launch, the argument's place, and the line."""

    number: int = 0
    place: int = 0
    line: int | None = None

    def __call__(self, word: int) -> tuple[str, int]:
        told = f"{word:016x}"[:12]
        if not self.number:
            return told, word
        where = "" if self.line is None else f" on line {self.line}"
        return told + where, self.mix(word)

    def mix(self, word: int) -> int:
        """Hash what a launch was given with where: these are added up, and sums of `hash` of tuples are the same too easily."""
        return _hash(f"{self.number} {self.place} {word}".encode())


_say = _Saying()


class MadeRecord:
    """What this rank made in the current cell. `note` may be called from any thread.

    Args:
        find_line: the cell's line that the caller is in.
        count_launches: how many launches were made in this cell so far.
        read: the bytes of a value, as a type of element.
    """

    def __init__(
        self,
        find_line: Callable[[], int | None],
        count_launches: Callable[[], int],
        read: Callable[[Any, Any], Any],
    ) -> None:
        self._find_line, self._count_launches, self._read = find_line, count_launches, read
        self._main = threading.main_thread()
        self._lock = threading.Lock()
        self._seq = 0
        self._rows: dict[tuple[Any, ...], _Row] = {}
        self._later: list[tuple[_Sums, int, Any, _Saying]] = []
        self._given: dict[tuple[int, ...], int] = {}
        """How many launches were made so far whose number is the same on each rank, by participants."""
        self.active = False
        """Whether anybody will compare."""
        self._large: tuple[int | None, int] | None = None
        """Line and size of the first box that was too large to be hashed; told once."""
        self._told_large = False
        self._trouble, self._told_trouble = "", False
        """Why an array could not be recorded; told once."""
        self._is_partial = self._told_partial = False
        """Whether more was still computed than is kept; told once."""

    def begin_cell(self, seq: int = 0, *, active: bool) -> None:
        """Forget the last cell."""
        with self._lock:
            self._seq, self._rows, self._later, self.active = seq, {}, [], active
            self._given = {}

    def note(self, array: Any, source: Source, argument: Any = None) -> None:
        """Record an array that was just made. What cannot be recorded is told of, and no error of the cell's.

        Args:
            source: gives what a device got, from the device and its index of the whole.
            argument: what it was made of, where it was laid out for a program. JAX takes that to be the same on every rank,
                also where each lays out a part of it.
        """
        try:
            self._note(array, source, argument)
        except Exception as error:  # noqa: BLE001 - arrays are of JAX's private making: the user's program goes on
            if not self._trouble:
                where = _say_line(self._find_line())
                self._trouble = f"{where} makes an array that cannot be compared with the other ranks' ({error!r})"

    def _note(self, array: Any, source: Source, argument: Any) -> None:
        place = _find_place(array.sharding, array.shape) if self.active else None
        if place is None:
            return
        line = self._find_line()
        # Other threads run at their own pace: of theirs only what there is in all can be compared.
        group = self._count_launches() if threading.current_thread() is self._main else 0
        kind = format_array(array.shape, str(array.dtype))
        values = {text: source(device, index) for device, (index, text) in place.shared.items()}
        words = {text: self._word(value, array.dtype) for text, value in values.items()}
        # What each rank lays out a part of is hashed where it is launched with.
        held: tuple[Any, int | None] = argument, None
        if place.is_whole:
            held = (*values.values(), *words.values())
            _mark_copies(array, kind, held, Maker(HOST_DATA, self._seq, line) if argument is None else None)
        if argument is not None:
            setattr(array, _MADE_FOR, (kind, *held))
        self._note_large(line, values.values())
        with self._lock:
            row = self._rows.setdefault((line, place.ranks, place.name), _Row())
            row.kinds.add(group, kind, _hash(kind.encode()))
            for text, word in words.items():
                sums = row.boxes.setdefault(text, _Sums())
                self._add(sums, group, word, values[text], _say)

    def note_launch(
        self, participants: tuple[int, ...], line: int | None, inputs: Sequence[Any], *, agreed: bool
    ) -> None:
        """Record what a launch that communicates is given: the n-th ones of the ranks are one, whatever the line."""
        if not self._is_counted(agreed=agreed):
            return
        number = self._given[participants] = self._given.get(participants, 0) + 1
        made = [(at, getattr(array, _MADE_FOR)) for at, array in enumerate(inputs) if hasattr(array, _MADE_FOR)]
        if not made:
            return
        with self._lock:
            row = self._rows.setdefault((None, participants, GIVEN), _Row())
            sums = row.boxes.setdefault(GIVEN, _Sums())
            for place, (kind, value, word) in made:
                saying = _Saying(number, place, line)
                row.kinds.add(0, kind, saying.mix(_hash(kind.encode())))
                self._add(sums, 0, self._word(value, inputs[place].dtype) if word is None else word, value, saying)
        self._note_large(line, [value for _, (_, value, _) in made])

    def withdraw(self, participants: tuple[int, ...], *, agreed: bool) -> None:
        """The launch that was noted last was refused before it was made: the next one has its number."""
        if self._is_counted(agreed=agreed) and self._given.get(participants):
            self._given[participants] -= 1

    def _is_counted(self, *, agreed: bool) -> bool:
        # Where the ranks do not agree on each, other threads run at their own pace.
        return self.active and (agreed or threading.current_thread() is self._main)

    def _add(self, sums: _Sums, group: int, word: int | None, value: Any, saying: _Saying) -> None:
        if word is not None:
            sums.add(group, *saying(word))
            return
        if len(self._later) >= _LATER:
            self._later = [late for late in self._later if not self._settle(*late)]
        if len(self._later) < _LATER:
            self._later.append((sums, group, value, saying))
        else:
            sums.is_partial = self._is_partial = True

    def _settle(self, sums: _Sums, group: int, value: Any, saying: _Saying, *, last: bool = False) -> bool:
        """Add up what is computed by now; false where it is not, and this is not the last time to ask."""
        if not (last or value.is_deleted() or value.is_ready()):
            return False
        try:
            word = self._word(value, value.dtype)
        except Exception as error:  # noqa: BLE001 - what the user's computation failed with: the cell's error, too
            word, sums.last = None, type(error).__name__
        if word is None:
            sums.is_partial = True
        else:
            sums.add(group, *saying(word))
        return True

    def find_maker(self) -> Maker:
        """Say where host data is made an array now."""
        return Maker(HOST_DATA, self._seq, self._find_line())

    def take_notes(self) -> list[str]:
        """Say, each once in this process's life, what could not be recorded, and what was too large to be compared."""
        told = []
        if self._trouble and not self._told_trouble:
            self._told_trouble = True
            told = [f"{self._trouble}; please report it (said once)"]
        if self._is_partial and not self._told_partial:
            self._told_partial = True
            told += [
                f"launches were given values of which more than {_LATER} were still computed: those are not compared (said once)"
            ]
        large, self._large = self._large, None
        if large is None or self._told_large:
            return told
        self._told_large = True
        line, nbytes = large
        where = _say_line(line)
        size, limit = f"{nbytes / 2**20:.1f} MiB", f"{_LIMIT_NBYTES >> 20} MiB"
        copies = f"{where} makes copies of {size} on several ranks: above {limit} only shapes are compared"
        return [*told, f"{copies}, and %mhjax check NAME compares what is in them (said once)"]

    def end_cell(self) -> list[MadeRow]:
        """Hand out the rows. Everything that the cell launched has ended by now, or was given up."""
        with self._lock:
            rows, later, self._rows, self._later = self._rows, self._later, {}, []
        for late in later:
            self._settle(*late, last=True)
        return [
            [line, list(ranks), name, row.kinds.to_wire(), {text: sums.to_wire() for text, sums in row.boxes.items()}]
            for (line, ranks, name), row in rows.items()
        ]

    def _note_large(self, line: int | None, values: Iterable[Any]) -> None:
        if self._told_large:
            return
        nbytes = max((getattr(value, "nbytes", 0) for value in values), default=0)
        if nbytes > _LIMIT_NBYTES and self._large is None:
            self._large = line, nbytes

    def _word(self, value: Any, dtype: Any) -> int | None:
        """Hash a value's bytes; None where they are not there yet, or no longer. Of large ones the shape must do."""
        if getattr(value, "nbytes", 0) > _LIMIT_NBYTES:
            return 0
        if hasattr(value, "is_ready") and (value.is_deleted() or not value.is_ready()):
            return None
        return _hash(self._read(value, dtype))


def _mark_copies(array: Any, kind: str, held: tuple[Any, ...], maker: Maker | None) -> None:
    value, word = held
    # What is still computed has no content yet, and whether it is differs between ranks.
    if word is not None and not hasattr(value, "is_ready"):
        mark_copies(array, hash((_hash(kind.encode()), word)), maker)


def _say_line(line: int | None) -> str:
    return "a line of another file" if line is None else f"line {line}"


def _hash(data: Any) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@lru_cache(4096)
def _find_place(sharding: Any, shape: tuple[int, ...]) -> _Place | None:
    """Say who shares an array; None where one rank has it all, or it is empty."""
    if sharding.is_fully_addressable or not prod(shape):
        return None
    boxes: dict[str, set[int]] = {}
    texts = {}
    for device, index in sharding.devices_indices_map(shape).items():
        texts[device] = _box_text(index, shape)
        boxes.setdefault(texts[device], set()).add(device.process_index)
    ranks = tuple(sorted(set().union(*boxes.values())))
    if len(ranks) < 2:
        return None
    name = f"{[device.id for device in texts]} {getattr(sharding, 'spec', '')}"
    shared: dict[Any, tuple[Any, str]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        if len(boxes[texts[device]]) > 1 and texts[device] not in {text for _, text in shared.values()}:
            shared[device] = index, texts[device]
    return _Place(ranks, f"{_hash(name.encode()):x}", len(boxes) == 1, shared)


def _box_text(index: Any, shape: tuple[int, ...]) -> str:
    ranges = (part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
    return ", ".join(f"{start}:{stop}" for start, stop in ranges) or "whole"
