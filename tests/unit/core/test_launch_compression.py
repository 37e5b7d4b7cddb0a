"""The compressed launch record: nothing is lost, and loops stay small."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from mhnb.core.codec import compress_launches, decompress_launches
from mhnb.core.guard.launches import compare_launches

A, B, C = (["a", "jit(f)", [0, 1], 1], ["b", "jit(g)", [0, 1], 2], ["a", "jit(f)", [0, 2], None])


def rows(*programs: list[Any], counts: int = 1) -> list[Any]:
    """Return one row per program."""
    return [[*program, 1 + place % counts] for place, program in enumerate(programs)]


@pytest.mark.parametrize(
    "record",
    [[], rows(A), rows(*[A, B] * 500), rows(C, *[A, B] * 500, C, *[A, A, B] * 300, B), rows(*[A, B] * 50, counts=3)],
    ids=["nothing", "one", "two in turn", "loops after each other", "counts in turn"],
)
def test_what_was_launched_comes_back(record: list[Any]) -> None:
    """Every row is restored, also through JSON."""
    assert decompress_launches(json.loads(json.dumps(compress_launches(record)))) == record


def test_any_order_comes_back() -> None:
    """Rows without a pattern are written unchanged."""
    chance = random.Random(7)  # noqa: S311
    for length in (33, 100, 3000):
        record = rows(*(chance.choice((A, B, C)) for _ in range(length)), counts=chance.randint(1, 4))
        assert decompress_launches(compress_launches(record)) == record


def test_a_loop_of_two_programs_takes_no_more_room_the_longer_it_is() -> None:
    """This holds while all iterations are the same, also if every tenth step has an additional program."""
    for turn in ([A, B], [A, B] * 9 + [A, B, C]):
        short, long = (len(json.dumps(compress_launches(rows(*turn * times)))) for times in (50, 5000))
        assert long <= short + 4
    assert compress_launches(rows(A, B)) == rows(A, B)


def test_a_loop_that_is_left_one_step_early_is_still_seen() -> None:
    """The comparison does not depend on how the rows were sent."""
    mine, theirs = ([*rows(*[A, B] * times)] for times in (5000, 4999))
    difference = compare_launches(
        {0: decompress_launches(compress_launches(mine)), 1: decompress_launches(compress_launches(theirs))}
    )
    assert difference is not None
    assert difference.index == 9998
