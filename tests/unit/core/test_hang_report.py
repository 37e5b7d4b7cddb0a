"""The hang report: which ranks wait and which are missing, derived from the ranks' samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mhnb.core.codec import decode, encode
from mhnb.core.hang_report import HangReport, RankSnapshot, build_hang_report
from mhnb.core.messages import RankStatus
from mhnb.core.output.outputs import OutputAccumulator
from mhnb.core.state.cell import RankCell

ALL = [0, 1, 2, 3]
SOURCE = "loss = step(params, batch)\nbatch = next(batches)"
STEP = ["f1", "jit(step)", ALL, 1, 7]


def status(rank: int, activity: str, what: str = "", **parts: Any) -> RankStatus:
    """Return a rank's sample: on line 1, for 3 s, without a launch."""
    return replace(RankStatus(rank, 5, activity, what, line=1, user_frame="", unchanged_s=3.0, counts=[]), **parts)


def launching(rank: int, number: int, of: list[int] | None = None, **parts: Any) -> RankStatus:
    """Return the sample of a rank that waits in its n-th launch."""
    group = of or ALL
    found = {"counts": [[group, number]], "participants": group, "launch_number": number}
    return status(rank, "launch", "jit(step)", **(found | parts))


def twice(one: RankStatus, **parts: Any) -> RankSnapshot:
    """Return the snapshot of a rank whose two samples are equal."""
    return RankSnapshot(one.rank, latest=one, before=one, **parts)


def ended(rank: int, *rows: list[Any]) -> RankSnapshot:
    """Return the snapshot of a rank that has ended the cell."""
    return RankSnapshot(rank, "ok", launches=rows)


def card(*seen: RankSnapshot, age_s: float = 5.0) -> HangReport:
    """Build the report of a cell that runs for 5 s, by default."""
    return build_hang_report(5, SOURCE, seen, age_s=age_s)


def who(made: HangReport) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the waiting and the missing ranks."""
    return made.waiting, made.absent


def test_who_has_not_come_to_the_launch_is_absent() -> None:
    """Three ranks wait in a launch of all four; the fourth one sleeps and is missing, and each rank has its line."""
    sleeping = twice(status(2, "sleep", "sleep", line=2, user_frame="data.py:31 read_shard", counts=[[ALL, 6]]))
    made = card(*(twice(launching(rank, 7)) for rank in (0, 1)), sleeping, twice(launching(3, 7)))
    assert who(made) == ((0, 1, 3), (2,))
    assert (made.launch, made.lines, made.age_s) == ("jit(step)", {0: 1, 1: 1, 2: 2, 3: 1}, 3.0)
    assert (made.known, made.progress, made.stuck) == (True, False, True)
    assert [(place.ranks, place.code) for place in made.places] == [
        ((0, 1, 3), "loss = step(params, batch)"), ((2,), "batch = next(batches)"),
    ]  # fmt: skip


def test_counting_tells_equal_stacks_apart() -> None:
    """A rank with the same stack that is one launch behind is missing, and the report names the launch of each rank."""
    made = card(*(twice(launching(rank, 7)) for rank in (0, 1, 2)), twice(launching(3, 6)))
    assert who(made) == ((0, 1, 2), (3,))
    assert [(place.ranks, place.number) for place in made.places] == [((0, 1, 2), 7), ((3,), 6)]


def test_a_rank_that_has_launched_and_gone_on_is_not_absent() -> None:
    """Dispatch does not block: a rank that sleeps after its launch has reached that launch."""
    gone_on = twice(status(1, "sleep", "sleep", line=2, counts=[[ALL, 7]], participants=ALL, launch_number=7))
    made = card(twice(launching(0, 7)), gone_on, twice(launching(2, 7)), twice(status(3, "computing")))
    assert who(made) == ((0, 2), (3,))


def test_who_ended_the_cell_is_judged_by_its_record() -> None:
    """A rank that ended the cell without the launch is missing; one that ended it after the launch is not."""
    made = card(twice(launching(0, 7)), ended(1, STEP), ended(2), twice(launching(3, 7)))
    assert who(made) == ((0, 3), (2,))
    assert made.lines[2] is None


def test_a_program_that_does_not_communicate_is_not_counted() -> None:
    """A rank may skip such programs without harm, so they do not count as reaching a launch."""
    made = card(
        twice(launching(0, 1)), ended(1, ["free:1", "jit(fill)", ALL, 1, 9]), *(twice(launching(r, 1)) for r in (2, 3))
    )
    assert who(made) == ((0, 2, 3), (1,))


def test_only_participants_are_missed() -> None:
    """Ranks outside a sub-mesh may do anything."""
    others = [twice(status(rank, "computing")) for rank in (2, 3)]
    assert who(card(twice(launching(0, 1, [0, 1])), twice(status(1, "sleep", "sleep")), *others)) == ((0,), (1,))


def test_a_rank_that_was_not_asked_is_absent() -> None:
    """A `--ranks` cell whose launch needs other ranks waits for them."""
    seen = [twice(launching(0, 1)), twice(launching(1, 1)), RankSnapshot(2, "skipped"), RankSnapshot(3, "skipped")]
    assert who(card(*seen)) == ((0, 1), (2, 3))


def test_all_have_come() -> None:
    """If every rank has reached the launch and none makes progress, all of them wait and none is missing."""
    assert who(card(*(twice(launching(rank, 7)) for rank in ALL))) == ((0, 1, 2, 3), ())


def test_ranks_that_move_wait_for_nobody() -> None:
    """In a loop of launches two ranks are sampled at different moments, so their counts prove nothing."""
    seen = [RankSnapshot(rank, latest=launching(rank, 900 - rank), before=launching(rank, 500)) for rank in ALL]
    made = card(*seen)
    assert who(made) == ((), ())
    assert (made.progress, made.stuck, made.moved) == (True, False, (0, 1, 2, 3))


def test_what_is_said_between_two_looks_is_progress() -> None:
    """A loop that prints may be on the same line in every sample; a rank that waits for others waits, even if a thread prints."""
    asleep = [twice(status(rank, "blocked", "sleep"), has_output=True) for rank in ALL]
    made = card(*asleep)
    assert (made.progress, made.moved, made.stuck) == (True, tuple(ALL), False)
    made = card(twice(launching(0, 1), has_output=True), *asleep[1:])
    assert (who(made), made.moved, made.stuck) == (((0,), (1, 2, 3)), (1, 2, 3), True)
    assert card(*(twice(status(rank, "blocked", "sleep")) for rank in ALL)).stuck


def test_output_counts_from_the_look_before_the_latest() -> None:
    """Earlier output does not show where the rank is now."""
    part, told = RankCell(OutputAccumulator()), []
    for now in (1.0, 2.0, 3.0):
        part.record_sample(status(0, "blocked"), now)
        told.append(part.has_new_output)
        part.add_output([["stdout", "step\n"]] if now == 1.0 else [])
        told.append(part.has_new_output)
    assert told == [False, True, True, True, False, False]


def test_waiting_ranks_show_though_the_absent_one_moves() -> None:
    """A rank that slowly works through its shards does not hide that the others wait for it."""
    busy = RankSnapshot(3, latest=status(3, "computing", line=2), before=status(3, "computing", line=1))
    made = card(*(twice(launching(rank, 7)) for rank in (0, 1, 2)), busy)
    assert who(made) == ((0, 1, 2), (3,))
    assert (made.progress, made.stuck) == (True, True)


def test_a_barrier_has_no_launch_to_count() -> None:
    """At a barrier every rank that is elsewhere is missing, whatever it does."""
    seen = [twice(status(rank, "barrier", "wait_at_barrier")) for rank in (0, 1)]
    assert who(card(*seen, twice(status(2, "compiling")), ended(3))) == ((0, 1), (2, 3))


def test_an_agreement_is_a_wait_for_ranks() -> None:
    """In lockstep ranks wait before the launch."""
    seen = [twice(status(rank, "agreement", "jit(step)")) for rank in (0, 1, 2)]
    assert who(card(*seen, twice(status(3, "compiling")))) == ((0, 1, 2), (3,))


def test_a_lock_waits_where_nobody_waits_in_a_launch() -> None:
    """Ranks in a lock wait and the others are missing; but if ranks wait in a launch, the rank in the lock is missing."""
    locks = [twice(status(rank, "lock", "acquire")) for rank in (0, 1)]
    assert who(card(*locks, twice(status(2, "sleep", "sleep")), ended(3))) == ((0, 1), (2, 3))
    assert who(card(locks[0], *(twice(launching(rank, 1)) for rank in (1, 2, 3)))) == ((1, 2, 3), (0,))


def test_work_is_no_wait() -> None:
    """Ranks that compile or compute do not wait for others, and no rank is missing."""
    made = card(*(twice(status(rank, "compiling" if rank else "computing")) for rank in ALL))
    assert who(made) == ((), ())
    assert (made.launch, made.age_s) == (None, 5.0)


def test_a_rank_that_reports_nothing_is_not_blamed() -> None:
    """Neither before its first sample nor later is the rank missing: the report shows it as silent."""
    seen = [*(twice(launching(rank, 1)) for rank in (0, 1, 2)), RankSnapshot(3)]
    early, late = card(*seen, age_s=2.5), card(*seen, age_s=4.5)
    assert (early.absent, early.known, early.stuck) == ((), False, False)
    assert (late.absent, late.known, late.stuck) == ((), True, True)
    assert late.places[1].activity == "silent"


def test_who_waits_for_its_own_thread_in_a_launch_waits_for_ranks() -> None:
    """The rank whose thread has not reached the launch is missing; equal threads of one rank are counted."""
    in_launch = ["worker", "launch", "jit(step)", 1, ""]
    joins = {"counts": [[ALL, 7]], "participants": ALL, "launch_number": 7, "threads": [in_launch, in_launch]}
    lags = {"counts": [[ALL, 6]], "threads": [["worker", "sleep", "sleep", 2, ""]]}
    made = card(
        *(twice(status(rank, "lock", "join", line=2, **joins)) for rank in (0, 1, 2)),
        twice(status(3, "lock", "join", line=2, **lags)),
    )
    assert (who(made), made.launch) == (((0, 1, 2), (3,)), "jit(step)")
    assert [(one.name, one.count, one.code) for one in made.places[0].threads] == [
        ("worker", 2, "loss = step(params, batch)")
    ]


def test_a_rank_whose_looks_fail_is_not_blamed() -> None:
    """The rank counts as missing neither in a launch nor in a lock, and two failed samples are not progress."""
    unseen = twice(status(3, "unseen", line=None))
    in_launch = card(*(twice(launching(rank, 1)) for rank in (0, 1, 2)), unseen)
    in_lock = card(*(twice(status(rank, "lock", "acquire")) for rank in (0, 1, 2)), unseen)
    first = RankSnapshot(3, latest=status(3, "sleep"), before=status(3, "unseen", line=None))
    assert who(in_launch) == who(in_lock) == ((0, 1, 2), ())
    assert card(*(twice(launching(rank, 1)) for rank in (0, 1, 2)), first).moved == ()


def test_a_rank_that_fell_silent_is_told() -> None:
    """Its last sample does not count as its current position."""
    quiet = twice(status(3, "computing"), sample_age_s=6.0)
    made = card(*(twice(launching(rank, 1)) for rank in (0, 1, 2)), quiet)
    assert [(place.ranks, place.activity) for place in made.places] == [((0, 1, 2), "launch"), ((3,), "silent")]


def test_what_was_said_before_it_fell_silent_is_no_progress() -> None:
    """A cell that prints, and then holds the interpreter in one long call, gets the report like a cell without output."""
    before, latest = status(0, "computing"), status(0, "computing", line=2)
    for quiet in (
        twice(latest, has_output=True, sample_age_s=60.0),
        RankSnapshot(0, latest=latest, before=before, sample_age_s=60.0),
    ):
        made = card(quiet, replace(quiet, rank=1), age_s=62.0)
        assert (made.moved, made.stuck) == ((), True)


def test_one_look_is_not_enough() -> None:
    """With one sample nothing is known of progress, so the report is not shown automatically."""
    once = [RankSnapshot(rank, latest=launching(rank, 1)) for rank in (0, 1, 2)]
    made = card(*once, RankSnapshot(3, latest=status(3, "sleep", "sleep")))
    assert who(made) == ((0, 1, 2), (3,))
    assert (made.known, made.stuck) == (False, False)


def test_the_wait_is_as_old_as_its_first_rank() -> None:
    """The age counts from the first rank that waited until now."""
    first = replace(launching(0, 1), unchanged_s=9.0)
    made = card(
        twice(first, sample_age_s=0.5), *(twice(launching(rank, 1)) for rank in (1, 2)), twice(status(3, "sleep"))
    )
    assert made.age_s == 9.5


def test_the_code_is_found_below_empty_lines() -> None:
    """IPython removes a cell's leading empty lines, and counts from there."""
    made = build_hang_report(5, "\n\n" + SOURCE, [twice(launching(0, 1))], age_s=5.0)
    assert made.places[0].code == "loss = step(params, batch)"


def test_a_status_survives_the_link() -> None:
    """A rank's sample is read as it was written."""
    told = launching(2, 7, user_frame="data.py:31 read")
    assert decode(encode(told)) == told
