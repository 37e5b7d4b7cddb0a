"""The record of the arrays that a cell made of host data: shapes, and hashes of what other ranks should hold too.

It launches nothing, and what is not computed yet is hashed at the cell's end. It waits for that only where a program without
a collective is given it, or an array that the user keeps was made of it: then its hash is all that the array is known by.
And where a launch takes it for good (donation): afterwards nothing is left to hash.

An array of which no rank holds all has an identity: the cell, the line, and which one of its kind it is there. So ranks that
make two in one order and use them in another are refused.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from mhnb.core.exchange.variables import format_array
from mhnb.core.guard.made import GIVEN, HELD, LAUNCHED, MadeRow
from mhnb.rank.guard.late import LateValues, Saying, count_nbytes
from mhnb.rank.guard.noted import Argument, Content, Noted, join_noted
from mhnb.rank.guard.origins import HOST_DATA, Maker, PlacedMaker, hand_on, has_origin, mark_copies, mark_unknown
from mhnb.rank.guard.places import find_place
from mhnb.rank.guard.sums import Samples, Sums, hash_bytes

__all__ = ["MadeRecord", "Reading", "hand_on_held"]

_MADE_FOR = "_mhnb_made_for_launch"
"""Of an array that was laid out for a program: its `Argument`."""
_HELD = "_mhnb_held"
"""Of an array of which some ranks hold the same box, and none all: the `Noted` of those that it was made of."""
_UNKNOWN = "_mhnb_content"
"""Of an array whose every rank has all that went into it, and of which is not known yet what that is: its `Content`."""

Source: TypeAlias = Callable[[Any, Any], Any]


class Reading(NamedTuple):
    """The bytes of a value."""

    data: Any
    dtype: Any = None
    """NumPy's type of its elements; None where no values are to be kept."""
    in_part: bool = False
    """They are some pieces of it only."""


@dataclass(slots=True)
class _Row:
    kinds: Sums = field(default_factory=Sums)
    boxes: dict[str, Sums] = field(default_factory=dict)


_say = Saying()


class MadeRecord:
    """What this rank made in the current cell. `note` may be called from any thread.

    Args:
        find_line: the cell's line that the caller is in.
        count_launches: how many launches were made in this cell so far.
        read: reads a value, as a type of element.
        runs_in_order: whether the caller is the cell's own code: no thread or task of it.
    """

    def __init__(
        self,
        find_line: Callable[[], int | None],
        count_launches: Callable[[], int],
        read: Callable[[Any, Any], Reading],
        runs_in_order: Callable[[], bool] = lambda: True,
    ) -> None:
        self._find_line, self._count_launches, self._read = find_line, count_launches, read
        self._runs_in_order = runs_in_order
        self._main = threading.main_thread()
        # A finalizer of the user's may make an array wherever Python runs it: also where its own thread holds the lock.
        self._lock = threading.RLock()
        self._seq = 0
        self._rows: dict[tuple[Any, ...], _Row] = {}
        self._late = LateValues(self._word)
        self._given: dict[tuple[int, ...], int] = {}
        """How many launches were made so far whose number is the same on each rank, by participants."""
        self._identified: dict[tuple[Any, ...], int] = {}
        """How many arrays of which no rank holds all were made so far, by line, place and kind."""
        self._chosen: tuple[int, ...] | None = None
        self.active = False
        """Whether anybody will compare."""
        self._samples = Samples()
        self._sampled_nbytes = 0
        """Of the largest value of which only pieces were hashed."""
        self._trouble = ""
        """Why an array could not be recorded."""
        self._is_partial = False
        """Whether a value was gone, or not computed, when it was to be hashed."""

    def begin_cell(self, seq: int = 0, *, active: bool, chosen: Sequence[int] | None = None) -> None:
        """Forget the last cell; `chosen` are the ranks that run this one, None for all."""
        with self._lock:
            self._seq, self._rows, self.active, self._given = seq, {}, active, {}
            self._late, self._identified = LateValues(self._word), {}
            self._chosen = None if chosen is None else tuple(chosen)
            self._sampled_nbytes, self._trouble, self._is_partial = 0, "", False

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
            if argument is None:
                mark_unknown(array, Maker(HOST_DATA, self._seq, self._find_line()))

    def _note(self, array: Any, source: Source, argument: Any) -> None:
        place = find_place(array.sharding, array.shape)
        if place is None:
            return
        line = self._find_line()
        if not self.active:
            if argument is None:
                # Without a guard the ranks may make what differs, on purpose.
                mark_unknown(array, Maker(HOST_DATA, self._seq, line))
            return
        # Other threads run at their own pace: of theirs only what there is in all can be compared.
        group = self._count_launches() if threading.current_thread() is self._main else 0
        kind = format_array(array.shape, str(array.dtype))
        values = {text: source(device, index) for device, (index, text) in place.shared.items()}
        words = {text: self._word(value, array.dtype) for text, value in values.items()}
        nbytes = max(map(count_nbytes, values.values()), default=0)
        noted = Noted(line, group, place, kind, nbytes, values, words)
        if place.is_whole:
            maker = Maker(HOST_DATA, self._seq, line) if argument is None else None
            if not _mark_content(array, content := Content(kind, values, maker), words):
                # What is still computed has no content yet, and whether it is differs between ranks.
                setattr(array, _UNKNOWN, content)
        if argument is None:
            self._enter(noted)
            if not place.is_whole:
                self._identify(array, noted)
            if values and not place.is_whole:
                setattr(array, _HELD, (noted.let_go_of_hashed(),))
            return
        alone = len(values) == 1 and place.is_whole
        # What each rank lays out a part of is hashed where it is launched with.
        held = (*values.values(), *words.values()) if alone else (argument, None)
        setattr(array, _MADE_FOR, Argument(noted, *held))
        if not place.is_whole:
            setattr(array, _UNKNOWN, Content(kind, {"": argument}, None))

    def _identify(self, array: Any, noted: Noted) -> None:
        """Have an array of which no rank holds all be known by where it was made, and as which one of its kind there.

        What it holds cannot say so, as each rank has another part of it.
        """
        if not self._runs_in_order():
            return
        place, maker = noted.place, PlacedMaker(HOST_DATA, self._seq, noted.line)
        if self._chosen is not None and not set(place.ranks) <= set(self._chosen):
            # With --ranks some ranks make their part anew: the others have theirs of another cell.
            mark_unknown(array, maker)
            return
        mark_copies(array, self._number(noted.line, place.name, noted.kind), maker)

    def _number(self, *key: Any) -> int:
        """Return a hash of the cell, of a line and what is made there, and of how often that was made."""
        with self._lock:
            number = self._identified[key] = self._identified.get(key, 0) + 1
        return hash_bytes(f"{self._seq} {key} {number}".encode()) >> 2

    def note_mapped(self, array: Any) -> bool:
        """Have what pmap is given of this rank's own be known by where; false where it is not of several ranks.

        A launch is not compared by it: the parts of two ranks have nothing in common. But what a program without a collective
        makes of it is, where it meets the other ranks'.
        """
        place = find_place(array.sharding, array.shape) if self.active else None
        if place is None or not self._runs_in_order():
            return False
        mark_copies(array, self._number(self._find_line(), "pmap", place.name, str(array.aval)), None)
        return True

    def _enter(self, noted: Noted, *, launched: bool = False) -> None:
        """Have it compared at the cell's end; `launched`: a launch is given it."""
        name = noted.place.name + LAUNCHED if launched else noted.place.name
        with self._lock:
            row = self._rows.setdefault((noted.line, noted.place.ranks, name), _Row())
            row.kinds.add(noted.group, noted.kind, hash_bytes(noted.kind.encode()))
            for text, word in noted.words.items():
                sums = row.boxes.setdefault(text, Sums())
                self._add(sums, noted.group, word, noted.values.get(text), _say)

    def _enter_held(self, noted: Noted, saying: Saying) -> None:
        with self._lock:
            row = self._rows.setdefault((None, noted.place.ranks, HELD + noted.place.name), _Row())
            row.kinds.add(0, noted.kind, saying.mix(hash_bytes(noted.kind.encode())))
            for text, word in noted.words.items():
                self._add(row.boxes.setdefault(text, Sums()), 0, word, noted.values.get(text), saying)

    def note_kept(self, laid_out: Any, kept: Any) -> None:
        """What was laid out is given to no program: the user keeps it."""
        maker = Maker(HOST_DATA, self._seq, self._find_line())
        if not self.active:
            if find_place(kept.sharding, kept.shape) is not None and not has_origin(kept):
                mark_unknown(kept, maker)
            return
        given: Argument | None = getattr(laid_out, _MADE_FOR, None)
        if given is not None:
            self._enter(given.noted)
        if has_origin(laid_out):
            hand_on(laid_out, kept, maker)
        elif given is not None:
            self._note_kept_content(kept, given, maker)

    def _note_kept_content(self, kept: Any, given: Argument, maker: Maker) -> None:
        values = given.noted.values if given.noted.place.is_whole else {"": given.value}
        content = Content(given.noted.kind, values, maker)
        # Now, as the user may write into a NumPy array; what is still computed does not change.
        words = {text: self._word(value, kept.dtype) for text, value in values.items()}
        if not _mark_content(kept, content, words):
            setattr(kept, _UNKNOWN, content)

    def note_launch(
        self, participants: tuple[int, ...], line: int | None, inputs: Sequence[Any], *, agreed: bool
    ) -> None:
        """Record what a launch that communicates is given: the n-th ones of the ranks are one, whatever the line."""
        if not self.active:
            return
        made = [(at, getattr(array, _MADE_FOR)) for at, array in enumerate(inputs) if hasattr(array, _MADE_FOR)]
        for _, given in made:
            self._enter(given.noted, launched=True)
        if not self._is_counted(agreed=agreed):
            return
        number = self._given[participants] = self._given.get(participants, 0) + 1
        for at, array in enumerate(inputs):
            for noted in getattr(array, _HELD, ()):
                self._enter_held(noted, Saying(number, at, line))
        if not made:
            return
        with self._lock:
            row = self._rows.setdefault((None, participants, GIVEN), _Row())
            sums = row.boxes.setdefault(GIVEN, Sums())
            for at, (noted, value, known) in made:
                saying = Saying(number, at, line)
                row.kinds.add(0, noted.kind, saying.mix(hash_bytes(noted.kind.encode())))
                # What is computed is read later: here a failure of the user's would leave the others alone in the launch.
                by_hand = known is None and not hasattr(value, "is_ready")
                word = self._word(value, inputs[at].dtype) if by_hand else known
                self._add(sums, 0, word, value, saying)

    def follow(self, inputs: Sequence[Any]) -> Callable[[Sequence[object]], None] | None:
        """Give what to call with the outputs of a program without a collective, if it was given a box that other ranks hold too.

        Those are compared where a launch that communicates is given what came of them. What else it was given is not: what came
        of that is this rank's own, and its origin says so where it would reach another rank.
        """
        if not self.active:
            return None
        held = join_noted(dict.fromkeys(noted for array in inputs for noted in getattr(array, _HELD, ())))
        return functools.partial(_hold, held) if held else None

    def learn_contents(self, inputs: Sequence[Any], *, agreed: bool, donated: Collection[int] | None = ()) -> None:
        """Have arrays of a launch known by what is in them, where that was not known when they were made.

        What is still computed is waited for. That is a computation of this rank's own, whose turn comes by itself.

        Args:
            agreed: the launch communicates: what was made for it alone is compared at the cell's end, and not waited for.
            donated: the places of what the launch takes for good, which is waited for; None where that is not known.
        """
        if not self.active:
            return
        is_crowded = agreed and not self._late.has_room_for(_list_late(inputs))
        for at, array in enumerate(inputs):
            waits = not agreed or is_crowded or donated is None or at in donated
            for noted in getattr(array, _HELD, ()) if waits else ():
                noted.learn(self._await_word)
            content: Content | None = None if has_origin(array) else getattr(array, _UNKNOWN, None)
            if content is not None and (content.maker is not None or waits):
                words = {text: self._await_word(value, array.dtype) for text, value in content.values.items()}
                _mark_content(array, content, words)
                self._learn_boxes(array)
                # Not before: whoever breaks the wait off, or waits in another thread, finds it as it was.
                vars(array).pop(_UNKNOWN, None)
        if donated != () and len(self._late):
            # What was kept of the same buffers is computed by now, and about to be taken.
            with self._lock:
                self._late.settle_computed()

    def _learn_boxes(self, array: Any) -> None:
        """Have what was laid out for a program hashed, too: it is computed by now."""
        given: Argument | None = getattr(array, _MADE_FOR, None)
        if given is None:
            return
        words = given.noted.words
        for text, value in given.noted.values.items():
            words[text] = self._await_word(value, array.dtype) if words[text] is None else words[text]
        if given.word is None:
            setattr(array, _MADE_FOR, given._replace(word=self._await_word(given.value, array.dtype)))

    def _await_word(self, value: Any, dtype: Any) -> int | None:
        """Hash a value when it is computed; None where it was deleted. What its computation failed with is the launch's error."""
        if hasattr(value, "is_ready") and not value.is_deleted():
            value.block_until_ready()
        return self._word(value, dtype)

    def withdraw(self, participants: tuple[int, ...], *, agreed: bool) -> None:
        """The launch that was noted last was refused before it was made: the next one has its number."""
        if self._is_counted(agreed=agreed) and self._given.get(participants):
            self._given[participants] -= 1

    def _is_counted(self, *, agreed: bool) -> bool:
        # Where the ranks do not agree on each, other threads run at their own pace.
        return self.active and (agreed or threading.current_thread() is self._main)

    def _add(self, sums: Sums, group: int, word: int | None, value: Any, saying: Saying) -> None:
        if word is not None:
            sums.add(group, *saying(word), content=word)
        else:
            self._late.add(sums, group, value, saying)

    def take_notes(self) -> list[str]:
        """Say what of this cell could not be compared, or only in part."""
        told = [f"{self._trouble}; please report it"] if self._trouble else []
        if self._is_partial:
            told += [
                "launches were given values that were donated, or still computed, when the cell ended: those are not compared"
            ]
        if self._sampled_nbytes:
            size = f"{self._sampled_nbytes / 2**20:.1f} MiB"
            told += [
                f"of copies in device memory (up to {size}) only pieces are compared; %mhjax check NAME compares all"
            ]
        return told

    def end_cell(self) -> list[MadeRow]:
        """Hand out the rows. Everything that the cell launched has ended by now, or was given up."""
        with self._lock:
            rows, self._rows = self._rows, {}
            late, self._late = self._late, LateValues(self._word)
        late.settle_all()
        self._is_partial = self._is_partial or late.is_partial
        return [
            [line, list(ranks), name, row.kinds.to_wire(), {text: self._wire(sums) for text, sums in row.boxes.items()}]
            for (line, ranks, name), row in rows.items()
        ]

    def _wire(self, sums: Sums) -> list[Any]:
        return sums.to_wire(self._samples.to_hex(sums.last_word))

    def _word(self, value: Any, dtype: Any) -> int | None:
        """Hash a value's bytes; None where they are not there yet, or no longer."""
        if hasattr(value, "is_ready") and (value.is_deleted() or not value.is_ready()):
            return None
        read = self._read(value, dtype)
        if read.in_part:
            self._sampled_nbytes = max(self._sampled_nbytes, count_nbytes(value))
        word = hash_bytes(read.data)
        if read.dtype is not None:
            self._samples.add(word, read.data, read.dtype)
        return word


def _list_late(inputs: Sequence[Any]) -> list[Any]:
    """List what a launch is given that may still be computed, as often as it would be kept."""
    given = [getattr(array, _MADE_FOR) for array in inputs if hasattr(array, _MADE_FOR)]
    boxes = [value for each in given for text, value in each.noted.values.items() if each.noted.words[text] is None]
    held = [noted for array in inputs for noted in getattr(array, _HELD, ())]
    boxes += [value for noted in held for text, value in noted.values.items() if noted.words[text] is None]
    return boxes + [each.value for each in given if each.word is None and hasattr(each.value, "is_ready")]


def _hold(held: tuple[Noted, ...], outputs: Sequence[Any]) -> None:
    for output in outputs:
        setattr(output, _HELD, held)


def hand_on_held(source: object, kept: Any) -> None:
    """Have an array of the same buffers, or pieces, be known by what the other one was made of."""
    if held := getattr(source, _HELD, ()):
        setattr(kept, _HELD, held)


def _mark_content(array: Any, content: Content, words: Mapping[str, int | None]) -> bool:
    """Have an array known by what is in it; false where that is not known."""
    if None in words.values():
        return False
    hashed = [(hash_bytes(box.encode()), word) for box, word in sorted(words.items())]
    mark_copies(array, hash((hash_bytes(content.kind.encode()), *hashed)), content.maker)
    return True


def _say_line(line: int | None) -> str:
    return "a line of another file" if line is None else f"line {line}"
