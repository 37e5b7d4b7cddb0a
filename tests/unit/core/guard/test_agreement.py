"""Decisions on the votes of all participants, and mismatch messages, which are the same on every rank and name every group."""

from __future__ import annotations

import pytest

from mhnb.core.guard.agreement import Vote, decide, format_mismatch, label_provenance
from mhnb.core.guard.provenance import ANY

NAMES = {1: "jit(add) f32[8] → f32[]", 3: "jit(top) f32[8] → f32[]"}


@pytest.mark.parametrize(
    ("stands", "verdict"),
    [
        ([Vote(0, 1), Vote(1, 1), Vote(2, 1)], "launch"),
        ([Vote(0, 1), Vote(1, 3), Vote(2, 1)], "mismatch"),
        ([Vote(0, 1), Vote(1, ending="error")], "mismatch"),
        # A rank that was asked to stop before its vote stops all ranks, even if the programs differ.
        ([Vote(0, 1), Vote(1, 3, is_stopped=True)], "interrupt"),
        ([Vote(0, 1), Vote(1, 1, in_interrupt_handler=True)], "interrupt"),
        ([Vote(0, 1, in_interrupt_handler=True), Vote(1, 1, in_interrupt_handler=True)], "launch"),
        ([Vote(0, 1, in_interrupt_handler=True), Vote(1, 3, in_interrupt_handler=True)], "mismatch"),
        ([Vote(0, 1, in_interrupt_handler=True), Vote(1)], "mismatch"),
        ([Vote(0, 1, provenance=5), Vote(1, 1, provenance=5)], "launch"),
        ([Vote(0, 1, provenance=5), Vote(1, 1, provenance=6)], "mismatch"),
        ([Vote(0, 1, provenance=5), Vote(1, 1)], "mismatch"),
    ],
)
def test_decisions(stands: list[Vote], verdict: str) -> None:
    """Either all ranks launch, or none does."""
    assert decide(stands, interrupted=False) == verdict


def test_interrupted_rank_causes_no_mismatch_during_stop() -> None:
    """The user stopped the cell, so the other ranks do not report a mismatch."""
    votes = [Vote(0, 1), Vote(1, ending="interrupted")]
    assert decide(votes, interrupted=True) == "interrupt"
    assert decide(votes, interrupted=False) == "mismatch"


def test_mismatch_message_groups_ranks_and_shows_lines() -> None:
    """Ranks that propose the same program share a line, which shows their line of the cell."""
    votes = [Vote(0, 1, (2,)), Vote(1, 3, (2,)), Vote(2, 1, (2,)), Vote(3, 3, (2,))]
    text = format_mismatch(
        votes, NAMES, number=3, cell_name="cell 14", source="order = {add, top}\ngot = [f(x) for f in order]"
    )
    assert text.splitlines() == [
        "nothing was launched, the cluster is clean",
        "launch 3 of cell 14 differs",
        "  ranks 0,2   jit(add) f32[8] → f32[]   line 2:  got = [f(x) for f in order]",
        "  ranks 1,3   jit(top) f32[8] → f32[]   line 2:  got = [f(x) for f in order]",
        "  The loop on line 2 may run in a different order on some ranks.",
        "  Sort what it loops over (such as a set or os.listdir), and let nothing in it depend on the rank.",
    ]


def test_one_program_on_different_arrays_gets_letters() -> None:
    """Groups of arrays get letters only if every rank proposes the same program."""
    votes = [
        Vote(0, 1, (1,), provenance=5),
        Vote(1, 1, (1,)),
        Vote(2, 1, (1,), provenance=5),
        Vote(3, 1, (1,), provenance=9),
    ]
    text = format_mismatch(votes, NAMES, number=1, cell_name="cell 2", source="add(x)")
    assert text.splitlines()[2:5] == [
        "  ranks 0,2   jit(add) f32[8] → f32[] of arrays A   line 1:  add(x)",
        "  rank 1      jit(add) f32[8] → f32[] of arrays B   line 1:  add(x)",
        "  rank 3      jit(add) f32[8] → f32[] of arrays C   line 1:  add(x)",
    ]
    assert "the same way on every rank" in text.splitlines()[6]
    for other in (Vote(3, 3, (1,), provenance=9), Vote(3)):
        assert "arrays" not in format_mismatch(
            [*votes[:3], other], NAMES, number=1, cell_name="cell 2", source="add(x)"
        )


def test_uncompared_array_matches_every_other() -> None:
    """An array that cannot be compared yet matches every other; if only some ranks have one, all ranks propose again."""
    votes = [Vote(0, 1, provenance=5), Vote(1, 1, provenance=ANY), Vote(2, 1, provenance=5)]
    assert decide(votes, interrupted=False) == "again"
    assert decide([Vote(rank, 1, provenance=ANY) for rank in range(3)], interrupted=False) == "launch"
    assert label_provenance(votes) == {}
    assert label_provenance([*votes, Vote(3, 1)]) == {5: "A", 0: "B", ANY: "not known yet"}


def test_many_groups_have_unique_labels() -> None:
    """Labels stay unique for 60 ranks, each with a different provenance."""
    labels = label_provenance([Vote(rank, 1, provenance=rank + 1) for rank in range(60)])
    assert len(set(labels.values())) == 60
    assert [labels[n] for n in (1, 26, 27, 60)] == ["A", "Z", "A1", "H2"]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("if jax.process_index() == 0:\n    y = add(x)", "jax.process_index() == 0"),
        ("y = 0\ny = add(x) if rank else 0", "rank"),
        ("y = 0\nfor f in ([add, top] if rank else [top, add]): f(x)", None),
        ("if ready:\n    y = add(x)", None),
        ("%time y = 1\ny = add(x)", None),
    ],
)
def test_rank_dependent_condition_is_named(source: str, named: str | None) -> None:
    """The message names an `if` that depends on the rank, if the cell's own text has it around the launch."""
    text = format_mismatch([Vote(0, 1, (2,)), Vote(1)], NAMES, number=1, cell_name="cell 1", source=source)
    assert (f"inside `if {named}:`" in text) == (named is not None)
    assert ("Move the call out of the `if`" in text) == (named is not None)


def test_print_is_named_only_if_the_branch_has_one() -> None:
    """The step speaks of a print only where the `if` around the call has one."""
    votes = [Vote(0, 1, (2,)), Vote(1)]
    for branch, is_named in (("    print(add(x))", True), ("    add(x)\nprint(1)", False)):
        source = f"if rank == 0:\n{branch}"
        text = format_mismatch(votes, NAMES, number=1, cell_name="cell 1", source=source)
        assert ("put only the print inside" in text) == is_named


@pytest.mark.parametrize(
    ("source", "loop"),
    [
        ("for step in range(2 + rank):\n    y = add(x)", 1),
        ("while n < 2 + rank:\n    y = add(x)", 1),
        ("y = 0\nwhile add(x) < n: y += 1", 2),
        ("y = 0\ny = [add(x) for _ in range(rank)]", 2),
        ("for step in (1, 2):\n    for batch in batches: add(x)", 2),
        ("for step in add(x):\n    y = 0", None),
        ("for step in range(3):\n    pass; add(x)", 1),
        ("y = 0\ny = sum(add(x) for _ in range(rank))", 2),
        ("y = 0\ny = [f(x) for f in list(fs)]", 2),
        ("if not done:\n    print(add(x), [i for i in range(3)])", None),
        ("y = 0\nf([i for i in q])", None),
        ("y = 0\ny = [i for i in f(x)]", None),
        ("y = 0\nadd(x)", None),
    ],
)
def test_loop_of_unequal_length_is_named(source: str, loop: int | None) -> None:
    """The message names the innermost loop, how far the other ranks came in it, and what to do."""
    line = 1 if "in add" in source else 2
    votes = [Vote(0, 1, (line,)), Vote(1), Vote(2)]
    text = format_mismatch(votes, NAMES, number=3, cell_name="cell 1", source=source)
    assert (
        f"in the loop on line {loop}, and ranks 1-2 finished after 2 launches.\n  Run the same number" in text
    ) == bool(loop)
    first = format_mismatch(votes, NAMES, number=1, cell_name="cell 1", source=source)
    assert ("finished before the first launch." in first) == bool(loop)
    failed = [*votes, Vote(3, ending="error")]
    assert "the loop" not in format_mismatch(failed, NAMES, number=3, cell_name="cell 1", source=source)


def test_branch_in_a_loop_is_named() -> None:
    """Of a call in an `if` in a loop, the ranks may take the same number of steps."""
    source = "for step in range(3):\n    if not done:\n        add(x)"
    text = format_mismatch([Vote(0, 1, (3,)), Vote(1)], NAMES, number=2, cell_name="cell 1", source=source)
    assert text.endswith(
        "  The call is inside `if not done:` in the loop on line 1, and rank 1 finished after 1 launch.\n"
        "  Decide it by a value that all ranks share, and run the same number of steps on every rank."
    )
    around = "if not done:\n    for step in n:\n        add(x)"
    text = format_mismatch([Vote(0, 1, (3,)), Vote(1)], NAMES, number=2, cell_name="cell 1", source=around)
    assert "The call is in the loop on line 2, and" in text


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        (((2,), (2,)), "The loop on line 1 may run in a different order on some ranks."),
        (((3,), (3,)), "Call the same function with the same shapes on line 3 on every rank."),
        (((2,), (3,)), "Make the calls on lines 2 and 3 on every rank, in the same order"),
        (((4, 2), (3,)), "Make the calls on lines 3 and 4 on every rank, in the same order"),
        (((6,), (8,)), "The ranks took different branches of `if flag:` on line 5. Decide it by a value that all"),
        (((6,), (9,)), "Make the calls on lines 6 and 9 on every rank, in the same order."),
        (((10,), (10,)), "Call the same function with the same shapes on line 10 on every rank."),
        (((2,), (3,), (4,), (9,)), "Make the calls on lines 2, 3, 4 and 9 on every rank, in the same order."),
        (((2,), (3,), (4,), (9,), (10,)), "Make the calls on lines 2, 3, 4 and 2 more lines on every rank, in"),
        (((), (3,)), ""),
    ],
)
def test_other_programs_have_a_next_step(lines: tuple[tuple[int, ...], ...], hint: str) -> None:
    """The hint names the loop that the calls are in, their only line, or all of their lines."""
    votes = [Vote(rank, rank + 1, where) for rank, where in enumerate(lines)]
    names = {rank + 1: f"jit(f{rank})" for rank in range(len(lines))}
    source = "for f in fs:\n    f(x)\nf(x)\nf(y)\nif flag:\n    f(x)\nelse:\n    f(y)\nf(y)\nf([i for i in q])"
    text = format_mismatch(votes, names, number=1, cell_name="cell 1", source=source)
    assert hint in text
    without_hint = 2 + len(lines)
    assert (len(text.splitlines()) > without_hint) == bool(hint)
    same = format_mismatch(votes, dict.fromkeys(names, "jit(f)"), number=1, cell_name="cell 1", source=source)
    assert len(same.splitlines()) == without_hint


def test_reasons_of_missing_ranks_are_distinguished() -> None:
    """Ranks that raised, that are outside the cell, and that ended it without the launch get different texts."""
    votes = [Vote(0, 1, (1,)), Vote(1, ending="error"), Vote(2, ending="skipped"), Vote(3)]
    text = format_mismatch(votes, NAMES, number=1, cell_name="cell 1", source="y = add(x)")
    assert "rank 1   raised an error before reaching it" in text
    assert "rank 2   does not run this cell (--ranks)" in text
    assert "rank 3   finished the cell without reaching it" in text


def test_refusal_for_abandoned_collective_is_not_clean() -> None:
    """The message does not call the cluster clean, because it is tainted; reason and fix are said once, elsewhere."""
    text = format_mismatch([Vote(0, ending="left"), Vote(1, 7)], {7: "jit(f)"}, number=1, cell_name="cell 4", source="")
    assert text.splitlines() == [
        "nothing was launched",
        "launch 1 of cell 4 was refused",
        "  rank 0   refused it",
        "  rank 1   jit(f)",
    ]
