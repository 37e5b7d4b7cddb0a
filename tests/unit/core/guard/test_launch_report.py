"""The launches of a cell in a report: nothing is lost, equal rows are sent once, and a wrong order is refused."""

from __future__ import annotations

import random

import msgspec
import pytest

from mhnb.core.codec import decode, encode
from mhnb.core.guard.launch_report import LaunchReport, LaunchRow, merge_equal_rows
from mhnb.core.guard.launches import compare_launches
from mhnb.core.messages import CellEnded

A = LaunchRow("a", "jit(f)", (0, 1), 1, 1)
B = LaunchRow("b", "jit(g)", (0, 1), 2, 1)
C = LaunchRow("a", "jit(f)", (0, 2), None, 1)


def send(rows: list[LaunchRow]) -> tuple[list[LaunchRow], int]:
    """Return the launches of a cell as they arrive, and the size of the message."""
    frames = encode(CellEnded(0, 1, "ok", [], 0.1, LaunchReport(*merge_equal_rows(rows))))
    ended = decode(frames)
    assert isinstance(ended, CellEnded)
    return ended.launches.list_launches(), len(frames[0])


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [A],
        [A, B, C],
        [A, B] * 500,
        [C, *[A, B] * 500, C, *[A, A, B] * 300, B],
        [msgspec.structs.replace(A, count=2), A],
    ],
    ids=["nothing", "one", "three", "two in turn", "loops after each other", "another count"],
)
def test_launches_arrive_in_order(rows: list[LaunchRow]) -> None:
    """Every row is restored."""
    assert send(rows)[0] == rows


def test_random_launches_arrive_in_order() -> None:
    """Rows without a pattern are restored, too."""
    rng = random.Random(7)  # noqa: S311
    for length in (33, 100, 3000):
        rows = [msgspec.structs.replace(rng.choice((A, B, C)), count=rng.randint(1, 4)) for _ in range(length)]
        assert send(rows)[0] == rows


def test_a_launch_of_a_loop_takes_a_few_bytes() -> None:
    """A loop of two programs sends each program once, and the rows that arrive are two objects."""
    rows, nbytes = send([A, B] * 5000)
    assert nbytes < 10_000 * 2 + 300
    assert len({id(row) for row in rows}) == 2


def test_loop_that_ends_one_step_early_is_found() -> None:
    """The comparison does not depend on how the rows were sent."""
    difference = compare_launches({0: send([A, B] * 5000)[0], 1: send([A, B] * 4999)[0]})
    assert difference is not None
    assert difference.index == 9998


@pytest.mark.parametrize("order", [[0, 1], [-1], [1 << 70]])
def test_order_without_its_rows_is_refused(order: list[int]) -> None:
    """A position that no row has is an error, not another row."""
    assert LaunchReport([A], [0, 0]).list_launches() == [A, A]
    with pytest.raises(ValueError, match="positions in 1 rows"):
        LaunchReport([A], order)
