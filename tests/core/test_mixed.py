"""Programs without a collective that set the ranks apart: what is said of them, and what is no difference."""

from __future__ import annotations

import pytest

from mhnb.core.guard.mixed import apart_notes, mixed_notes
from mhnb.core.guard.rules import FREE_PREFIX
from mhnb.core.wire.protocol import LaunchRow
from tests.core.test_guard import ALL, row

A, B = FREE_PREFIX + "a", FREE_PREFIX + "b"
MIXED = "the ranks ran different programs on arrays that they share"


def _two(mine: list[LaunchRow], theirs: list[LaunchRow]) -> tuple[str, ...]:
    return mixed_notes({0: mine, 1: theirs})


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([row(A, [0, 1], 3)], [row(B, [0, 1], 3)]),
        ([row(A, [0, 1], 3, 24)], [row(A, [0, 1], 3, 25)]),
        ([row(A, [0, 1], 3)], [row(B, [0, 1], 5)]),
        ([row(A, [0, 1], 3, 0)], [row(B, [0, 1], 3, 0)]),
        ([row("c", [0, 1]), row(A, [0, 1], 3)], [row("c", [0, 1]), row(A, [0, 1], 2), row(B, [0, 1], 3)]),
    ],
    ids=["one line", "a loop left early", "two branches", "kept by nobody", "beside others"],
)
def test_what_all_launched_otherwise_is_told(mine: list[LaunchRow], theirs: list[LaunchRow]) -> None:
    """At one line, in the branches of a condition, in a loop that one rank has left a step early."""
    (said,) = _two(mine, theirs)
    assert said.startswith(f"{MIXED}\n  rank 0 ")
    assert "Let every rank run the same program" in said


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([row(A, [0, 1])], []),
        ([row(A, [0, 1], 1), row(A, [0, 1], 2)], [row(A, [0, 1], 1)]),
        ([row(A, [0, 1], 1), row(B, [0, 1], 1)], [row(B, [0, 1], 1), row(A, [0, 1], 1)]),
        ([row(A, [0, 1], 2)], [row(A, [0, 1], 4)]),
        ([row("a", [0, 1])], [row("b", [0, 1])]),
        ([row(A, [0, 2])], [row(B, [1, 3])]),
        ([row(A, [0, 1], None, 3)], [row(A, [0, 1], None, 2), row(B, [0, 1], None)]),
        ([row(A, [0, 1], 1, 3)], [row(A, [0, 1], 1, 0)]),
    ],
    ids=[
        "on one rank alone",
        "once more on one rank",
        "another order",
        "the same in two branches",
        "agreed on",
        "apart",
        "of a thread that is ahead",
        "kept on one rank",
    ],
)
def test_no_difference(mine: list[LaunchRow], theirs: list[LaunchRow]) -> None:
    """What one rank alone did, the order, and what the guard agrees on before the launch are none of this."""
    assert _two(mine, theirs) == ()


def test_each_side_is_named_once() -> None:
    """Ranks that did the same share a line, with the program that sets them apart and the cell's own text."""
    rows = {rank: [row(A, ALL, 1), row(B if rank == 2 else FREE_PREFIX + "c", ALL, 2)] for rank in ALL}
    (said,) = mixed_notes(rows, "y = f(x)\nz = g(y)")
    assert said.splitlines()[1:3] == [
        "  ranks 0-1,3   jit(free:c)   line 2:  z = g(y)",
        "  rank 2        jit(free:b)   line 2:  z = g(y)",
    ]


def test_a_rank_that_did_not_run_the_cell_is_not_missed() -> None:
    """Of a cell on some ranks only those are compared."""
    assert mixed_notes({0: [row(A, ALL)], 1: [row(A, ALL)]}) == ()
    assert len(mixed_notes({0: [row(A, ALL)], 1: [row(B, ALL)]})) == 1


def test_an_interrupt_between_programs_without_collectives_is_told() -> None:
    """Nobody agrees on them: one rank may be steps ahead of another, in arrays of all."""
    free = FREE_PREFIX + "a"
    rows = {0: [row("b", [0, 1]), row(free, [0, 1], 1, 23), row(free, [0, 1], 2)], 1: [row("b", [0, 1])]}
    said = (
        f"the ranks were interrupted at different places: jit({free}) without a collective was launched 0 to 24 times"
        " · arrays that this cell sets may mix steps"
    )
    assert apart_notes(rows) == (said,)
    assert apart_notes({0: rows[0], 1: rows[0]}) == ()
