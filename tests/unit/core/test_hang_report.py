"""The hang report: which ranks wait and which are missing, derived from the ranks' samples."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace

from mhnb.core.cell_name import number_lines
from mhnb.core.codec import decode, encode
from mhnb.core.guard.launch_report import LaunchRow
from mhnb.core.hang_report import HangReport, RankSnapshot, build_hang_report
from mhnb.core.messages import CallbackFailed, DebugPrompt, DebugResumed, LaunchCount, RankStatus, ThreadStatus
from mhnb.core.output.events import ErrorRaised, Stream
from mhnb.core.output.outputs import OutputAccumulator
from mhnb.core.state.cell import Cell, RankCell
from mhnb.core.state.cell_parts import DebuggerPart
from mhnb.core.state.events import CellRequest
from mhnb.view.print_text import print_text
from mhnb.view.reports.hang import build_hang

ALL = [0, 1, 2, 3]
SOURCE = "loss = step(params, batch)\nbatch = next(batches)"
STEP = LaunchRow("f1", "jit(step)", tuple(ALL), 1, 7)


def sample(rank: int, activity: str, what: str = "", **parts: Any) -> RankStatus:
    """Return a rank's sample: on line 1, for 3 s, without a launch."""
    return replace(RankStatus(rank, 5, activity, what, line=1, user_frame="", unchanged_s=3.0, counts=[]), **parts)


def launching(rank: int, number: int, of: list[int] | None = None, **parts: Any) -> RankStatus:
    """Return the sample of a rank that waits in its n-th launch."""
    group = of or ALL
    found = {"counts": [LaunchCount(tuple(group), number)], "participants": group, "launch_number": number}
    return sample(rank, "launch", "jit(step)", **(found | {"program": "jit(step)"} | parts))


def unchanged(one: RankStatus, **parts: Any) -> RankSnapshot:
    """Return the snapshot of a rank whose two samples are equal."""
    return RankSnapshot(one.rank, latest=one, before=one, **parts)


def ended(rank: int, *rows: LaunchRow) -> RankSnapshot:
    """Return the snapshot of a rank that has ended the cell."""
    return RankSnapshot(rank, "ok", launches=rows)


def build_report(*snapshots: RankSnapshot, age_s: float = 5.0) -> HangReport:
    """Build the report of a cell that runs for 5 s, by default."""
    return build_hang_report(5, SOURCE, snapshots, age_s=age_s)


def waiting_and_missing(report: HangReport) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the waiting and the missing ranks."""
    return report.waiting, report.absent


def test_rank_in_a_callback_is_missing() -> None:
    """Ranks wait for the rest of a program while a function that one rank's part has called runs, though all have launched it."""
    known = {"counts": [LaunchCount(tuple(ALL), 7)], "participants": ALL, "launch_number": 7}
    called = sample(3, "callback", "jit(step)", user_frame="In [3]:10 load", **known)
    report = build_report(*(unchanged(launching(rank, 7)) for rank in (0, 1, 2)), unchanged(called))
    assert waiting_and_missing(report) == ((0, 1, 2), (3,))
    assert "rank 3 in a callback of jit(step), In [3]:10 load ← line 1" in print_text(build_hang(report))


def test_rank_whose_callback_failed_is_missing_with_its_error() -> None:
    """A rank that cannot complete its part of the program does not wait for the others; what its callback raised is shown."""
    cell = Cell(1, CellRequest(SOURCE), seq=5, ranks=tuple(ALL), now=0.0)
    for rank in ALL * 2:
        cell.record_report(launching(rank, 7), 3.0)
    cell.record_report(
        CallbackFailed(3, 5, ErrorRaised("ValueError", "too large\nin a callback", []), "jit(step)"), 3.0
    )
    report = cell.build_hang_report(5.0, 4)
    assert waiting_and_missing(report) == ((0, 1, 2), (3,))
    text = print_text(build_hang(report))
    assert "rank 3 in a callback of its program, which raised ValueError: too large" in text


def test_rank_that_has_not_reached_the_launch_is_missing() -> None:
    """Three ranks wait in a launch of all four; the fourth one sleeps and is missing, and each rank has its line."""
    sleeping = unchanged(
        sample(2, "sleep", "sleep", line=2, user_frame="data.py:31 read_shard", counts=[LaunchCount(tuple(ALL), 6)])
    )
    report = build_report(*(unchanged(launching(rank, 7)) for rank in (0, 1)), sleeping, unchanged(launching(3, 7)))
    assert waiting_and_missing(report) == ((0, 1, 3), (2,))
    assert (report.launch, report.lines, report.age_s) == ("jit(step)", {0: 1, 1: 1, 2: 2, 3: 1}, 3.0)
    assert (report.known, report.progress, report.stuck) == (True, False, True)
    assert [(place.ranks, place.code) for place in report.places] == [
        ((0, 1, 3), "loss = step(params, batch)"), ((2,), "batch = next(batches)"),
    ]  # fmt: skip


def test_launch_counts_distinguish_equal_stacks() -> None:
    """A rank with the same stack that is one launch behind is missing, and the report names the launch of each rank."""
    report = build_report(*(unchanged(launching(rank, 7)) for rank in (0, 1, 2)), unchanged(launching(3, 6)))
    assert waiting_and_missing(report) == ((0, 1, 2), (3,))
    assert [(place.ranks, place.number) for place in report.places] == [((0, 1, 2), 7), ((3,), 6)]


def test_rank_past_the_launch_is_not_missing() -> None:
    """Dispatch does not block: a rank that sleeps after its launch has reached that launch."""
    past_launch = unchanged(
        sample(1, "sleep", "sleep", line=2, counts=[LaunchCount(tuple(ALL), 7)], participants=ALL, launch_number=7)
    )
    report = build_report(
        unchanged(launching(0, 7)), past_launch, unchanged(launching(2, 7)), unchanged(sample(3, "computing"))
    )
    assert waiting_and_missing(report) == ((0, 2), (3,))


def test_ended_rank_is_judged_by_its_record() -> None:
    """A rank that ended the cell without the launch is missing; one that ended it after the launch is not."""
    report = build_report(unchanged(launching(0, 7)), ended(1, STEP), ended(2), unchanged(launching(3, 7)))
    assert waiting_and_missing(report) == ((0, 3), (2,))
    assert report.lines[2] is None


def test_local_programs_are_not_counted() -> None:
    """A rank may skip such programs without harm, so they do not count as reaching a launch."""
    report = build_report(
        unchanged(launching(0, 1)),
        ended(1, LaunchRow("free:1", "jit(fill)", tuple(ALL), 1, 9)),
        *(unchanged(launching(r, 1)) for r in (2, 3)),
    )
    assert waiting_and_missing(report) == ((0, 2, 3), (1,))


def test_only_participants_can_be_missing() -> None:
    """Ranks outside a sub-mesh may do anything."""
    others = [unchanged(sample(rank, "computing")) for rank in (2, 3)]
    assert waiting_and_missing(
        build_report(unchanged(launching(0, 1, [0, 1])), unchanged(sample(1, "sleep", "sleep")), *others)
    ) == ((0,), (1,))


def test_rank_outside_the_cell_is_missing() -> None:
    """A `--ranks` cell whose launch needs other ranks waits for them."""
    snapshots = [
        unchanged(launching(0, 1)),
        unchanged(launching(1, 1)),
        RankSnapshot(2, "skipped"),
        RankSnapshot(3, "skipped"),
    ]
    assert waiting_and_missing(build_report(*snapshots)) == ((0, 1), (2, 3))


def test_no_rank_is_missing_if_all_have_arrived() -> None:
    """If every rank has reached the launch and none makes progress, all of them wait and none is missing."""
    assert waiting_and_missing(build_report(*(unchanged(launching(rank, 7)) for rank in ALL))) == ((0, 1, 2, 3), ())


def test_ranks_that_make_progress_do_not_wait() -> None:
    """In a loop of launches two ranks are sampled at different moments, so their counts prove nothing."""
    snapshots = [RankSnapshot(rank, latest=launching(rank, 900 - rank), before=launching(rank, 500)) for rank in ALL]
    report = build_report(*snapshots)
    assert waiting_and_missing(report) == ((), ())
    assert (report.progress, report.stuck, report.moved) == (True, False, (0, 1, 2, 3))


def test_output_between_two_samples_is_progress() -> None:
    """A loop that prints may be on the same line in every sample; a rank that waits for others waits, even if a thread prints."""
    asleep = [unchanged(sample(rank, "blocked", "sleep"), has_output=True) for rank in ALL]
    report = build_report(*asleep)
    assert (report.progress, report.moved, report.stuck) == (True, tuple(ALL), False)
    report = build_report(unchanged(launching(0, 1), has_output=True), *asleep[1:])
    assert (waiting_and_missing(report), report.moved, report.stuck) == (((0,), (1, 2, 3)), (1, 2, 3), True)
    assert build_report(*(unchanged(sample(rank, "blocked", "sleep")) for rank in ALL)).stuck


def test_output_counts_since_the_sample_before_the_latest() -> None:
    """Earlier output does not show where the rank is now."""
    part, flags = RankCell(OutputAccumulator()), []
    for now in (1.0, 2.0, 3.0):
        part.record_sample(sample(0, "blocked"), now)
        flags.append(part.has_new_output)
        part.add_output([Stream("stdout", "step\n")] if now == 1.0 else [])
        flags.append(part.has_new_output)
    assert flags == [False, True, True, True, False, False]


def test_waiting_ranks_show_although_missing_one_progresses() -> None:
    """A rank that slowly works through its shards does not hide that the others wait for it."""
    busy = RankSnapshot(3, latest=sample(3, "computing", line=2), before=sample(3, "computing", line=1))
    report = build_report(*(unchanged(launching(rank, 7)) for rank in (0, 1, 2)), busy)
    assert waiting_and_missing(report) == ((0, 1, 2), (3,))
    assert (report.progress, report.stuck) == (True, True)


def test_a_barrier_has_no_launch_to_count() -> None:
    """At a barrier every rank that is elsewhere is missing, whatever it does."""
    snapshots = [unchanged(sample(rank, "barrier", "wait_at_barrier")) for rank in (0, 1)]
    assert waiting_and_missing(build_report(*snapshots, unchanged(sample(2, "compiling")), ended(3))) == (
        (0, 1),
        (2, 3),
    )


def test_rank_in_an_agreement_waits_for_ranks() -> None:
    """In lockstep ranks wait before the launch."""
    snapshots = [unchanged(sample(rank, "agreement", "jit(step)")) for rank in (0, 1, 2)]
    assert waiting_and_missing(build_report(*snapshots, unchanged(sample(3, "compiling")))) == ((0, 1, 2), (3,))


def test_rank_in_a_lock_waits_unless_others_wait_in_a_launch() -> None:
    """Ranks in a lock wait and the others are missing; but if ranks wait in a launch, the rank in the lock is missing."""
    locks = [unchanged(sample(rank, "lock", "acquire")) for rank in (0, 1)]
    assert waiting_and_missing(build_report(*locks, unchanged(sample(2, "sleep", "sleep")), ended(3))) == (
        (0, 1),
        (2, 3),
    )
    assert waiting_and_missing(build_report(locks[0], *(unchanged(launching(rank, 1)) for rank in (1, 2, 3)))) == (
        (1, 2, 3),
        (0,),
    )


def test_compiling_and_computing_are_not_waiting() -> None:
    """Ranks that compile or compute do not wait for others, and no rank is missing."""
    report = build_report(*(unchanged(sample(rank, "compiling" if rank else "computing")) for rank in ALL))
    assert waiting_and_missing(report) == ((), ())
    assert (report.launch, report.age_s) == (None, 5.0)


def test_rank_without_samples_is_not_missing() -> None:
    """Neither before its first sample nor later is the rank missing: the report shows it as silent."""
    snapshots = [*(unchanged(launching(rank, 1)) for rank in (0, 1, 2)), RankSnapshot(3)]
    early, late = build_report(*snapshots, age_s=2.5), build_report(*snapshots, age_s=4.5)
    assert (early.absent, early.known, early.stuck) == ((), False, False)
    assert (late.absent, late.known, late.stuck) == ((), True, True)
    assert late.places[1].activity == "silent"


def test_rank_waiting_for_its_launching_thread_waits_for_ranks() -> None:
    """The rank whose thread has not reached the launch is missing; equal threads of one rank are counted."""
    in_launch = ThreadStatus("worker", "launch", "jit(step)", 1, "")
    joins = {
        "counts": [LaunchCount(tuple(ALL), 7)],
        "participants": ALL,
        "launch_number": 7,
        "threads": [in_launch, in_launch],
    }
    lags = {"counts": [LaunchCount(tuple(ALL), 6)], "threads": [ThreadStatus("worker", "sleep", "sleep", 2, "")]}
    report = build_report(
        *(unchanged(sample(rank, "lock", "join", line=2, **joins)) for rank in (0, 1, 2)),
        unchanged(sample(3, "lock", "join", line=2, **lags)),
    )
    assert (waiting_and_missing(report), report.launch) == (((0, 1, 2), (3,)), "jit(step)")
    assert [(one.name, one.count, one.code) for one in report.places[0].threads] == [
        ("worker", 2, "loss = step(params, batch)")
    ]


def test_rank_whose_samples_fail_is_not_missing() -> None:
    """The rank counts as missing neither in a launch nor in a lock, and two failed samples are not progress."""
    unseen = unchanged(sample(3, "unseen", line=None))
    in_launch = build_report(*(unchanged(launching(rank, 1)) for rank in (0, 1, 2)), unseen)
    in_lock = build_report(*(unchanged(sample(rank, "lock", "acquire")) for rank in (0, 1, 2)), unseen)
    first = RankSnapshot(3, latest=sample(3, "sleep"), before=sample(3, "unseen", line=None))
    assert waiting_and_missing(in_launch) == waiting_and_missing(in_lock) == ((0, 1, 2), ())
    assert build_report(*(unchanged(launching(rank, 1)) for rank in (0, 1, 2)), first).moved == ()


def test_silent_rank_is_shown_as_silent() -> None:
    """Its last sample does not count as its current position."""
    quiet = unchanged(sample(3, "computing"), sample_age_s=6.0)
    report = build_report(*(unchanged(launching(rank, 1)) for rank in (0, 1, 2)), quiet)
    assert [(place.ranks, place.activity) for place in report.places] == [((0, 1, 2), "launch"), ((3,), "silent")]


def test_output_before_silence_is_not_progress() -> None:
    """A cell that prints, and then holds the interpreter in one long call, gets the report like a cell without output."""
    before, latest = sample(0, "computing"), sample(0, "computing", line=2)
    for quiet in (
        unchanged(latest, has_output=True, sample_age_s=60.0),
        RankSnapshot(0, latest=latest, before=before, sample_age_s=60.0),
    ):
        report = build_report(quiet, dataclasses.replace(quiet, rank=1), age_s=62.0)
        assert (report.moved, report.stuck) == ((), True)


def test_one_sample_is_not_enough() -> None:
    """With one sample nothing is known of progress, so the report is not shown automatically."""
    once = [RankSnapshot(rank, latest=launching(rank, 1)) for rank in (0, 1, 2)]
    report = build_report(*once, RankSnapshot(3, latest=sample(3, "sleep", "sleep")))
    assert waiting_and_missing(report) == ((0, 1, 2), (3,))
    assert (report.known, report.stuck) == (False, False)


# -- ranks that are stopped in the debugger


def stopped(one: RankStatus, line: int | None, **parts: Any) -> RankSnapshot:
    """Return the snapshot of a rank that is stopped at a line, with two samples that show the debugger."""
    return unchanged(one, is_stopped=True, stop_line=line, **parts)


def test_ranks_that_wait_for_a_stopped_rank_do_not_hang() -> None:
    """The stopped rank is the missing one, whatever its samples show, and the report is not shown by itself."""
    in_debugger = sample(2, "lock", "get", line=1, counts=[LaunchCount(tuple(ALL), 6)])
    agreeing = [sample(rank, "agreement", "jit(step)", participants=ALL, launch_number=7) for rank in (0, 1, 3)]
    report = build_report(*map(unchanged, agreeing[:2]), stopped(in_debugger, 2), unchanged(agreeing[2]))
    assert waiting_and_missing(report) == ((0, 1, 3), (2,))
    assert (report.stopped, report.known, report.progress, report.stuck) == ((2,), True, False, False)
    assert (report.launch, report.lines) == ("jit(step)", {0: 1, 1: 1, 2: 2, 3: 1})
    assert [(place.ranks, place.activity, place.what, place.code) for place in report.places] == [
        ((0, 1, 3), "agreement", "jit(step)", "loss = step(params, batch)"),
        ((2,), "stopped", "", "batch = next(batches)"),
    ]


def test_a_report_of_the_same_samples_without_a_stop_is_stuck() -> None:
    """Only the stop keeps the report from being shown."""
    in_debugger = sample(2, "lock", "get", line=2, counts=[LaunchCount(tuple(ALL), 6)])
    report = build_report(*(unchanged(launching(rank, 7)) for rank in (0, 1, 3)), unchanged(in_debugger))
    assert (report.stopped, report.stuck) == ((), True)


def test_stopped_rank_waits_for_nobody() -> None:
    """A prompt is no lock. Neither are ranks stuck that are all stopped, each in its own line, or in no line of the cell."""
    snapshots = [stopped(sample(rank, "lock", "get"), rank + 1 if rank < 2 else None) for rank in ALL]
    report = build_report(*snapshots)
    assert waiting_and_missing(report) == ((), ())
    assert (report.stopped, report.known, report.stuck) == ((0, 1, 2, 3), True, False)
    assert report.lines == {0: 1, 1: 2, 2: None, 3: None}
    assert [(place.ranks, place.line) for place in report.places] == [((0,), 1), ((1,), 2), ((2, 3), None)]


def test_location_of_a_stopped_rank_is_known_without_samples() -> None:
    """A cell may stop in its first line. Later samples may be late, because a command of the debugger runs."""
    waits = [unchanged(launching(rank, 1)) for rank in (0, 1, 2)]
    for snapshot in (
        RankSnapshot(3, is_stopped=True, stop_line=2),
        stopped(sample(3, "computing"), 2, sample_age_s=60.0),
        stopped(sample(3, "unseen", line=None), 2),
    ):
        report = build_report(*waits, snapshot, age_s=90.0)
        assert waiting_and_missing(report) == ((0, 1, 2), (3,))
        assert (report.known, report.stuck, report.places[1].activity) == (True, False, "stopped")


def test_stopped_rank_is_missing_at_a_barrier() -> None:
    """A barrier has no number, and the rank's own samples may show any wait."""
    waits = [unchanged(sample(rank, "barrier", "wait_at_barrier")) for rank in (0, 1, 2)]
    report = build_report(*waits, stopped(sample(3, "barrier", "wait_at_barrier"), 2))
    assert waiting_and_missing(report) == ((0, 1, 2), (3,))


def test_samples_of_a_stopped_rank_are_no_progress() -> None:
    """A command of the debugger, its output included, is not the cell's own progress."""
    before, latest = sample(0, "lock", "get"), sample(0, "computing", line=2)
    report = build_report(
        RankSnapshot(0, latest=latest, before=before, has_output=True, is_stopped=True, stop_line=1),
        RankSnapshot(1, latest=replace(latest, rank=1), before=replace(before, rank=1)),
    )
    assert report.moved == (1,)


def test_frame_of_a_stopped_rank_is_that_of_its_line() -> None:
    """A sample in another line is from before the stop, so its frame is not shown."""
    reading = sample(0, "lock", "get", line=2, user_frame="data.py:31 read_shard")
    frames = [build_report(stopped(reading, line)).places[0].place for line in (2, 1, None)]
    assert frames == ["data.py:31 read_shard", "", ""]


def test_samples_of_the_debugger_do_not_count_after_it() -> None:
    """A rank that goes on looks as if it waited in a call until its next sample, which must not open the report."""
    waits = [unchanged(launching(rank, 7)) for rank in (0, 1, 2)]
    old, new = sample(3, "lock", "get"), sample(3, "computing", line=2)
    report = build_report(*waits, unchanged(old, sample_age_s=0.8, resumed_s=0.5))
    assert (report.known, report.stuck, report.places[1].activity) == (False, False, "unknown")
    report = build_report(*waits, RankSnapshot(3, latest=new, before=old, sample_age_s=0.1, resumed_s=1.5))
    assert (waiting_and_missing(report), report.moved, report.stuck) == (((0, 1, 2), (3,)), (3,), True)


def test_rank_that_reports_nothing_after_the_debugger_is_silent() -> None:
    """The time without a report counts from the end of its stop, not from the start of the cell."""
    waits = [unchanged(launching(rank, 7)) for rank in (0, 1, 2)]
    old = sample(3, "lock", "get")
    activities = [
        build_report(*waits, unchanged(old, sample_age_s=s + 0.5, resumed_s=s), age_s=99.0).places[1].activity
        for s in (3.9, 4.1)
    ]
    assert activities == ["unknown", "silent"]


def test_running_cell_reports_its_stops() -> None:
    """A cell whose rank stops at once has a report before any sample; a rank that has left the debugger is not stopped."""
    cell = Cell(1, CellRequest(SOURCE), seq=5, ranks=(0, 1), now=0.0)
    cell.added_parts = [DebuggerPart()]
    assert cell.result(0.2, 2).where is None
    cell.handle(DebugPrompt(1, 5, 1, "(Pdb) ", "", line=2, is_new=True), 0.5)
    report = cell.result(60.0, 2).where
    assert report is not None
    assert (report.stopped, report.lines, report.stuck) == ((1,), {0: None, 1: 2}, False)
    for at_s in (60.0, 61.0):
        cell.record_report(sample(1, "lock", "get"), at_s)
        cell.record_report(sample(0, "computing"), at_s)
    cell.handle(DebugResumed(1, 5, ""), 61.5)
    report = cell.build_hang_report(61.6, 2)
    assert (report.stopped, report.known, report.stuck) == ((), False, False)
    assert report.places[1].activity == "unknown"


# -- the age of the wait, and the lines


def test_age_counts_from_the_first_waiting_rank() -> None:
    """The age counts from the first rank that waited until now."""
    first = replace(launching(0, 1), unchanged_s=9.0)
    report = build_report(
        unchanged(first, sample_age_s=0.5),
        *(unchanged(launching(rank, 1)) for rank in (1, 2)),
        unchanged(sample(3, "sleep")),
    )
    assert report.age_s == 9.5


def test_the_code_of_a_line_is_the_one_that_the_notebook_shows() -> None:
    """Lines above the source, such as the `%%mhjax` line, count."""
    status = launching(0, 1, line=3)
    report = build_hang_report(5, number_lines(SOURCE, 3), [unchanged(status)], age_s=5.0)
    assert report.places[0].code == "loss = step(params, batch)"


def test_status_round_trip() -> None:
    """A rank's sample is read as it was written."""
    status = launching(2, 7, user_frame="data.py:31 read")
    assert decode(encode(status)) == status
