"""The record of the arrays that a cell made of host data: shapes, and hashes of what other ranks should hold too.

It launches nothing, and what is not computed yet is hashed at the cell's end. It waits for that only where a program without
a collective is given it, or an array that the user keeps was made of it: then its hash is all that the array is known by.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mhnb.core.exchange.variables import format_array
from mhnb.core.guard.made import GIVEN, HELD, MadeRow
from mhnb.rank.guard.alone import AloneGiven
from mhnb.rank.guard.late import LateValues, Saying, count_nbytes
from mhnb.rank.guard.noted import Argument, Content, Noted, join_noted
from mhnb.rank.guard.origins import HOST_DATA, Maker, hand_on, has_origin, mark_copies
from mhnb.rank.guard.places import find_place
from mhnb.rank.guard.sums import Sums, hash_bytes

__all__ = ["MadeRecord", "hand_on_held"]

_LIMIT_NBYTES = 16 * 2**20
"""Of a box; larger ones are compared by shape here, and by `%mhjax check`."""
_MADE_FOR = "_mhnb_made_for_launch"
"""Of an array that was laid out for a program: its `Argument`."""
_HELD = "_mhnb_held"
"""Of an array of which some ranks hold the same box, and none all: the `Noted` of those that it was made of."""
_UNKNOWN = "_mhnb_content"
"""Of an array that every rank holds all of, and of which is not known yet what it holds: its `Content`."""

Source: TypeAlias = Callable[[Any, Any], Any]


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
        self._late, self._alone = LateValues(self._word), AloneGiven()
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
            self._seq, self._rows, self.active, self._given = seq, {}, active, {}
            self._late, self._alone = LateValues(self._word), AloneGiven()

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
        place = find_place(array.sharding, array.shape) if self.active else None
        if place is None:
            return
        line = self._find_line()
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
            if values and not place.is_whole:
                setattr(array, _HELD, (noted.let_go_of_hashed(),))
            return
        alone = len(values) == 1 and place.is_whole
        # What each rank lays out a part of is hashed where it is launched with.
        held = (*values.values(), *words.values()) if alone else (argument, None)
        setattr(array, _MADE_FOR, Argument(noted, *held))
        if not place.is_whole:
            setattr(array, _UNKNOWN, Content(kind, {"": argument}, None))

    def _enter(self, noted: Noted) -> None:
        """Have it compared at the cell's end."""
        self._note_large(noted.line, noted.nbytes)
        with self._lock:
            row = self._rows.setdefault((noted.line, noted.place.ranks, noted.place.name), _Row())
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
        given: Argument | None = getattr(laid_out, _MADE_FOR, None)
        if given is not None:
            self._enter(given.noted)
        maker = Maker(HOST_DATA, self._seq, self._find_line())
        if has_origin(laid_out):
            hand_on(laid_out, kept, maker)
        elif given is not None and given.noted.place.is_whole:
            setattr(kept, _UNKNOWN, Content(given.noted.kind, given.noted.values, maker))

    def note_launch(
        self, participants: tuple[int, ...], line: int | None, inputs: Sequence[Any], *, agreed: bool
    ) -> None:
        """Record what a launch that communicates is given: the n-th ones of the ranks are one, whatever the line."""
        if not self.active:
            return
        made = [(at, getattr(array, _MADE_FOR)) for at, array in enumerate(inputs) if hasattr(array, _MADE_FOR)]
        for _, given in made:
            self._enter(given.noted)
        if not self._is_counted(agreed=agreed):
            return
        number = self._given[participants] = self._given.get(participants, 0) + 1
        for at, array in enumerate(inputs):
            for noted in getattr(array, _HELD, ()):
                self._enter_held(noted, Saying(number, at, line))
        if not made:
            return
        self._note_large(line, max(count_nbytes(given.value) for _, given in made))
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
        """Give what to call with the outputs of a program without a collective, if it was given anything of a rank's own.

        It is compared where one of them is held at the cell's end: what was only looked at, to print it say, may differ.
        So may a number, such as how fast this rank was: nothing that came of one reaches another rank unseen, by its origin.
        Boxes that some ranks hold too are compared where a launch that communicates is given what came of them.
        """
        if not self.active:
            return None
        made = [getattr(array, _MADE_FOR).noted for array in inputs if hasattr(array, _MADE_FOR) and array.shape]
        held = join_noted(dict.fromkeys(noted for array in inputs for noted in getattr(array, _HELD, ())))
        return functools.partial(self._follow, made, held) if made or held else None

    def _follow(self, made: Sequence[Noted], held: tuple[Noted, ...], outputs: Sequence[Any]) -> None:
        if made:
            self._alone.follow(made, outputs)
        for output in outputs if held else ():
            setattr(output, _HELD, held)

    def learn_contents(self, inputs: Iterable[Any], *, agreed: bool) -> None:
        """Have arrays of a launch known by what is in them, where that was not known when they were made.

        What is still computed is waited for. That is a computation of this rank's own, whose turn comes by itself.

        Args:
            agreed: the launch communicates: what was made for it alone is compared at the cell's end, and not waited for.
        """
        for array in inputs if self.active else ():
            for noted in () if agreed else getattr(array, _HELD, ()):
                noted.learn(self._await_word)
            content: Content | None = None if has_origin(array) else getattr(array, _UNKNOWN, None)
            if content is not None and (content.maker is not None or not agreed):
                words = {text: self._await_word(value, array.dtype) for text, value in content.values.items()}
                _mark_content(array, content, words)
                self._learn_boxes(array)
                # Not before: whoever breaks the wait off, or waits in another thread, finds it as it was.
                vars(array).pop(_UNKNOWN, None)

    def _learn_boxes(self, array: Any) -> None:
        """Have what was laid out for a program hashed, too: it is computed by now."""
        given: Argument | None = getattr(array, _MADE_FOR, None)
        if given is None:
            return
        words = given.noted.words
        for text, value in given.noted.values.items():
            words[text] = self._await_word(value, array.dtype) if words[text] is None else words[text]

    def _await_word(self, value: Any, dtype: Any) -> int | None:
        """Hash a value when it is computed; None where it was deleted. What its computation failed with is the launch's error."""
        if hasattr(value, "is_ready") and count_nbytes(value) <= _LIMIT_NBYTES and not value.is_deleted():
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
            sums.add(group, *saying(word))
        else:
            self._late.add(sums, group, value, saying)

    def take_notes(self) -> list[str]:
        """Say, each once in this process's life, what could not be recorded, and what was too large to be compared."""
        told = []
        if self._trouble and not self._told_trouble:
            self._told_trouble = True
            told = [f"{self._trouble}; please report it (said once)"]
        if self._is_partial and not self._told_partial:
            self._told_partial = True
            lost = "were still computed when they were donated, or when too many were"
            told += [f"launches were given values that {lost}: those are not compared (said once)"]
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
        for noted in self._alone.take():
            self._enter(noted)
        with self._lock:
            rows, self._rows = self._rows, {}
            late, self._late = self._late, LateValues(self._word)
        late.settle_all()
        self._is_partial = self._is_partial or late.is_partial
        return [
            [line, list(ranks), name, row.kinds.to_wire(), {text: sums.to_wire() for text, sums in row.boxes.items()}]
            for (line, ranks, name), row in rows.items()
        ]

    def _note_large(self, line: int | None, nbytes: int) -> None:
        if nbytes > _LIMIT_NBYTES and not self._told_large and self._large is None:
            self._large = line, nbytes

    def _word(self, value: Any, dtype: Any) -> int | None:
        """Hash a value's bytes; None where they are not there yet, or no longer. Of large ones the shape must do."""
        if count_nbytes(value) > _LIMIT_NBYTES:
            return 0
        if hasattr(value, "is_ready") and (value.is_deleted() or not value.is_ready()):
            return None
        return hash_bytes(self._read(value, dtype))


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
