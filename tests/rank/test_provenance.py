"""Origins of arrays: the same steps give the same one, in whatever process; anything else another."""

from __future__ import annotations

import subprocess
import sys

import pytest
from mhnb.rank.guard.origins import Maker, bear_alone, bear_together, combine, find_makers, mark, mark_copies


class Array:
    """What an origin can be put on."""


def outputs(birth: object, count: int = 1) -> list[Array]:
    """What a launch gave."""
    arrays = [Array() for _ in range(count)]
    mark(arrays, birth)  # type: ignore[arg-type]
    return arrays


STEP, HALF = Maker("jit(step)", 3, 2), Maker("jit(half)", 4, None)


def test_arrays_of_no_launch_have_none() -> None:
    """Nor have arguments that are made of a number: the end of the cell compares those."""
    copy = Array()
    mark_copies(copy, 5, None)
    assert combine([Array(), copy, 3.0]) == 0
    assert find_makers([Array(), copy]) == []


def test_copies_of_host_data_are_known_by_it() -> None:
    """Wherever they were made."""
    one, same, other = Array(), Array(), Array()
    for array, content, line in ((one, 5, 1), (same, 5, 2), (other, 6, 1)):
        mark_copies(array, content, Maker("host data", 2, line))
    assert combine([one]) == combine([same]) != combine([other])
    assert find_makers([one, other]) == [Maker("host data", 2, 1)]


def test_outputs_are_known_by_launch_and_place() -> None:
    """The n-th launch of one set of ranks in a cell."""
    launches = [((0, 1), 1, STEP), ((0, 1), 2, STEP), ((0, 2), 1, STEP), ((0, 1), 1, HALF)]
    births = [bear_together(*launch, agreed=True) for launch in launches]
    arrays = [array for birth in births for array in outputs(birth, 3)]
    assert len({combine([array]) for array in arrays}) == 12
    assert combine(arrays[:2]) != combine(arrays[1::-1])
    assert combine(outputs(births[0])) == combine(outputs(bear_together(*launches[0], agreed=True)))


def test_what_a_rank_made_alone_is_known_by_its_program_and_all_that_went_into_it() -> None:
    """Also by a number."""
    (mine,) = outputs(bear_together((0, 1), 1, STEP, agreed=True))
    two, three = Array(), Array()
    mark_copies(two, 2, None)
    mark_copies(three, 3, None)
    ways = [(7, [mine, two]), (7, [mine, three]), (7, [Array(), two]), (8, [mine, two]), (7, [mine]), (7, [])]
    origins = [combine(outputs(bear_alone(program, inputs, HALF))) for program, inputs in ways]
    assert len(set(origins)) == len(ways)
    assert all(0 < origin < 2**63 for origin in origins)


def test_makers_are_told_once_and_the_latest_first() -> None:
    """Of many parameters of one step it is one."""
    arrays = [*outputs(bear_together((0, 1), 1, STEP, agreed=True), 3), *outputs(bear_alone(7, [], HALF)), Array()]
    assert find_makers(arrays) == [HALF, STEP]


@pytest.mark.parametrize("seed", ["0", "77"])
def test_another_process_gives_the_same(seed: str) -> None:
    """Python's hashes of text would not: the ranks of one cluster could still be given another seed."""
    code = (
        "from mhnb.rank.guard.origins import *\n"
        "class A: pass\n"
        "a, b = A(), A()\n"
        "mark([a], bear_together((0, 1), 1, Maker('jit(step)', 3, 2), agreed=True))\n"
        "mark([b], bear_alone(2**63 + 5, [a], Maker('jit(half)', 4, None)))\n"
        "print(combine([a, b]))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
    ).stdout
    a = outputs(bear_together((0, 1), 1, STEP, agreed=True))
    assert int(told) == combine([*a, *outputs(bear_alone(2**63 + 5, a, HALF))])
