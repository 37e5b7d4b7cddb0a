"""The record of launch inputs: nothing is lost, nothing is kept for long, and what is missing is not compared."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from mhnb.core.guard.host_data import DIFFERENT_COPIES, LAUNCH_INPUT, HostDataRow, compare_host_data, read_sample
from mhnb.core.guard.provenance import ANY, uncompared_blocks
from mhnb.core.messages import MAX_NAME_CHARS, RunCell
from mhnb.rank.execution.streams import CELL_NUMBER, propagate_to_threads
from mhnb.rank.guard.hashing import ArrayBytes, HostArray, sample_of
from mhnb.rank.guard.host_data import HostDataRecorder, SharedBoxes, merge_boxes
from mhnb.rank.guard.provenance import Producer, combine_tags, read_tags, tag_array

BOTH = (0, 1)


class Program(NamedTuple):
    """A program of both ranks."""

    fingerprint: str = "f1"
    participants: tuple[int, ...] = BOTH


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


@dataclass(frozen=True)
class SecondDevice(Device):
    """The second device of rank 0."""

    @property
    def process_index(self) -> int:
        """Return the device's rank."""
        return 0


class CopiesOnThree(Copies):
    """A sharding over two devices of rank 0, and one of rank 1; each has all of the array."""

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        """Return the index of each device."""
        return {device: (slice(0, shape[0]),) for device in (Device(0), SecondDevice(2), Device(1))}

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        """Return the index of this rank's devices."""
        return {device: (slice(0, shape[0]),) for device in (Device(0), SecondDevice(2))}


class RowsOnThree(CopiesOnThree):
    """A sharding in which each rank has a part of its own, and rank 0 has it on two devices."""

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        """Return the index of each device."""
        return {**self.addressable_devices_indices_map(shape), Device(1): (slice(1, 2),)}

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        """Return the index of this rank's devices."""
        return {device: (slice(0, shape[0] - 1),) for device in (Device(0), SecondDevice(2))}


class LaidOutArray:
    """The array that JAX makes from a value for all devices."""

    dtype = "f32"

    def __init__(self, sharding: Copies | None = None) -> None:
        self.sharding = sharding or Copies()
        self.shape: tuple[int, ...] = (1,) if sharding is None else (2,)


def start_recorder(*, uses_tags: bool = True) -> HostDataRecorder:
    """Return the recorder of a cell that has begun."""
    recorder = HostDataRecorder(lambda: 1, lambda: 0, lambda value, _dtype: ArrayBytes(bytes([value.content])))
    recorder.begin_cell(RunCell(1, 2, "", "lockstep" if uses_tags else "parity"))
    return recorder


def launch_with(recorder: HostDataRecorder, value: Value, line: int = 1, donated: tuple[int, ...] = ()) -> None:
    """Pass a value to a launch; another rank is still computing its own."""
    array = LaidOutArray()
    recorder.record_argument(array, value, lambda _device, _index: value)
    recorder.hash_inputs([array], donated=donated)
    recorder.record_inputs(Program(), line, [array], is_agreed=True, uncompared_mask=1)


def rows_differ(mine: list[HostDataRow], theirs: list[HostDataRow]) -> bool:
    """Return whether the rows of two ranks differ."""
    return bool(compare_host_data({0: mine, 1: theirs}))


def loop_rows(*, ready_at: int, last: int) -> list[HostDataRow]:
    """Return the rows of a loop over values that are still computed, polled after some turns; and of a last number."""
    recorder, values = start_recorder(), []
    for turn in range(100):
        values.append(Value(turn % 7, ready=False))
        if turn % 50 == ready_at:
            for value in values:
                value.ready = True
        launch_with(recorder, values[-1])
    launch_with(recorder, Value(last))
    for value in values:
        value.ready = True
    return recorder.end_cell()


def test_loop_far_ahead_of_its_inputs_is_compared() -> None:
    """Whenever each rank polls the values: equal ones are no difference, and a different one after them is found."""
    assert not rows_differ(loop_rows(ready_at=34, last=7), loop_rows(ready_at=35, last=7))
    assert rows_differ(loop_rows(ready_at=34, last=7), loop_rows(ready_at=35, last=8))


@pytest.mark.slow
def test_inputs_beyond_the_limit_are_waited_for() -> None:
    """Inputs beyond the limit are waited for before the launch, so that nothing is missing at the end of the cell."""
    rows = []
    for late, last in ((300, 1), (310, 1), (310, 2)):
        recorder = start_recorder()
        values = [Value(turn % 7 if turn < 319 else last, ready=turn >= late) for turn in range(320)]
        for value in values:
            launch_with(recorder, value)
        assert len(recorder._deferred) <= 256
        for value in values:
            value.ready = True
        rows.append(recorder.end_cell())
        assert recorder.take_notes() == []
    assert not rows_differ(*rows[:2])
    assert rows_differ(*rows[1:])


def test_donated_input_is_waited_for() -> None:
    """A donated input is waited for, because it cannot be hashed later; an earlier record of its buffer is hashed with it."""
    rows = []
    for content in (1, 2):
        recorder, value = start_recorder(), Value(content, ready=False)
        launch_with(recorder, value)
        launch_with(recorder, value, donated=(0,))
        assert value.ready
        value.deleted = True
        rows.append(recorder.end_cell())
        assert recorder.take_notes() == []
    assert rows_differ(*rows)


def test_finalizer_may_make_an_array_during_recording() -> None:
    """A finalizer may make an array while the recorder adds up what it has read, as Python may run it at any allocation."""
    recorder = start_recorder()

    def read(value: Value, _dtype: str) -> ArrayBytes:
        if value.content == 1:
            recorder.record_array(LaidOutArray(), lambda _device, _index: Value(2))
        return ArrayBytes(bytes([value.content]))

    recorder._read_value = read
    value = Value(1, ready=False)
    launch_with(recorder, value)
    value.ready = True
    writing = threading.Thread(target=launch_with, args=(recorder, Value(3)), kwargs={"donated": (0,)}, daemon=True)
    writing.start()
    writing.join(30)
    assert not writing.is_alive()
    assert len(recorder.end_cell()) == 2


def test_input_donated_meanwhile_is_not_compared() -> None:
    """An input that was donated meanwhile is not compared: another rank may have read its bytes in time."""
    rows = []
    for donated in (True, False):
        recorder, value = start_recorder(), Value(1, ready=False)
        launch_with(recorder, value)
        value.deleted, value.ready = donated, True
        launch_with(recorder, Value(2))
        rows.append(recorder.end_cell())
        assert len(recorder.take_notes()) == donated
    assert not rows_differ(*rows)


def test_uncompared_inputs_are_noted_in_each_cell() -> None:
    """Each cell with an input that was not compared has a note, and no other cell has one."""
    recorder = start_recorder()
    for donated in (True, True, False):
        value = Value(1, ready=False)
        launch_with(recorder, value)
        value.deleted, value.ready = donated, True
        recorder.end_cell()
        assert len(recorder.take_notes()) == donated
        recorder.begin_cell(RunCell(1, 3, "", "lockstep"))


def test_interrupted_wait_is_repeated_by_the_next() -> None:
    """After Ctrl-C in the wait for a value, the next request identifies the array by that value, as on the other ranks."""
    recorder, array, value = start_recorder(), LaidOutArray(), Value(1, ready=False)
    recorder.record_array(array, lambda _device, _index: value)
    value.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        recorder.hash_inputs([array], donated=None)
    assert read_tags([array])[0][0] == ANY
    value.interrupt = False
    recorder.hash_inputs([array], donated=None)
    assert read_tags([array])[0][0] != ANY


def test_value_hashed_in_pieces_is_noted() -> None:
    """A value of which pieces are hashed is noted in its cell, because it has to be fetched from a device's own memory."""
    recorder = HostDataRecorder(
        lambda: 1, lambda: 0, lambda value, _dtype: ArrayBytes(bytes([value.content]), is_sampled=True)
    )
    for _ in range(2):
        recorder.begin_cell(RunCell(1, 2, "", "lockstep"))
        launch_with(recorder, Value(1, nbytes=20 * 2**20))
        (note,) = recorder.take_notes()
        assert "up to 20.0 MiB" in note


@pytest.mark.parametrize("theirs", [3, 4])
def test_refused_launch_has_no_number(theirs: int) -> None:
    """A refused launch is not counted: after a retry on another line, the rank's launch is compared with the first launch of the others."""
    rows = []
    for tries, content in ((True, 3), (False, theirs)):
        recorder = start_recorder()
        if tries:
            recorder.record_inputs(Program(), 1, [], is_agreed=True)
            recorder.undo_count(BOTH, is_agreed=True)
        launch_with(recorder, Value(content), line=2 + tries)
        rows.append([row for row in recorder.end_cell() if row.place.startswith(LAUNCH_INPUT)])
    assert rows_differ(*rows) == (theirs != 3)


def test_input_of_a_local_program_is_not_compared() -> None:
    """A local program's input is not compared; its outputs carry that, and are refused where they would reach others.

    Such inputs may be examples of a rank's own.
    """
    recorder, array = start_recorder(), LaidOutArray()
    recorder.record_argument(array, Value(1), lambda _device, _index: Value(1))
    assert recorder.track_inputs([array]) is None
    assert recorder.end_cell() == []


def test_input_compared_before_a_launch_is_not_compared_after() -> None:
    """An argument is compared before the launch and not after it: it has its value by then, whatever it was made of."""
    rows, values = [], []
    for content in (1, 2):
        recorder, array = start_recorder(), LaidOutArray()
        recorder.record_argument(array, Value(content), lambda _device, _index: None)
        values.append(combine_tags(read_tags([array])))
        recorder.record_inputs(Program(), 1, [array], is_agreed=True, uncompared_mask=uncompared_blocks(values[-1]))
        rows.append(recorder.end_cell())
    assert values[0] != values[1]
    assert rows == [[], []]


def test_without_agreement_arguments_are_compared_after_launch() -> None:
    """Without agreement, arguments are compared after the launch, and an array made for the user has no tag."""
    rows = []
    for content in (1, 2):
        recorder, array, kept = start_recorder(uses_tags=False), LaidOutArray(), LaidOutArray()
        recorder.record_argument(array, Value(content), lambda _device, _index: None)
        recorder.record_inputs(Program(), 1, [array], is_agreed=False)
        rows.append(recorder.end_cell())
        recorder.record_array(kept, lambda _device, _index: Value(1))
        assert read_tags([kept]) == read_tags([object()])
    assert rows_differ(*rows)


def test_argument_and_array_with_equal_content_are_equal() -> None:
    """The tag does not depend on how a rank made the array, or when it was computed."""
    recorder, late = start_recorder(), Value(3, ready=False)
    argument, array, waited = LaidOutArray(), LaidOutArray(), LaidOutArray()
    recorder.record_argument(argument, Value(3), lambda _device, _index: None)
    recorder.record_array(array, lambda _device, _index: Value(3))
    recorder.record_array(waited, lambda _device, _index: late)
    assert read_tags([waited])[0][0] == ANY
    late.ready = True
    recorder.hash_inputs([waited])
    assert len({value for value, _, _ in read_tags([argument, array, waited])}) == 1


def tag_values(count: int) -> list[int]:
    """Return the tag values of arrays of which no rank has all, made in the cell of a new recorder."""
    recorder, arrays = start_recorder(), [LaidOutArray(Rows()) for _ in range(count)]
    for array in arrays:
        recorder.record_array(array, lambda _device, _index: Value(1))
    return [value for value, _, _ in read_tags(arrays)]


def test_sharded_array_is_identified_by_its_count_on_the_line() -> None:
    """An array of which no rank has all is identified by its count on the line, because its content differs by rank."""
    assert len(set(tag_values(3))) == 3
    assert tag_values(3) == tag_values(3)


@pytest.fixture
def in_cell() -> Iterator[None]:
    """Run the test as code of cell 2, which threads inherit."""
    propagate_to_threads()
    token = CELL_NUMBER.set(2)
    yield
    CELL_NUMBER.reset(token)


@pytest.mark.usefixtures("in_cell")
def test_array_is_identified_by_the_call_that_makes_it() -> None:
    """An array that a call of a pool makes is identified by the call; one of a thread of the user's own is not identified."""
    found: dict[str, list[int]] = {}

    def make(name: str) -> None:
        found[name] = tag_values(2)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, "ab"))
    thread = threading.Thread(target=make, args=("c",))
    thread.start()
    thread.join()
    assert len({*found["a"], *found["b"], *tag_values(2), ANY}) == 7
    assert found["c"] == [ANY, ANY]


@pytest.mark.usefixtures("in_cell")
def test_thread_that_outlives_its_cell_is_compared_from_its_first_array() -> None:
    """What a thread makes after its cell belongs to the next, and is compared with all that it made before.

    The ranks end a cell at different arrays of such a thread.
    """
    recorder, made, go = start_recorder(), threading.Event(), threading.Event()

    def make() -> None:
        for _ in range(2):
            recorder.record_array(LaidOutArray(), lambda _device, _index: Value(1))
            made.set()
            go.wait(60)

    thread = threading.Thread(target=make)
    thread.start()
    made.wait(60)
    (first,) = recorder.end_cell()
    go.set()
    thread.join()
    recorder.begin_cell(RunCell(1, 3, "", "lockstep"))
    (second,) = recorder.end_cell()
    assert (first.kinds.count, second.kinds.count) == (1, 2)
    assert first.place == second.place


def test_part_that_is_made_again_is_accepted() -> None:
    """With `--ranks`, a part that is made again is accepted, because the other ranks have theirs from another cell."""
    recorder, array = start_recorder(), LaidOutArray(Rows())
    recorder.begin_cell(RunCell(1, 3, "", "lockstep", [0]))
    recorder.record_array(array, lambda _device, _index: Value(1))
    assert read_tags([array])[0][0] == ANY


@pytest.mark.parametrize(
    ("programs", "differs"),
    [
        pytest.param(("a pmap", "f1", "f1"), True, id="another program"),
        pytest.param(("f1", "f1", "f1"), False, id="the same program: it may be a part that one rank made again"),
    ],
)
def test_argument_that_must_not_be_compared_concerns_its_own_program(programs: Sequence[str], *, differs: bool) -> None:
    """An argument of each rank's own switches off the comparison of its own program's arguments, and of no other program's."""
    rows = []
    for content in (1, 2):
        recorder, own = start_recorder(), LaidOutArray()
        tag_array(own, ANY, Producer("host data", 2, 1))
        for fingerprint, array in zip(programs, (own, LaidOutArray(), LaidOutArray()), strict=True):
            if array is not own:
                recorder.record_argument(array, Value(content), lambda _device, _index: None)
            recorder.record_inputs(Program(fingerprint), 1, [array], is_agreed=True, uncompared_mask=1)
        rows.append(recorder.end_cell())
        # However many launches there are, a row belongs to a program.
        assert len(rows[-1]) == len({*programs})
    assert rows_differ(*rows) == differs


def make_copies(
    recorder: HostDataRecorder, values: Sequence[Any], sharding: type[Copies] = CopiesOnThree
) -> LaidOutArray:
    """Make an array from a value for each device of rank 0."""
    array, values_by_id = LaidOutArray(sharding()), dict(zip((0, 2), values, strict=True))
    recorder.record_array(array, lambda device, _index: values_by_id[device.id])
    return array


@pytest.mark.parametrize("sharding", [CopiesOnThree, RowsOnThree])
@pytest.mark.parametrize("uses_tags", [True, False])
@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("second", [1, 2])
def test_copies_on_two_devices_of_a_rank_are_compared(
    sharding: type[Copies], *, uses_tags: bool, ready: bool, second: int
) -> None:
    """What two devices of one rank got for one box is compared, whether or not another rank holds that box."""
    recorder, late = start_recorder(uses_tags=uses_tags), Value(second, ready=ready)
    make_copies(recorder, [Value(1), late], sharding)
    late.ready = True
    found = [row for row in recorder.end_cell() if row.place.startswith(DIFFERENT_COPIES)]
    assert len(found) == (second == 2)
    assert bool(compare_host_data({0: found})) == (second == 2)


def test_equal_copies_have_the_tag_of_one_value() -> None:
    """The tag does not depend on the number of a rank's devices, unless their copies differ."""
    recorder, single = start_recorder(), LaidOutArray(Copies())
    recorder.record_array(single, lambda _device, _index: Value(1))
    value, equal, different = (
        read_tags([array])[0][0]
        for array in (
            single,
            make_copies(recorder, [Value(1), Value(1)]),
            make_copies(recorder, [Value(1), Value(2)]),
        )
    )
    assert value == equal != different


def test_the_same_memory_is_hashed_once() -> None:
    """Copies that are one object, or NumPy's views of the same memory, are hashed once, because they are equal."""
    reads: list[Any] = []

    def read(value: Any, _dtype: Any) -> ArrayBytes:
        reads.append(value)
        return ArrayBytes(value.tobytes())

    recorder, data = HostDataRecorder(lambda: 1, lambda: 0, read), np.arange(4)
    recorder.begin_cell(RunCell(1, 2, "", "lockstep"))
    for copies, count in (
        ([data, data], 1),
        ([data[:2], data[:2]], 1),
        ([data[:2], data[2:]], 2),
        ([data[:2], data[::2]], 2),
    ):
        reads.clear()
        make_copies(recorder, copies)
        assert len(reads) == count
    reads.clear()
    make_copies(recorder, [data[:2], data[:2]], RowsOnThree)
    assert reads == []


def hold_boxes(place: str = "there", **words: int | None) -> HostArray:
    """Return what this rank has of an array, by box."""
    array = HostArray("f32[4]", "f32", {text: None for text, word in words.items() if word is None})
    array.sharing = SharedBoxes(BOTH, place, is_replicated=False)
    array.part_hashes = {text: word for text, word in words.items() if word is not None}
    return array


def test_merged_content_is_hashed_box_by_box() -> None:
    """A box has the same hash on a rank with one box and one with two; equal ones count once, unknown ones not at all."""
    (two,) = merge_boxes([hold_boxes(a=1, b=1), hold_boxes(a=2, b=1)])
    (one,) = merge_boxes([hold_boxes(a=1), hold_boxes(a=2)])
    assert two.part_hashes["a"] == one.part_hashes["a"] not in (1, 2)
    assert two.part_hashes["b"] == 1
    assert merge_boxes([hold_boxes(a=1), hold_boxes(a=None)])[0].part_hashes == {}
    assert merge_boxes([hold_boxes(a=2), hold_boxes(a=1)])[0].part_hashes != one.part_hashes


def test_merge_of_one_content_changes_nothing() -> None:
    """A single content stays as it is, and contents of other places stay separate."""
    first, other = hold_boxes(a=1), hold_boxes("elsewhere", a=1)
    assert merge_boxes([first]) == (first,)
    assert merge_boxes([first, other]) == (first, other)


SAMPLE_PIECES = """
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


@pytest.mark.slow
def test_pieces_span_the_whole_array() -> None:
    """Pieces are cut on the device, even while a program is traced; what is in the host's memory is read completely."""
    ran = subprocess.run([sys.executable, "-c", SAMPLE_PIECES], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_sample_is_of_the_values_type() -> None:
    """Of two values with the same bytes and different types, each is described by its own elements."""
    values: dict[str, np.ndarray] = {"u8[4]": np.array([0, 0, 0, 63], np.uint8), "f32[]": np.array(0.5, np.float32)}
    for kind, expected in (("u8[4]", [0, 0, 0, 63]), ("f32[]", [0.5]), ("u8[4]", [0, 0, 0, 63])):
        array = HostArray(kind, values[kind].dtype, {"": values[kind]})
        assert array.hash_parts(lambda part, dtype: ArrayBytes(part.tobytes(), dtype))
        assert list(read_sample(sample_of(array.part_hashes[""]))) == expected
        assert list(read_sample(sample_of(array.tag_value))) == expected


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", [np.full(2, 0x7FA00000, np.uint32).view("f4"), np.full(2, np.finfo("g").max)])
def test_a_sample_of_any_bits_gives_no_warning(values: np.ndarray[Any, Any]) -> None:
    """Bits of a signalling NaN and numbers too large for a double are described without a warning in the user's output."""
    array = HostArray("f32[2]", values.dtype, {"": values})
    assert array.hash_parts(lambda part, dtype: ArrayBytes(part.tobytes(), dtype))
    assert len(sample_of(array.part_hashes[""])) == 2 * 16


def test_sample_of_complex_values_survives_the_limit_of_texts() -> None:
    """A cell's end that is shortened for its output still has whole samples of its arrays, and so can be decoded."""
    values = np.arange(64) * (1 + 2j)
    array = HostArray("c128[64]", values.dtype, {"": values})
    assert array.hash_parts(lambda part, dtype: ArrayBytes(part.tobytes(), dtype))
    assert 0 < len(sample_of(array.part_hashes[""])) <= MAX_NAME_CHARS
