"""Comparison of the provenance of a launch's arrays: which arrays differ, since which cell, and the message about it."""

from __future__ import annotations

import struct

import msgspec
import pytest
from msgspec.structs import replace

from mhnb.core.guard.launch_report import LaunchReport
from mhnb.core.guard.provenance import (
    ANY,
    SHARDED_HOST_DATA,
    UNKNOWN,
    InputRow,
    combine_values,
    describe_divergence,
    describe_provenance,
    find_conflict,
    find_divergence,
    join_uncompared_blocks,
    uncompared_blocks,
    uncompared_positions,
)
from mhnb.core.journal import CellRecord
from mhnb.core.messages import CellEnded
from mhnb.core.output.events import ErrorRaised
from mhnb.core.state.events import CellRequest, CellSubmitted
from tests.unit.core.state.test_machine import Driver, finished


def test_unknown_array_equals_only_unknown() -> None:
    """An array without provenance matches only another one, and the arrays beside it are still compared."""
    assert combine_values([UNKNOWN, 7]) == combine_values([UNKNOWN, 7])
    assert len(find_conflict([combine_values([UNKNOWN, 7]), combine_values([5, 7])])) == 2
    assert len(find_conflict([combine_values([UNKNOWN, 7]), combine_values([UNKNOWN, 8])])) == 2


@pytest.mark.parametrize("count", [2, 31, 40, 1000])
def test_uncomputed_array_hides_only_its_block(count: int) -> None:
    """When the ranks propose again without the uncompared blocks, they agree on the rest or find that it differs."""
    whole = [*range(1, count), 99]
    partial = [ANY, *whole[1:]]
    first = [combine_values(whole), combine_values(partial)]
    assert find_conflict(first) == []
    uncompared = join_uncompared_blocks(first)
    assert combine_values(whole, uncompared) == combine_values(partial, uncompared)
    other = [*whole[:-1], 98]
    assert len(find_conflict([combine_values(other, uncompared), combine_values(partial, uncompared)])) == 2
    positions = uncompared_positions(uncompared_blocks(combine_values(whole, uncompared)), count)
    assert positions[0] == 0
    assert count - 1 not in positions


def row(value: int, producer: str = "", *values: float, kind: str = "f32[2]", cell: int = 0) -> InputRow:
    """Return the row of one array of a launch, as one rank has it."""
    return InputRow(value, cell, kind, producer, struct.pack(f"<{len(values)}d", *values).hex())


EQUAL_HINT = "Make the values equal first: use the same seed, or read them on one rank and broadcast them."
LOCAL_HINT = f"{EQUAL_HINT} If each rank has its own data, use jax.make_array_from_process_local_data."
DESCRIPTIONS = {
    "numbers": (
        [row(1, "", 2.0, kind="f32[]"), row(2, "", 3.0, kind="f32[]"), row(2, "", 3.0, kind="f32[]")],
        ["array 2 of the launch, f32[], is 3.0 on ranks 1-2, 2.0 on rank 0", EQUAL_HINT],
    ),
    "arrays": (
        [row(1, "", 2.0, 1.0), row(2, "", 2.0, 5.0), row(1, "", 2.0, 1.0)],
        [
            "array 2 of the launch, f32[2], has different values on rank 1 than on ranks 0,2; for example, the values 1 and 5",
            LOCAL_HINT,
        ],
    ),
    "another launch": (
        [row(1, "jit(f) (cell 2)"), row(2, "jit(g) (cell 3)"), row(1, "jit(f) (cell 2)")],
        ["array 2 of the launch, f32[2], is from jit(f) (cell 2) on ranks 0,2, from jit(g) (cell 3) on rank 1"],
    ),
    "another order": (
        [row(n, f"{SHARDED_HOST_DATA} (cell 2, line 1)") for n in (1, 2, 1)],
        [
            (
                "array 2 of the launch, f32[2], is from sharded host data (cell 2, line 1) on ranks 0,2,"
                " from sharded host data (cell 2, line 1) (another one) on rank 1"
            ),
            "Sort file lists, sets and dicts; make each array on the same line, the same number of times on every rank.",
        ],
    ),
    "another guard": (
        [row(1, "jit(f) (cell 2)"), row(UNKNOWN), row(1, "jit(f) (cell 2)")],
        [
            (
                "array 2 of the launch, f32[2], is from jit(f) (cell 2) on ranks 0,2,"
                " of unknown history (made with --guard off or parity) on rank 1"
            ),
            "Make it in the same cell and with the same guard on every rank.",
        ],
    ),
    "not computed on one rank": ([row(1), row(ANY), row(1)], []),
}


@pytest.mark.parametrize(("rows", "expected"), DESCRIPTIONS.values(), ids=DESCRIPTIONS.keys())
def test_different_array_is_named_with_hint(rows: list[InputRow], expected: list[str]) -> None:
    """The message names the array's position in the launch and what each rank has there; equal arrays are not named."""
    same = row(5, "jit(h) (cell 1)")
    assert describe_divergence({rank: [same, each] for rank, each in enumerate(rows)}) == expected


def named(value: int, name: str, kind: str = "f32[2]", producer: str = "jit(f) f32[2] → f32[2] (cell 2)") -> InputRow:
    """Return the row of an array for which the rank knows a name."""
    return InputRow(value, 2, kind, producer, "", name)


def test_array_is_named_by_the_users_variable() -> None:
    """One name on all ranks is the subject; otherwise each rank's own is beside the number."""
    other = "jit(g) f32[2] → f32[2] (cell 3)"
    same = {0: [named(1, "w")], 1: [named(2, "w", producer=other)]}
    assert describe_divergence(same) == ["w, f32[2], is from jit(f) (cell 2) on rank 0, from jit(g) (cell 3) on rank 1"]
    chosen = describe_divergence({0: [named(1, "a")], 1: [named(2, "b")], 2: [named(2, "")]})
    assert chosen[0].startswith("array 1 of the launch (a on rank 0, b on rank 1), f32[2], is from jit(f)")


def test_arrays_that_differ_alike_share_a_line() -> None:
    """A tree of parameters is one line: its first names, and how many more."""
    origins = "from jit(f) (cell 2) on rank 0, from jit(g) (cell 3) on rank 1"
    other = "jit(g) f32[2] → f32[2] (cell 3)"

    def describe(names: list[str], kinds: list[str]) -> list[str]:
        rows = [
            [
                named(10 * n + rank + 1, name, kind, producer or "jit(f) () → f32[2] (cell 2)")
                for n, (name, kind) in enumerate(zip(names, kinds, strict=True))
            ]
            for rank, producer in enumerate(("", other))
        ]
        return describe_divergence(dict(enumerate(rows)))

    tree = [f"p[{n}]" for n in range(40)]
    assert describe(tree, ["f32[2]"] * 40) == [f"p[0], p[1], p[2] and 37 more, f32[2], are {origins}"]
    assert describe(tree[:2], ["f32[2]", "f32[]"]) == [f"p[0], p[1] are {origins}"]
    assert describe([""] * 4, ["f32[2]"] * 4) == [f"arrays 1-4 of the launch, f32[2], are {origins}"]


def test_types_are_shown_if_only_they_differ() -> None:
    """Programs of one name and line that take other types would look equal without them."""
    by_rank = {0: (1, "jit(f) f32[] → f32[] (cell 2)"), 1: (2, "jit(f) i32[] → f32[] (cell 2)")}
    assert (
        describe_provenance(by_rank)
        == "from jit(f) f32[] → f32[] (cell 2) on rank 0, from jit(f) i32[] → f32[] (cell 2) on rank 1"
    )
    calls = {0: (1, "jit(f) () → f32[] that calls g (cell 2)"), 1: (2, "jit(f) f32[] → f32[] that calls h (cell 2)")}
    assert (
        describe_provenance(calls)
        == "from jit(f) that calls g (cell 2) on rank 0, from jit(f) that calls h (cell 2) on rank 1"
    )


def test_chosen_variable_is_no_divergence() -> None:
    """Ranks that chose two variables need another cell, not a replay."""
    assert find_divergence([[named(1, "a")], [named(2, "b")]]) == 0
    assert find_divergence([[named(1, "a")], [named(2, "a")]]) == 2
    assert find_divergence([[named(1, "a")], [named(2, "")]]) == 2


def test_only_first_different_arrays_are_named() -> None:
    """If many arrays differ, the first three are named, and the hint appears once."""
    texts = describe_divergence({rank: [row(10 * n + rank, "", n, n + rank) for n in range(1, 9)] for rank in (0, 1)})
    assert [text.partition(",")[0] for text in texts[:3]] == [f"array {n} of the launch" for n in (1, 2, 3)]
    assert texts[3:] == ["5 more arrays of the launch differ", LOCAL_HINT]


@pytest.mark.parametrize(
    "bad",
    [
        [1],
        [1, 2],
        [-1, 2, "", "", ""],
        [1, 2, "", "", "zz"],
        [1, 2, "", "", "00"],
        [1, -2, "", "", ""],
        ["1", 2, "", "", ""],
    ],
    ids=str,
)
def test_malformed_row_is_refused(bad: list[object]) -> None:
    """A malformed row would appear in another rank's message."""
    good = row(1, "jit(f)", 1.0)
    assert msgspec.convert(msgspec.to_builtins(good), InputRow) == good
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, InputRow)


@pytest.mark.parametrize(
    ("taken", "cell"),
    [
        ([[[5, 2], [7, 22]], [[5, 2], [6, 2]]], 22),
        ([[[5, 9], [7, 22]], [[4, 4], [6, 2]]], 9),
        ([[[5, 22]], [[UNKNOWN, 0]]], 22),
        ([[[ANY, 22]], [[6, 2]]], 0),
        ([[[5, 0]], [[6, 0]]], 0),
        ([], 0),
    ],
    ids=["one array", "two arrays", "of host data elsewhere", "of --guard off", "nothing known", "no mismatch"],
)
def test_divergence_is_first_cell_with_different_array(taken: list[list[list[int]]], cell: int) -> None:
    """The other arrays were made before that cell on all ranks, so a replay that stops there has equal arrays on all ranks."""
    assert find_divergence([[row(value, cell=seq) for value, seq in same] for same in taken]) == cell


def test_recovery_replays_up_to_the_divergence() -> None:
    """A full replay would make the arrays differ again; before the first cell there is no state to return to."""
    driver = Driver().ready()
    for number in (1, 2, 3):
        driver.submit(number)
        ends = [CellEnded(rank, number, "ok", [], 0.1) for rank in (0, 1)]
        if number == 3:
            ends = [
                replace(end, launches=LaunchReport(refused_inputs=[row(1 + rank, "jit(f)", cell=2 + rank)]))
                for rank, end in enumerate(ends)
            ]
        notes = finished(driver(*ends)).result.notes
    expected = "To make the values equal again: %mhjax restart --replay --to 2 (stops before cell 3)"
    assert notes[1:] == (expected,)
    driver.submit(4)
    ends = [
        CellEnded(rank, 4, "ok", [], 0.1, LaunchReport(refused_inputs=[row(1 + rank, "jit(f)", cell=rank)]))
        for rank in (0, 1)
    ]
    assert not any("--replay" in note for note in finished(driver(*ends)).result.notes)


@pytest.mark.parametrize(
    ("source", "is_left"),
    [
        ("f(x * (2 if rank else 1))", False),
        ("y = f(x * (2 if rank else 1))", False),
        ("y = x * (2 if rank else 1); f(y)", True),
        ("for y in z: f(y * rank)", True),
    ],
)
def test_recovery_is_named_if_the_cell_has_assigned_a_name(source: str, is_left: bool) -> None:  # noqa: FBT001
    """An array that the refused launch alone used is gone, and so is the name that the launch would have set."""
    driver = Driver().ready()
    driver.submit(1)
    driver(*(CellEnded(rank, 1, "ok", [], 0.1) for rank in (0, 1)))
    driver.submit(2, source=source)
    raised = ErrorRaised("LaunchMismatch", "differs", ["differs"], 1, source, 0.1)
    ends = [
        CellEnded(
            rank, 2, "error", [raised], 0.1, LaunchReport(refused_inputs=[row(1 + rank, "jit(f)", cell=1 + rank)])
        )
        for rank in (0, 1)
    ]
    assert any("--to 1" in note for note in finished(driver(*ends)).result.notes) is is_left


def test_recovery_never_stops_at_a_skipped_cell() -> None:
    """A replay cannot stop at a number that an earlier replay has left out, so the note names an earlier cell."""
    driver = Driver().ready()
    driver.machine.history = [CellRecord(driver.machine.generation, seq, "x = 1") for seq in (2, 5)]
    driver(
        CellSubmitted(1, CellRequest("x = 1", replayed_seq=2)),
        *(CellEnded(rank, 2, "ok", [], 0.1) for rank in (0, 1)),
    )
    driver(CellSubmitted(2, CellRequest("x = 1", replayed_seq=5)))
    ends = [
        CellEnded(rank, 5, "ok", [], 0.1, LaunchReport(refused_inputs=[row(1 + rank, "jit(f)", cell=4 + rank)]))
        for rank in (0, 1)
    ]
    _, note = finished(driver(*ends)).result.notes
    assert "--to 2 (stops before cell 5)" in note
