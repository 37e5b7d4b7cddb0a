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
def test_launch_record_round_trip(record: list[Any]) -> None:
    """Every row is restored, also through JSON."""
    assert decompress_launches(json.loads(json.dumps(compress_launches(record)))) == record


def test_random_record_round_trip() -> None:
    """Rows without a pattern are written unchanged."""
    rng = random.Random(7)  # noqa: S311
    for length in (33, 100, 3000):
        record = rows(*(rng.choice((A, B, C)) for _ in range(length)), counts=rng.randint(1, 4))
        assert decompress_launches(compress_launches(record)) == record


def test_longer_loop_is_not_larger() -> None:
    """This holds while all iterations are the same, also if every tenth step has an additional program."""
    for iteration in ([A, B], [A, B] * 9 + [A, B, C]):
        short, long = (len(json.dumps(compress_launches(rows(*iteration * times)))) for times in (50, 5000))
        assert long <= short + 4
    assert compress_launches(rows(A, B)) == rows(A, B)


def test_loop_that_ends_one_step_early_is_found() -> None:
    """The comparison does not depend on how the rows were sent."""
    longer, shorter = ([*rows(*[A, B] * times)] for times in (5000, 4999))
    difference = compare_launches(
        {0: decompress_launches(compress_launches(longer)), 1: decompress_launches(compress_launches(shorter))}
    )
    assert difference is not None
    assert difference.index == 9998
