"""The note on mismatches that the cell's code caught."""

from __future__ import annotations

from mhnb.core.guard.launch_report import LaunchPlace
from mhnb.core.guard.launches import note_swallowed_mismatches


def test_ranks_that_caught_same_mismatch_share_note() -> None:
    """Each launch gets one note, in the order in which the first rank met them, with the line if the cell has it."""
    assert note_swallowed_mismatches(
        {2: [LaunchPlace("jit(g)", None)], 0: [LaunchPlace("jit(f)", 2), LaunchPlace("jit(g)", None)], 1: []}
    ) == [
        "rank 0 caught an OrderMismatch: jit(f), line 2, was not launched",
        "ranks 0,2 caught an OrderMismatch: jit(g) was not launched",
    ]


def test_only_first_caught_mismatches_are_named() -> None:
    """A loop over shapes has a new program refused in each iteration, so only the first launches are named."""
    notes = note_swallowed_mismatches({0: [LaunchPlace("jit(f)", line) for line in range(1, 6)]})
    assert notes[2:] == [
        "rank 0 caught an OrderMismatch: jit(f), line 3, was not launched",
        "an OrderMismatch was caught at 2 more places in the cell",
    ]
