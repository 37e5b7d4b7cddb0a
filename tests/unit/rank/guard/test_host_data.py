"""The record of launch inputs: nothing is lost, nothing is kept for long, and what is missing is not compared."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from mhnb.core.guard.host_data import LAUNCH_INPUT, HostDataRow, compare_host_data
from mhnb.core.guard.provenance import ANY, uncompared_blocks
from mhnb.core.guard.threads import UNKNOWN_THREAD
from mhnb.rank.execution.streams import current_thread, propagate_to_threads
from mhnb.rank.guard.hashing import ArrayBytes, HostArray
from mhnb.rank.guard.host_data import HostDataRecorder, SharedBoxes, merge_boxes
from mhnb.rank.guard.provenance import combine_tags, read_tags

BOTH = (0, 1)


class Value:
    """An array of this rank alone, ready or not."""

    dtype = "f32"

    def __init__(self, content: int, *, ready: bool = True, nbytes: int = 4) -> None:
        self.content, self.ready, self.nbytes, self.deleted = content, ready, nbytes, False
        self.interrupt = False

    def is_ready(self) -> bool:
        """Return whether it is computed."""
        return self.ready

    def block_until_ready(self) -> None:
        """Compute it, unless the user interrupts that."""
        if self.interrupt:
            raise KeyboardInterrupt
        self.ready = True

    def is_deleted(self) -> bool:
        """Return whether it was donated."""
        return self.deleted


@dataclass(frozen=True)
class Device:
    """A device of a rank."""

    id: int

    @property
    def process_index(self) -> int:
        """Return the device's rank: a rank has one device."""
        return self.id


class Copies:
    """A sharding whose every device has all of the array."""

    is_fully_addressable = False
    spec = ""

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        """Return the index of each device."""
        return {Device(rank): (slice(0, shape[0]),) for rank in BOTH}

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        """Return the index of this rank's device."""
        return {Device(0): (slice(0, shape[0]),)}


class Rows(Copies):
    """A sharding in which no rank has all of the array."""

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        """Return the index of each device."""
        return {Device(rank): (slice(rank, shape[0] - 1 + rank),) for rank in BOTH}

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        """Return the index of this rank's device."""
        return {Device(0): (slice(0, shape[0] - 1),)}


class Laid:
    """The array that JAX makes from a value for all devices."""

    dtype = "f32"

    def __init__(self, sharding: Copies | None = None) -> None:
        self.sharding = sharding or Copies()
        self.shape: tuple[int, ...] = (1,) if sharding is None else (2,)


def record(*, tags: bool = True) -> HostDataRecorder:
    """Return the recorder of a cell that has begun."""
    made = HostDataRecorder(lambda: 1, lambda: 0, lambda value, _dtype: ArrayBytes(bytes([value.content])))
    made.begin_cell(2, is_active=True, uses_tags=tags)
    return made


def give(made: HostDataRecorder, value: Value, line: int = 1, donated: tuple[int, ...] = ()) -> None:
    """Pass a value to a launch; another rank is still computing its own."""
    laid = Laid()
    made.record_argument(laid, value, lambda _device, _index: value)
    made.hash_inputs([laid], donated=donated)
    made.record_inputs(BOTH, line, [laid], is_agreed=True, uncompared_mask=1)


def differ(mine: list[HostDataRow], theirs: list[HostDataRow]) -> bool:
    """Return whether the rows of two ranks differ."""
    return bool(compare_host_data({0: mine, 1: theirs}))


def many(*, ready_at: int, last: int) -> list[HostDataRow]:
    """Return the rows of a loop over values that are still computed, polled after some turns; and of a last number."""
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
    """Whenever each rank polls the values: equal ones are no difference, and a different one after them is found."""
    assert not differ(many(ready_at=34, last=7), many(ready_at=35, last=7))
    assert differ(many(ready_at=34, last=7), many(ready_at=35, last=8))


def test_more_than_is_kept_is_waited_for() -> None:
    """Inputs beyond the limit are waited for before the launch, so that nothing is missing at the end of the cell."""
    rows = []
    for late, last in ((300, 1), (310, 1), (310, 2)):
        made = record()
        values = [Value(turn % 7 if turn < 319 else last, ready=turn >= late) for turn in range(320)]
        for value in values:
            give(made, value)
        assert len(made._deferred) <= 256
        for value in values:
            value.ready = True
        rows.append(made.end_cell())
        assert made.take_notes() == []
    assert not differ(*rows[:2])
    assert differ(*rows[1:])


def test_what_a_launch_takes_for_good_is_waited_for() -> None:
    """A donated input is waited for, because it cannot be hashed later; an earlier record of its buffer is hashed with it."""
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
    """A finalizer may make an array while the recorder adds up what it has read, as Python may run it at any allocation."""
    made = record()

    def read(value: Value, _dtype: str) -> ArrayBytes:
        if value.content == 1:
            made.record_array(Laid(), lambda _device, _index: Value(2))
        return ArrayBytes(bytes([value.content]))

    made._read_value = read
    value = Value(1, ready=False)
    give(made, value)
    value.ready = True
    writing = threading.Thread(target=give, args=(made, Value(3)), kwargs={"donated": (0,)}, daemon=True)
    writing.start()
    writing.join(30)
    assert not writing.is_alive()
    assert len(made.end_cell()) == 2


def test_what_was_donated_meanwhile_is_not_compared() -> None:
    """An input that was donated meanwhile is not compared: another rank may have read its bytes in time."""
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
    """Each cell with an input that was not compared has a note, and no other cell has one."""
    made = record()
    for donated in (True, True, False):
        value = Value(1, ready=False)
        give(made, value)
        value.deleted, value.ready = donated, True
        made.end_cell()
        assert len(made.take_notes()) == donated
        made.begin_cell(3, is_active=True, uses_tags=True)


def test_a_wait_that_is_broken_off_leaves_it_to_the_next() -> None:
    """After Ctrl-C in the wait for a value, the next request identifies the array by that value, as on the other ranks."""
    made, laid, value = record(), Laid(), Value(1, ready=False)
    made.record_array(laid, lambda _device, _index: value)
    value.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        made.hash_inputs([laid], donated=None)
    assert read_tags([laid])[0][0] == ANY
    value.interrupt = False
    made.hash_inputs([laid], donated=None)
    assert read_tags([laid])[0][0] != ANY


def test_of_a_value_of_which_pieces_are_hashed_the_cell_says_so() -> None:
    """A value of which pieces are hashed is noted in its cell, because it has to be fetched from a device's own memory."""
    made = HostDataRecorder(
        lambda: 1, lambda: 0, lambda value, _dtype: ArrayBytes(bytes([value.content]), is_sampled=True)
    )
    for _ in range(2):
        made.begin_cell(2, is_active=True, uses_tags=True)
        give(made, Value(1, nbytes=20 * 2**20))
        (note,) = made.take_notes()
        assert "up to 20.0 MiB" in note


@pytest.mark.parametrize("theirs", [3, 4])
def test_a_launch_that_was_refused_has_no_number(theirs: int) -> None:
    """If a rank tries again on another line, its next launch is the first one of the others."""
    rows = []
    for tries, content in ((True, 3), (False, theirs)):
        made = record()
        if tries:
            made.record_inputs(BOTH, 1, [], is_agreed=True)
            made.undo_count(BOTH, is_agreed=True)
        give(made, Value(content), line=2 + tries)
        rows.append([row for row in made.end_cell() if row[2].startswith(LAUNCH_INPUT)])
    assert differ(*rows) == (theirs != 3)


def test_what_a_program_alone_was_given_is_not_compared() -> None:
    """A local program's input is not compared; its outputs carry that, and are refused where they would reach others.

    Such inputs may be examples of a rank's own.
    """
    made, laid = record(), Laid()
    made.record_argument(laid, Value(1), lambda _device, _index: Value(1))
    assert made.track_inputs([laid]) is None
    assert made.end_cell() == []


def test_what_was_compared_before_the_launch_is_not_compared_after_it() -> None:
    """An argument is compared before the launch and not after it: it has its value by then, whatever it was made of."""
    rows, values = [], []
    for content in (1, 2):
        made, laid = record(), Laid()
        made.record_argument(laid, Value(content), lambda _device, _index: None)
        values.append(combine_tags(read_tags([laid])))
        made.record_inputs(BOTH, 1, [laid], is_agreed=True, uncompared_mask=uncompared_blocks(values[-1]))
        rows.append(made.end_cell())
    assert values[0] != values[1]
    assert rows == [[], []]


def test_where_the_ranks_do_not_agree_arguments_are_compared_after_the_launch() -> None:
    """Without agreement, arguments are compared after the launch, and an array made for the user has no tag."""
    rows = []
    for content in (1, 2):
        made, laid, kept = record(tags=False), Laid(), Laid()
        made.record_argument(laid, Value(content), lambda _device, _index: None)
        made.record_inputs(BOTH, 1, [laid], is_agreed=False)
        rows.append(made.end_cell())
        made.record_array(kept, lambda _device, _index: Value(1))
        assert read_tags([kept]) == read_tags([object()])
    assert differ(*rows)


def test_an_argument_and_an_array_of_one_content_are_one() -> None:
    """The tag does not depend on how a rank made the array, or when it was computed."""
    made, late = record(), Value(3, ready=False)
    argument, array, waited = Laid(), Laid(), Laid()
    made.record_argument(argument, Value(3), lambda _device, _index: None)
    made.record_array(array, lambda _device, _index: Value(3))
    made.record_array(waited, lambda _device, _index: late)
    assert read_tags([waited])[0][0] == ANY
    late.ready = True
    made.hash_inputs([waited])
    assert len({value for value, _, _ in read_tags([argument, array, waited])}) == 1


def identities(count: int) -> list[int]:
    """Return the tag values of arrays of which no rank has all, made in the cell of a new recorder."""
    made, arrays = record(), [Laid(Rows()) for _ in range(count)]
    for array in arrays:
        made.record_array(array, lambda _device, _index: Value(1))
    return [value for value, _, _ in read_tags(arrays)]


def test_of_which_no_rank_holds_all_is_known_by_the_count_on_its_line() -> None:
    """An array of which no rank has all is identified by its count on the line, because its content differs by rank."""
    assert len(set(identities(3))) == 3
    assert identities(3) == identities(3)


def test_each_thread_counts_for_itself() -> None:
    """A thread's arrays are identified by the thread, at any pace; a thread that no Python code has started is unknown."""
    propagate_to_threads()
    found: dict[str, list[int]] = {}

    def make(name: str) -> None:
        found[name] = identities(2)

    for name in "ab":
        thread = threading.Thread(target=make, args=(name,))
        thread.start()
        thread.join()
    assert len({*found["a"], *found["b"], *identities(2)}) == 6
    unknown = threading.Thread(target=lambda: found.update(c=identities(2)))
    # Start the thread as C++ code does.
    vars(type(unknown).start)["__wrapped__"](unknown)
    unknown.join()
    assert current_thread().number != UNKNOWN_THREAD
    assert len(set(found["c"])) == 1


def test_ranks_that_make_their_part_again_are_let_in() -> None:
    """With `--ranks`, a part that is made again is accepted, because the other ranks have theirs from another cell."""
    made, laid = record(), Laid(Rows())
    made.begin_cell(3, is_active=True, uses_tags=True, cell_ranks=[0])
    made.record_array(laid, lambda _device, _index: Value(1))
    assert read_tags([laid])[0][0] == ANY


def host(place: str = "there", **words: int | None) -> HostArray:
    """Return what this rank has of an array, by box."""
    made = HostArray("f32[4]", "f32", {text: None for text, word in words.items() if word is None})
    made.sharing = SharedBoxes(BOTH, place, is_replicated=False)
    made.part_hashes = {text: word for text, word in words.items() if word is not None}
    return made


def test_what_came_of_several_is_known_box_by_box() -> None:
    """A box has the same hash on a rank with one box and one with two; equal ones count once, unknown ones not at all."""
    (two,) = merge_boxes([host(a=1, b=1), host(a=2, b=1)])
    (one,) = merge_boxes([host(a=1), host(a=2)])
    assert two.part_hashes["a"] == one.part_hashes["a"] not in (1, 2)
    assert two.part_hashes["b"] == 1
    assert merge_boxes([host(a=1), host(a=None)])[0].part_hashes == {}
    assert merge_boxes([host(a=2), host(a=1)])[0].part_hashes != one.part_hashes


def test_one_is_what_it_was() -> None:
    """A single content stays as it is, and contents of other places stay separate."""
    first, other = host(a=1), host("elsewhere", a=1)
    assert merge_boxes([first]) == (first,)
    assert merge_boxes([first, other]) == (first, other)


PIECES = """
import jax, jax.numpy as jnp, numpy as np
from mhnb.rank.guard.array_hooks import _sample_pieces, _read_value
big = np.zeros(6 * 2**20, np.float32)
big[[0, -1]] = 1, 2
for array in (jnp.asarray(big), jnp.asarray(big.reshape(6, -1)), jnp.asarray(big).astype(jnp.bfloat16)):
    pieces = np.asarray(_sample_pieces(array))
    assert pieces.nbytes == 2**20 and (pieces[0, 0], pieces[-1, -1]) == (1, 2), pieces
    inside = []
    jax.jit(lambda x: (inside.append(_sample_pieces(array)), x)[1])(1.0)
    assert np.array_equal(np.asarray(inside[0]), pieces)
assert _read_value(jnp.asarray(big), np.float32).is_sampled is False
"""


def test_pieces_of_an_array_are_cut_from_its_beginning_to_its_end() -> None:
    """Pieces are cut on the device, even while a program is traced; what is in the host's memory is read completely."""
    ran = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
