"""The record of what launches are given: nothing is lost, nothing is kept for long, and what is missing is compared with none."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass, replace

import pytest
from mhnb.core.guard.made import GIVEN, MadeRow, compare_made
from mhnb.rank.guard.made import MadeRecord, Reading
from mhnb.rank.guard.noted import Noted, join_noted
from mhnb.rank.guard.origins import has_origin
from mhnb.rank.guard.places import Place

BOTH = (0, 1)


class Value:
    """An array of one rank's own, ready or not."""

    dtype = "f32"

    def __init__(self, content: int, *, ready: bool = True, nbytes: int = 4) -> None:
        self.content, self.ready, self.nbytes, self.deleted = content, ready, nbytes, False
        self.interrupt = False

    def is_ready(self) -> bool:
        """Whether it is computed."""
        return self.ready

    def block_until_ready(self) -> None:
        """Compute it, unless the user interrupts that."""
        if self.interrupt:
            raise KeyboardInterrupt
        self.ready = True

    def is_deleted(self) -> bool:
        """Whether it was donated."""
        return self.deleted


@dataclass(frozen=True)
class Device:
    """One of a rank's."""

    id: int

    @property
    def process_index(self) -> int:
        """A rank has one device."""
        return self.id


class Copies:
    """A sharding whose every device holds all."""

    is_fully_addressable = False
    spec = ""

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        """Which device has what."""
        return {Device(rank): (slice(0, shape[0]),) for rank in BOTH}

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        """This rank's."""
        return {Device(0): (slice(0, shape[0]),)}


class Laid:
    """What JAX makes of a value for all devices."""

    dtype, sharding = "f32", Copies()
    shape: tuple[int, ...] = (1,)


def record() -> MadeRecord:
    """The record of a cell that has begun."""
    made = MadeRecord(lambda: 1, lambda: 0, lambda value, _dtype: Reading(bytes([value.content])))
    made.begin_cell(2, active=True)
    return made


def give(made: MadeRecord, value: Value, line: int = 1, donated: tuple[int, ...] = ()) -> None:
    """A launch is given a value."""
    laid = Laid()
    made.note(laid, lambda _device, _index: value, value)
    made.learn_contents([laid], agreed=True, donated=donated)
    made.note_launch(BOTH, line, [laid], agreed=True)


def differ(mine: list[MadeRow], theirs: list[MadeRow]) -> bool:
    """Whether two ranks are told apart."""
    return bool(compare_made({0: mine, 1: theirs}))


def many(*, ready_at: int, last: int) -> list[MadeRow]:
    """A loop that is given what is still computed, on a rank that looks at it after some turns; and a last number."""
    made, values = record(), []
    for turn in range(100):
        values.append(Value(turn % 7, ready=False))
        if turn % 50 == ready_at:
            for value in values:
                value.ready = True
        give(made, values[-1])
    give(made, Value(last))
    for value in values:
        value.ready = True
    return made.end_cell()


def test_a_loop_that_is_far_ahead_of_what_it_is_given_is_compared_all_the_same() -> None:
    """Whenever each rank looks at one of the values: equal ones are no difference, and another one after them is found."""
    assert not differ(many(ready_at=34, last=7), many(ready_at=35, last=7))
    assert differ(many(ready_at=34, last=7), many(ready_at=35, last=8))


def test_more_than_is_kept_is_waited_for() -> None:
    """Before the launch: nothing of it is missing at the cell's end."""
    rows = []
    for late, last in ((300, 1), (310, 1), (310, 2)):
        made = record()
        values = [Value(turn % 7 if turn < 319 else last, ready=turn >= late) for turn in range(320)]
        for value in values:
            give(made, value)
        assert len(made._late) <= 256
        for value in values:
            value.ready = True
        rows.append(made.end_cell())
        assert made.take_notes() == []
    assert not differ(*rows[:2])
    assert differ(*rows[1:])


def test_what_a_launch_takes_for_good_is_waited_for() -> None:
    """Afterwards nothing is left to hash; what was kept of the same buffer is hashed with it."""
    rows = []
    for content in (1, 2):
        made, value = record(), Value(content, ready=False)
        give(made, value)
        give(made, value, donated=(0,))
        assert value.ready
        value.deleted = True
        rows.append(made.end_cell())
        assert made.take_notes() == []
    assert differ(*rows)


def test_a_finalizer_may_make_an_array_in_the_middle_of_the_record() -> None:
    """The collector runs it wherever Python allocates: also while the record adds up what it has read."""
    made = record()

    def read(value: Value, _dtype: str) -> Reading:
        if value.content == 1:
            made.note(Laid(), lambda _device, _index: Value(2))
        return Reading(bytes([value.content]))

    made._read = read
    value = Value(1, ready=False)
    give(made, value)
    value.ready = True
    writing = threading.Thread(target=give, args=(made, Value(3)), kwargs={"donated": (0,)}, daemon=True)
    writing.start()
    writing.join(30)
    assert not writing.is_alive()
    assert len(made.end_cell()) == 3


def test_what_was_donated_meanwhile_is_not_compared() -> None:
    """Its bytes are gone: another rank may have read them in time."""
    rows = []
    for donated in (True, False):
        made, value = record(), Value(1, ready=False)
        give(made, value)
        value.deleted, value.ready = donated, True
        give(made, Value(2))
        rows.append(made.end_cell())
        assert len(made.take_notes()) == donated
    assert not differ(*rows)


def test_what_is_not_compared_is_said_in_each_cell() -> None:
    """And in no other."""
    made = record()
    for donated in (True, True, False):
        value = Value(1, ready=False)
        give(made, value)
        value.deleted, value.ready = donated, True
        made.end_cell()
        assert len(made.take_notes()) == donated
        made.begin_cell(3, active=True)


def test_a_wait_that_is_broken_off_leaves_it_to_the_next() -> None:
    """Ctrl-C comes while a value is waited for: the array is known by it when it is asked for again, as on the other ranks."""
    made, laid, value = record(), Laid(), Value(1, ready=False)
    made.note(laid, lambda _device, _index: value)
    value.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        made.learn_contents([laid], agreed=True)
    assert not has_origin(laid)
    value.interrupt = False
    made.learn_contents([laid], agreed=True)
    assert has_origin(laid)


def test_of_a_value_of_which_pieces_are_hashed_the_cell_says_so() -> None:
    """It has to be fetched from a device's own memory."""
    made = MadeRecord(lambda: 1, lambda: 0, lambda value, _dtype: Reading(bytes([value.content]), in_part=True))
    for _ in range(2):
        made.begin_cell(2, active=True)
        give(made, Value(1, nbytes=20 * 2**20))
        (note,) = made.take_notes()
        assert "up to 20.0 MiB" in note


@pytest.mark.parametrize("theirs", [3, 4])
def test_a_launch_that_was_refused_has_no_number(theirs: int) -> None:
    """Of a rank that tries again, on another line, the next launch is the others' first."""
    rows = []
    for tries, content in ((True, 3), (False, theirs)):
        made = record()
        if tries:
            made.note_launch(BOTH, 1, [], agreed=True)
            made.withdraw(BOTH, agreed=True)
        give(made, Value(content), line=2 + tries)
        rows.append([row for row in made.end_cell() if row[2] == GIVEN])
    assert differ(*rows) == (theirs != 3)


def test_what_a_program_alone_was_given_is_not_compared() -> None:
    """A rank's own examples, say: what comes of them carries that, and is refused where it would reach others."""
    made, laid = record(), Laid()
    made.note(laid, lambda _device, _index: Value(1), Value(1))
    assert made.follow([laid]) is None
    assert made.end_cell() == []


def noted(**words: int | None) -> Noted:
    """What this rank holds of an array, by box."""
    return Noted(1, 0, Place(BOTH, "there", False), "f32[4]", 8, {}, {**words})


def test_what_came_of_several_is_known_box_by_box() -> None:
    """A rank that holds one box has the same hash for it as one that holds two; equal ones count once, unknown ones not at all."""
    (two,) = join_noted([noted(a=1, b=1), noted(a=2, b=1)])
    (one,) = join_noted([noted(a=1), noted(a=2)])
    assert two.words["a"] == one.words["a"] not in (1, 2)
    assert two.words["b"] == 1
    assert join_noted([noted(a=1), noted(a=None)])[0].words == {}
    assert join_noted([noted(a=2), noted(a=1)])[0].words != one.words


def test_one_is_what_it_was() -> None:
    """And those of other places stay apart."""
    first, other = noted(a=1), replace(noted(a=1), place=Place(BOTH, "elsewhere", False))
    assert join_noted([first]) == (first,)
    assert join_noted([first, other]) == (first, other)


PIECES = """
import jax, jax.numpy as jnp, numpy as np
from mhnb.rank.guard.making import _cut, _read
big = np.zeros(6 * 2**20, np.float32)
big[[0, -1]] = 1, 2
for array in (jnp.asarray(big), jnp.asarray(big.reshape(6, -1)), jnp.asarray(big).astype(jnp.bfloat16)):
    pieces = np.asarray(_cut(array))
    assert pieces.nbytes == 2**20 and (pieces[0, 0], pieces[-1, -1]) == (1, 2), pieces
    inside = []
    jax.jit(lambda x: (inside.append(_cut(array)), x)[1])(1.0)
    assert np.array_equal(np.asarray(inside[0]), pieces)
assert _read(jnp.asarray(big), np.float32).in_part is False
"""


def test_pieces_of_an_array_are_cut_from_its_beginning_to_its_end() -> None:
    """On its device, also while a program is traced; what is in the host's memory is read whole."""
    ran = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
