"""Whether launches that nobody agreed on took arrays that belong together, and how it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mhnb.core.guard.origins import ANY, OriginRow, apart_origins, find_parting

from mhnb.core.life.events import CellRequest, CellSubmitted
from mhnb.core.wire.protocol import CellEnded, RankReady
from tests.core.test_machine import GUARD, PSUM, Driver, finished


def row(
    word: str, *, line: int | None = 2, count: int = 1, free: str = "0", last: str = "", maker: str = "jit(g)"
) -> OriginRow:
    """What the launches of one line took, over ranks 0 and 1."""
    return [[0, 1], line, count, word, free, "jit(f)", last or word, [[maker, 3, 2]]]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([row("a")], [row("a")]),
        ([row("a"), row("2", line=3)], [row("2"), row("a", line=3)]),
        ([row("a", count=2)], [row("b", count=3)]),
        ([row("0", free="7")], [row("b")]),
        ([row("a")], []),
        ([[[0, 2], *row("a")[1:]]], [[[1, 3], *row("b")[1:]]]),
    ],
    ids=["the same", "on other lines", "as often", "of --guard off on one rank", "on one rank alone", "of other ranks"],
)
def test_no_difference(mine: list[OriginRow], theirs: list[OriginRow]) -> None:
    """What the guard tells by itself, and what cannot be compared, are none of this."""
    assert apart_origins({0: mine, 1: theirs}) == ()


def test_the_first_line_that_differs_is_told() -> None:
    """With the side of each, who made its arrays, and what to do."""
    mine = [row("a", line=1), row("b", line=5), row("c", line=4)]
    theirs = [row("a", line=1), row("d", line=5), row("e", line=4, maker="jit(h)")]
    (said,) = apart_origins({0: mine, 1: theirs, 2: []}, "1\n2\n3\ny = f(x)\n5")
    assert said.splitlines()[1:] == [
        "  rank 0   jit(f) of arrays A   line 4:  y = f(x)",
        "  rank 1   jit(f) of arrays B   line 4:  y = f(x)",
        "  arrays A come from jit(g) (cell 3, line 2)",
        "  arrays B come from jit(h) (cell 3, line 2)",
        "  Let every rank take the same steps: what only one of them did, or chose by its rank, mixes their numbers",
    ]


def test_launches_beyond_the_cell_have_no_line() -> None:
    """They are told all the same."""
    (said,) = apart_origins({0: [row("a", line=None)], 1: [row("b", line=None)]})
    assert "  rank 0   jit(f) of arrays A\n  rank 1   jit(f) of arrays B\n  arrays A, B each come from jit(g)" in said


def test_makers_are_told_of_what_differs_alone() -> None:
    """The last launch of a loop may have taken the same on each rank: who made that is of no interest."""
    (said,) = apart_origins({0: [row("a", count=3, last="7")], 1: [row("b", count=3, last="7")]})
    assert "the last of these launches took the same, an earlier one did not" in said
    assert "jit(g)" not in said


@pytest.mark.parametrize(("word", "state"), [("a", "clean"), ("b", "tainted")])
def test_a_cell_whose_launches_took_other_arrays_taints(word: str, state: str) -> None:
    """It is judged at the cell's end, though all launched the same programs."""
    driver = Driver()
    driver(*(RankReady(rank, GUARD) for rank in (0, 1)))
    driver.submit(guard="parity", source="a\nb")
    said = [CellEnded(r, 1, "ok", [], [PSUM], 0, 0.1, origins=[row(w)]) for r, w in enumerate(("a", word))]
    assert finished(driver(*said)).result.state == state


@pytest.mark.parametrize(
    ("taken", "cell"),
    [
        ([[[5, 2], [7, 22]], [[5, 2], [6, 2]]], 22),
        ([[[5, 9], [7, 22]], [[4, 4], [6, 2]]], 9),
        ([[[5, 22]], [[0, 0]]], 22),
        ([[[ANY, 22]], [[6, 2]]], 0),
        ([[[5, 0]], [[6, 0]]], 0),
        ([], 0),
    ],
    ids=["one array", "two arrays", "of host data elsewhere", "of --guard off", "nothing known", "no mismatch"],
)
def test_where_arrays_parted_is_the_first_cell_that_made_one_anew(taken: list[list[list[int]]], cell: int) -> None:
    """What the others still have was made before it on all ranks: a replay that stops there has the same everywhere."""
    assert find_parting(taken) == cell


def test_the_way_out_of_other_arrays_is_a_replay_that_stops_before_they_parted() -> None:
    """One of all cells would make them apart again; of what was made in the first cell there is no state before."""
    driver = Driver().ready()
    for number in (1, 2, 3):
        driver.submit(number)
        ends = [CellEnded(rank, number, "ok", [], [], 0, 0.1) for rank in (0, 1)]
        if number == 3:
            ends = [replace(end, taken=[[rank, 2 + rank]]) for rank, end in enumerate(ends)]
        notes = finished(driver(*ends)).result.notes
    told = "What a rank changed alone differs until %mhjax restart --replay --to 2, which stops before cell 3 · clean"
    assert notes == (told,)
    driver.submit(4)
    ends = [CellEnded(rank, 4, "ok", [], [], 0, 0.1, taken=[[rank, rank]]) for rank in (0, 1)]
    assert finished(driver(*ends)).result.notes == ()


def test_a_number_that_a_replay_left_out_is_none_to_stop_at() -> None:
    """The journal of this start does not have it."""
    driver = Driver().ready()
    driver(
        CellSubmitted(1, CellRequest("x = 1", again=2)), *(CellEnded(rank, 2, "ok", [], [], 0, 0.1) for rank in (0, 1))
    )
    driver(CellSubmitted(2, CellRequest("x = 1", again=5)))
    ends = [CellEnded(rank, 5, "ok", [], [], 0, 0.1, taken=[[rank, 4 + rank]]) for rank in (0, 1)]
    (note,) = finished(driver(*ends)).result.notes
    assert "--to 2, which stops before cell 5" in note
