"""The guard's rules: which launch records agree, the message if they differ, and the resulting cluster state."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mhnb.core.guard.launch_report import LaunchRow
from mhnb.core.guard.launches import (
    LOCAL_PREFIX,
    LaunchDifference,
    LaunchGroup,
    compare_launches,
    format_difference,
    has_collectives,
    judge_state,
)
from mhnb.types import Outcome

ALL = [0, 1, 2, 3]


def row(fingerprint: str, participants: list[int], line: int | None = 1, count: int = 1) -> LaunchRow:
    """A row whose program is named after its fingerprint."""
    return LaunchRow(fingerprint, f"jit({fingerprint})", tuple(participants), line, count)


def expand_launches(rows: list[LaunchRow]) -> list[tuple[str, tuple[int, ...]]]:
    """Every launch of the rows, one by one."""
    return [(r.fingerprint, r.participants) for r in rows for _ in range(r.count)]


def find_difference_naively(rows_by_rank: dict[int, list[LaunchRow]]) -> int | None:
    """The oracle: expand everything, compare every two ranks, and return the least index of a difference."""
    ranks = set(rows_by_rank) | {rank for rows in rows_by_rank.values() for r in rows for rank in r.participants}
    launches = {rank: expand_launches(rows_by_rank.get(rank, [])) for rank in ranks}
    found = []
    for a, b in itertools.combinations(sorted(ranks), 2):
        mine, theirs = (
            [launch for launch in launches[rank] if {a, b} <= set(launch[1]) and has_collectives(launch[0])]
            for rank in (a, b)
        )
        found += [i for i, (one, two) in enumerate(itertools.zip_longest(mine, theirs)) if one != two][:1]
    return min(found, default=None)


programs = st.sampled_from(["a", "b", "free:c"])
groups = st.sampled_from([[0, 1], [1, 2], [0, 2], [0, 1, 2], [0, 1, 2, 3]])
launches = st.builds(row, programs, groups, st.sampled_from([1, 2, None]), st.integers(1, 3))


@st.composite
def nearly_equal(draw: st.DrawFn) -> dict[int, list[LaunchRow]]:
    """Records of ranks that ran the same program, some with one change, because that case matters most."""
    common = draw(st.lists(launches, max_size=8))
    rows = {rank: [replace(r) for r in common if rank in r.participants] for rank in range(4)}
    for rank in draw(st.sets(st.integers(0, 3), max_size=2)):
        at = draw(st.integers(0, len(rows[rank])))
        rows[rank][at : at + draw(st.integers(0, 1))] = draw(st.lists(launches, max_size=1))
    return rows


@given(st.one_of(nearly_equal(), st.dictionaries(st.integers(0, 3), st.lists(launches, max_size=5))))
def test_comparison_agrees_with_the_oracle(rows_by_rank: dict[int, list[LaunchRow]]) -> None:
    """A difference is found exactly where expanding every launch of every two ranks finds one, and at that index."""
    difference = compare_launches(rows_by_rank)
    assert (None if difference is None else difference.index) == find_difference_naively(rows_by_rank)


@given(nearly_equal(), st.permutations(range(4)))
def test_order_of_ranks_does_not_matter(rows_by_rank: dict[int, list[LaunchRow]], order: list[int]) -> None:
    """The reported difference does not depend on the order in which the ranks replied."""
    assert compare_launches({rank: rows_by_rank[rank] for rank in order}) == compare_launches(rows_by_rank)


@given(nearly_equal())
def test_groups_are_disjoint(rows_by_rank: dict[int, list[LaunchRow]]) -> None:
    """A difference has at least two groups, no rank is in two of them, and no two groups launched the same."""
    difference = compare_launches(rows_by_rank)
    if difference is not None:
        ranks = [rank for side in difference.groups for rank in side.ranks]
        assert len(difference.groups) >= 2
        assert len(ranks) == len(set(ranks))
        assert difference.groups == tuple(sorted(difference.groups, key=lambda side: side.ranks))


def test_splitting_a_run_changes_nothing() -> None:
    """Nine launches equal nine launches, however they are merged into rows and whichever lines they are on."""
    merged, split = [row("a", ALL, 1, 9)], [row("a", ALL, 1, 4), row("a", ALL, 2, 5)]
    assert compare_launches({0: merged, 1: split, 2: merged, 3: split}) is None


def test_long_loops_are_not_expanded() -> None:
    """Counts are compared as numbers: 10**15 launches are no more work than one."""
    difference = compare_launches({0: [row("a", [0, 1], 1, 10**15)], 1: [row("a", [0, 1], 1, 10**15 - 1)]})
    assert difference is not None
    assert difference.index == 10**15 - 1


def test_submeshes_may_interleave() -> None:
    """Launches on meshes that share no rank may come in any order and number: comparing their counts would be a false alarm."""
    rows = {0: [row("a", [0, 1]), row("c", ALL)], 1: [row("a", [0, 1]), row("c", ALL)]}
    rows |= {2: [row("b", [2, 3], 1, 5), row("c", ALL)], 3: [row("b", [2, 3], 2, 5), row("c", ALL)]}
    assert compare_launches(rows) is None


def test_programs_without_collectives_may_differ() -> None:
    """A program that never communicates may differ between ranks without an alarm."""
    assert compare_launches({0: [row(LOCAL_PREFIX + "a", [0, 1])], 1: [row(LOCAL_PREFIX + "b", [0, 1])]}) is None


def test_rank_outside_cell_counts_as_missing() -> None:
    """A launch that needs a rank outside the cell differs, because that rank launched nothing."""
    difference = compare_launches({0: [row("a", [0, 1, 2])], 1: [row("a", [0, 1, 2])]})
    assert difference is not None
    assert difference.groups == (LaunchGroup((0, 1), "a", "jit(a)", 1), LaunchGroup((2,), None, None, None))


def test_every_rank_is_in_a_group() -> None:
    """Ranks are grouped by what they launched at the first difference; each different launch, or none, is a group of its own."""
    before = [row("s", ALL, 1, 2)]
    rows = {0: [*before, row("a", ALL)], 1: [*before, row("b", ALL)], 2: [*before, row("a", ALL)], 3: before}
    difference = compare_launches(rows)
    assert difference is not None
    assert difference.index == 2
    assert [side.ranks for side in difference.groups] == [(0, 2), (1,), (3,)]


def test_difference_as_text() -> None:
    """The message names each group's program, line and code, in columns."""
    groups_that_differ = (
        LaunchGroup((0, 2), "a1", "jit(add) f32[8] → f32[]", 2),
        LaunchGroup((1, 3), "b2", "jit(top) f32[8] → f32[]", 2),
    )
    assert format_difference(
        LaunchDifference(2, groups_that_differ), "cell 14", "order = {1, 2}\n  got = [f(x) for f in order]"
    ) == (
        "launch 3 of cell 14 differs\n"
        "  ranks 0,2   jit(add) f32[8] → f32[]   line 2:  got = [f(x) for f in order]\n"
        "  ranks 1,3   jit(top) f32[8] → f32[]   line 2:  got = [f(x) for f in order]"
    )


def test_missing_launch_as_text() -> None:
    """A group that ended the cell says so, and the length of that text does not widen the columns."""
    groups_that_differ = (LaunchGroup((0,), "a1", "jit(add)", None), LaunchGroup((1, 2, 3), None, None, None))
    assert format_difference(LaunchDifference(0, groups_that_differ)) == (
        "launch 1 differs\n  rank 0      jit(add)\n  ranks 1-3   finished the cell without reaching it"
    )


def test_equal_names_show_fingerprints() -> None:
    """Two programs with the same name are shown with the beginning of their fingerprints."""
    groups_that_differ = (LaunchGroup((0,), "a1b2c3d4", "jit(f)", 1), LaunchGroup((1,), "e5f6a7b8", "jit(f)", 1))
    text = format_difference(LaunchDifference(0, groups_that_differ))
    assert "jit(f) (program a1b2c3)" in text
    assert "jit(f) (program e5f6a7)" in text


SAME: dict[int, list[LaunchRow]] = {0: [row("a", [0, 1])], 1: [row("a", [0, 1])]}
OTHER: dict[int, list[LaunchRow]] = {0: [row("a", [0, 1])], 1: []}


@pytest.mark.parametrize(
    ("outcomes", "rows", "abandoned", "lost", "state"),
    [
        ({0: "ok", 1: "ok"}, SAME, {}, (), "clean"),
        ({0: "ok", 1: "error"}, SAME, {}, (), "clean"),
        ({0: "interrupted", 1: "interrupted"}, SAME, {}, (), "clean"),
        ({0: "error", 1: "error"}, None, {}, (), "clean"),
        ({0: "ok", 1: "skipped"}, None, {}, (), "clean"),
        ({0: "ok", 1: "error"}, None, {}, (), "split"),
        ({0: "ok", 1: "refused"}, None, {}, (), "tainted"),
        ({0: "ok", 1: "error"}, OTHER, {}, (), "tainted"),
        ({0: "ok", 1: "ok"}, OTHER, {}, (), "tainted"),
        ({0: "interrupted", 1: "interrupted"}, SAME, {0: "a collective"}, (), "tainted"),
        ({0: "ok", 1: "error"}, None, {0: "a collective"}, (), "tainted"),
        ({0: "ok", 1: "ok"}, SAME, {}, (3,), "dead"),
        ({0: "killed", 1: "error"}, OTHER, {0: "a collective"}, (), "dead"),
        ({0: "died", 1: "ok"}, None, {}, (), "dead"),
    ],
)
def test_state_follows_the_first_matching_rule(
    outcomes: dict[int, Outcome],
    rows: dict[int, list[LaunchRow]] | None,
    abandoned: dict[int, str],
    lost: tuple[int, ...],
    state: str,
) -> None:
    """The state is the first of dead, tainted, split and clean whose rule matches."""
    assert judge_state(outcomes, rows, abandoned, lost)[0] == state


def test_clean_cell_has_no_notes() -> None:
    """A cell without differences has no notes."""
    assert judge_state({0: "ok", 1: "ok"}, SAME, {}, ()) == ("clean", ())


def test_note_if_some_ranks_raised() -> None:
    """If only some ranks raised, the cluster is clean and the note says what to expect; the failure itself names the ranks."""
    _, (note,) = judge_state({0: "ok", 1: "ok", 2: "error", 3: "ok"}, {}, {}, ())
    assert note == "the ranks are still in sync, but variables set in this cell may differ"


def test_note_names_the_recovery_command() -> None:
    """Every state that refuses the next cell names the command to type."""
    for rows, abandoned, lost in ((None, {}, ()), (OTHER, {0: "a collective"}, ()), (SAME, {}, (1,))):
        _, notes = judge_state({0: "ok", 1: "error"}, rows, abandoned, lost)
        assert "%mhjax restart" in notes[-1]


def test_taint_notes_name_both_reasons() -> None:
    """The notes name both the abandoned collectives and the first launch that differs, with its line."""
    _, notes = judge_state(
        {0: "interrupted", 1: "interrupted"}, OTHER, {0: "a collective"}, (), cell_name="cell 7", source="f(x)"
    )
    assert notes[0] == "rank 0 abandoned a collective before it completed"
    assert notes[1].splitlines()[1] == "  rank 0   jit(a)   line 1:  f(x)"
    assert notes[1].startswith("launch 1 of cell 7 differs")


def test_abandoned_launches_are_named_once() -> None:
    """The notes name the launch that each rank abandoned, because the live hang report has disappeared by then."""
    outcomes = dict.fromkeys(range(4), "interrupted")
    abandoned = {0: "jit(f) (line 2)", 1: "jit(g)", 2: "jit(f) (line 2)", 3: "a collective"}
    _, notes = judge_state(outcomes, {}, abandoned, ())  # type: ignore[arg-type]
    assert notes[:3] == (
        "ranks 0,2 abandoned jit(f) (line 2) before it completed",
        "rank 1 abandoned jit(g) before it completed",
        "rank 3 abandoned a collective before it completed",
    )


def test_refused_cell_taints_cluster() -> None:
    """The rank will refuse every later cell too, so only new processes help."""
    state, notes = judge_state({0: "ok", 1: "refused"}, {0: [], 1: []}, {}, ())
    assert state == "tainted"
    assert notes[0] == "rank 1 refused the cell: another cell number was expected, so no further cell is accepted"
    assert "restart" in notes[-1]


def test_interrupt_without_record_taints_cluster() -> None:
    """A rank that was interrupted without a launch record may have abandoned a collective, even if all ranks ended the same way."""
    state, notes = judge_state({0: "interrupted", 1: "interrupted"}, None, {0: None, 1: None}, ())
    assert (state, notes[0]) == (
        "tainted",
        "ranks 0-1 were interrupted, and no launch record shows whether a collective is still waiting there",
    )
    assert judge_state({0: "ok", 1: "ok"}, None, {0: None}, ())[0] == "tainted"
    assert judge_state({0: "interrupted", 1: "interrupted"}, {0: [], 1: []}, {}, ())[0] == "clean"
    assert judge_state({0: "killed", 1: "ok"}, None, {0: None}, ())[0] == "dead"
