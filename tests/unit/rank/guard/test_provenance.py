"""The tags of arrays: the same steps give the same value in any process, and other steps another value."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from mhnb.core.guard.provenance import ANY, SHARDED_HOST_DATA, UNKNOWN, InputRow
from mhnb.rank.guard.provenance import (
    NOT_GUARDED,
    OutputProvenance,
    Producer,
    UncomparedArrays,
    combine_tags,
    copy_provenance,
    describe_inputs,
    for_collective,
    for_local,
    read_content,
    read_provenance,
    read_tags,
    tag_array,
    tag_empty,
    tag_outputs,
)


class Array:
    """An object that can carry a tag."""


def outputs(provenance: OutputProvenance, count: int = 1) -> list[Array]:
    """Return the outputs of a launch."""
    arrays = [Array() for _ in range(count)]
    tag_outputs(arrays, provenance)
    return arrays


def host_array(value: int, producer: Producer | None = None) -> Array:
    """Return an array made from host data."""
    array = Array()
    tag_array(array, value, producer)
    return array


def value_of(*arrays: object) -> int:
    """Return the value by which a launch on these arrays is compared."""
    return combine_tags(read_tags(arrays))


STEP, HALF, DATA = Producer("jit(step)", 3, 2), Producer("jit(half)", 4, None), Producer("host data", 2, 1)
TOGETHER = for_collective((0, 1), 1, STEP)


def test_empty_arrays_are_equal_whatever_made_them() -> None:
    """An array without an element has one tag, however a rank made it, and is never noted as not compared."""
    made = [Array(), host_array(5), host_array(ANY, DATA), *outputs(TOGETHER)]
    tag_empty(made, range(len(made)))
    assert len({value_of(each) for each in made}) == 1
    uncompared = UncomparedArrays()
    uncompared.record(made, read_tags(made), 1)
    assert uncompared.format_notes() == []
    assert value_of(*outputs(for_local(7, read_tags(made[:1]), HALF))) == value_of(
        *outputs(for_local(7, read_tags(made[1:2]), HALF))
    )


def test_argument_counts_like_any_array() -> None:
    """The content of an argument is compared before the launch, and not after it."""
    assert value_of(host_array(5)) == value_of(host_array(5, DATA)) != value_of(host_array(6))


def test_untagged_array_is_unknown() -> None:
    """An array that was made under another guard is not mistaken for a known one."""
    assert read_tags([Array(), 3.0]) == [(UNKNOWN, None, None)] * 2
    assert value_of(Array()) == value_of(Array()) not in (value_of(host_array(5)), value_of(*outputs(TOGETHER)))


def test_outputs_are_identified_by_launch_and_index() -> None:
    """An output is identified by its index and its launch, which is the n-th one of a set of ranks in a cell."""
    launches = [((0, 1), 1, STEP), ((0, 1), 2, STEP), ((0, 2), 1, STEP), ((0, 1), 1, HALF)]
    provenances = [for_collective(*launch) for launch in launches]
    arrays = [array for each in provenances for array in outputs(each, 3)]
    assert len({value_of(array) for array in arrays}) == 12
    assert all(0 < value < 2**62 for value, _, _ in read_tags(arrays))
    assert value_of(*arrays[:2]) != value_of(*arrays[1::-1])
    assert value_of(*outputs(provenances[0])) == value_of(*outputs(for_collective(*launches[0])))


def test_local_outputs_are_identified_by_program_and_inputs() -> None:
    """A local program's outputs are identified by the program and by every input, a number too."""
    (output,) = outputs(TOGETHER)
    two, three = host_array(2), host_array(3)
    launches = [
        (7, [output, two]),
        (7, [output, three]),
        (7, [Array(), two]),
        (8, [output, two]),
        (7, [output]),
        (7, []),
    ]
    values = [value_of(*outputs(for_local(program, read_tags(inputs), HALF))) for program, inputs in launches]
    assert len(set(values)) == len(launches)


def test_output_of_an_uncomparable_array_is_uncomparable() -> None:
    """If an input cannot be compared yet, each output matches every other array."""
    results = outputs(for_local(7, read_tags([host_array(ANY, DATA), host_array(2)]), HALF), 2)
    assert [tag[0] for tag in read_tags(results)] == [ANY, ANY]


def test_pmap_arguments_identify_only_local_outputs() -> None:
    """The parts of two ranks have nothing in common; arrays made from them carry where the parts were."""
    parts = [host_array(ANY, DATA._replace(pmap_value=own)) for own in (11, 12)]
    assert value_of(parts[0]) == value_of(parts[1])
    values = [for_local(7, read_tags([part]), HALF).value for part in parts]
    assert ANY not in values
    assert values[0] != values[1]


def pass_through(source: Array, provenance: OutputProvenance) -> Array:
    """Return an output that is an unchanged argument."""
    output = host_array(99)
    tag_outputs([output], provenance, passed_through={0: source})
    return output


def test_passed_through_argument_keeps_its_tag() -> None:
    """An argument laid out for an agreed launch is identified by it from then on: another rank may still compute it."""
    local = for_local(7, [], HALF)
    for source in (host_array(5, DATA), *outputs(TOGETHER)):
        assert read_tags([pass_through(source, TOGETHER)]) == read_tags([pass_through(source, local)])
        assert read_tags([pass_through(source, local)]) == read_tags([source])
    assert read_tags([pass_through(host_array(5), local)]) == [(5, HALF, None)]
    assert read_tags([pass_through(host_array(5), TOGETHER)]) == read_tags(outputs(TOGETHER))
    assert read_tags([pass_through(Array(), local)]) == read_tags([Array()])


def test_written_array_gets_the_tag_of_its_output() -> None:
    """A written array has the tag of its output; under another guard it has none, because its content has changed."""
    written, beside = host_array(5, DATA), Array()
    tag_outputs([beside, Array()], TOGETHER, written_arrays={1: written})
    assert read_tags([written]) == read_tags([outputs(TOGETHER, 2)[1]])
    tag_outputs([beside], NOT_GUARDED, written_arrays={0: written})
    assert read_tags([written]) == read_tags([Array()])


def test_each_output_keeps_its_signature() -> None:
    """Each output keeps its signature, whether or not arguments pass through."""
    for passed in ({}, {1: host_array(5, DATA)}):
        arrays: Sequence[Array] = [Array(), Array()]
        tag_outputs(arrays, TOGETHER, signatures=["a", "b"], passed_through=passed)
        assert [tag[2] for tag in read_tags(arrays)] == ["a", "b"]


def test_copy_has_the_tag_of_its_source() -> None:
    """A copy has the tag of its source, or none; the producer is given if the source was laid out for one launch."""
    target = host_array(9)
    copy_provenance(host_array(5), target, DATA)
    assert read_tags([target]) == [(5, DATA, None)]
    copy_provenance(Array(), target)
    assert read_tags([target]) == read_tags([Array()])


def test_inputs_of_a_refused_launch_are_described() -> None:
    """An input identified by its place has no cell to refer to, and neither has one that was laid out for the launch."""
    arrays = [host_array(5, STEP), host_array(6, Producer(SHARDED_HOST_DATA, 4, 1)), host_array(7), Array()]
    assert describe_inputs(arrays, lambda value: "ab" if value == 7 else "", {id(arrays[0]): "w"}) == [
        InputRow(5, 3, "", "jit(step) (cell 3, line 2)", "", "w"),
        InputRow(6, 0, "", "sharded host data (cell 4, line 1)", ""),
        InputRow(7, 0, "", "", "ab"),
        InputRow(UNKNOWN, 0, "", "", ""),
    ]
    assert read_provenance(arrays[0]) == (5, "jit(step) (cell 3, line 2)")


def test_uncompared_arrays_are_counted() -> None:
    """Arrays that were not compared are counted; known arrays and those that each rank has of its own are not."""
    uncompared = UncomparedArrays()
    for arrays, line in (([host_array(5), *outputs(TOGETHER)], 1), ([host_array(ANY, DATA._replace(pmap_value=3))], 2)):
        uncompared.record(arrays, read_tags(arrays), line)
    assert uncompared.format_notes() == []
    arrays = [Array(), host_array(ANY, DATA), host_array(5)]
    uncompared.record(arrays, read_tags(arrays), 3)
    (note,) = uncompared.format_notes()
    assert note.startswith("2 arrays were not compared")
    assert note.endswith("(line 3)")


def test_an_array_that_another_thread_hashes_meanwhile_is_compared() -> None:
    """Between two reads of an array another thread may find it computed: it gets its tag, and is pending no more."""
    array = host_array(5, DATA)
    uncompared = UncomparedArrays()
    uncompared.record([array], [(ANY, DATA, None)], 1)
    assert uncompared.format_notes() == []
    assert read_content(array) == 5


@pytest.mark.parametrize("seed", ["0", "77"])
def test_another_process_gives_the_same_value(seed: str) -> None:
    """Another process computes the same value; Python's hashes of text would not, because ranks may have different seeds."""
    code = (
        "from mhnb.rank.guard.provenance import *\n"
        "class A: pass\n"
        "a, b = A(), A()\n"
        "tag_outputs([a], for_collective((0, 1), 1, Producer('jit(step)', 3, 2)))\n"
        "tag_outputs([b], for_local(2**63 + 5, read_tags([a]), Producer('jit(half)', 4, None)))\n"
        "print(combine_tags(read_tags([a, b])))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
    ).stdout
    a = outputs(TOGETHER)
    assert int(printed) == value_of(*a, *outputs(for_local(2**63 + 5, read_tags(a), HALF)))
