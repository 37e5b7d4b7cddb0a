"""Journal lines and replay decisions: what is recorded of a cell, which cells run again, and which results count as equal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from mhnb.core.guard.launch_report import LaunchReport, LaunchRow
from mhnb.core.journal import (
    MAX_TRACE_ROWS,
    AcceptRecord,
    CellRecord,
    PushRecord,
    Record,
    ReplayRecord,
    StartRecord,
    format_record,
    parse_record,
    parse_records,
    trace_launches,
)
from mhnb.core.messages import CellEnded
from mhnb.core.output.events import ErrorRaised
from mhnb.core.replay import (
    ReplayPlan,
    ReplayReport,
    ReplayStep,
    describe_cure,
    describe_difference,
    format_recovery,
    format_report,
    format_step,
    format_stop,
    plan_replay,
    skip_reason,
)
from mhnb.core.state.cell import Cell, record_cell
from mhnb.core.state.events import CellRequest
from mhnb.errors import InvalidRequest

ADD = LaunchRow("a1b2c3d4", "jit(add)", (0, 1), 2, 1)
TOP = LaunchRow("e5f6a7b8", "jit(top)", (0, 1), 3, 1)
START = StartRecord(1, "2 hosts x 1 device", "0.10.2")
PUSH = PushRecord(1, ("x",), None, ({"name": "x"},), (8,), "push1-1.bin")


def cell(seq: int, *, generation: int = 1, **more: Any) -> CellRecord:
    """Return the record of a cell that ended without an error on two ranks, by default."""
    given = {"outcomes": {0: "ok", 1: "ok"}} | more
    return CellRecord(generation, seq, f"x = {seq}", **given)


def launched(*rows: LaunchRow, other: list[LaunchRow] | None = None) -> dict[str, Any]:
    """Return the launches of rank 0, which are also those of rank 1 unless `other` is given."""
    return {"launches": trace_launches({0: rows, 1: rows if other is None else other})}


RECORDS: list[Record] = [
    START,
    cell(1, ranks=(0,), guard="off", timeout_s=2.5, launches=None, how="timeout", state="split", wall_s=0.25, when=5.5),
    cell(2, outcomes={0: "ok", 1: "error"}, errors={1: "ValueError"}, **launched(ADD, TOP)),
    replace(cell(3), source='é "quoted"\n\u2028 \ud800 \x00'),
    PUSH,
    replace(PUSH, ranks=(0, 1), values=(), sizes=(), file="", why_not="too large"),
    AcceptRecord(1, "tainted", 7.0),
    ReplayRecord(2, 1, None, complete=False, told="a\nb"),
    replace(START, generation=3, after=1, is_restart=True),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind)
def test_record_round_trip(record: Record) -> None:
    """A record is read as it was written, whatever its source contains, and takes one line."""
    line = format_record(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert parse_record(line) == record


def test_a_line_is_json_that_others_can_read() -> None:
    """The line has the fields that the journal promises, by name."""
    body = json.loads(format_record(RECORDS[2]))
    assert (body["kind"], body["seq"], body["source"]) == ("cell", 2, "x = 2")
    assert (body["outcomes"], body["errors"]) == ({"ok": "0", "error": "1"}, {"ValueError": "1"})
    assert body["launches"][0][:3] == ["0-1", trace_launches({0: [ADD, TOP]})[0].hash, 2]


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b'{"kind":"walk"}', b'{"kind":"accept"}', b'{"kind":"cell","generation":1}', b"\xff"]
)
def test_invalid_line_is_refused(line: bytes) -> None:
    """A truncated line, or one of another version, raises an error that shows its beginning."""
    with pytest.raises(InvalidRequest, match="a line of the journal cannot be read"):
        parse_record(line)


def test_truncated_line_does_not_hide_the_others() -> None:
    """The other records are read, and the fault is reported."""
    lines = [format_record(record) for record in RECORDS]
    records, faults = parse_records(b"".join([lines[0], lines[1][:20] + b"\n", *lines[2:]]))
    assert records == [RECORDS[0], *RECORDS[2:]]
    assert len(faults) == 1


# -- a cell, and what it launched


def test_the_record_of_a_cell() -> None:
    """The record has flags, outcomes, error names and launches by rank, and says whether the cell was replayed."""
    request = CellRequest("boom()", (0, 1), "parity", 9.0, replayed_seq=7)
    ran = Cell(1, request, seq=7, ranks=(0, 1), now=1.0)
    raised = ErrorRaised("KeyError", "'a'", [], 1, "boom()", 0.1)
    ran.end_rank(CellEnded(0, 7, "ok", [], 0.1, LaunchReport(rows=[ADD])))
    ran.end_rank(CellEnded(1, 7, "error", [raised], 0.1, LaunchReport(rows=[ADD])))
    ran.wall_s, ran.state = 0.5, "clean"
    record = record_cell(ran, 3, recorded=True)
    expected = cell(7, generation=3, ranks=(0, 1), guard="parity", timeout_s=9.0, **launched(ADD))
    assert record == replace(
        expected,
        source="boom()",
        outcomes={0: "ok", 1: "error"},
        errors={1: "KeyError"},
        wall_s=0.5,
        replayed=True,
    )
    assert record_cell(ran, 3, recorded=False).launches is None


def test_lines_names_and_local_programs_keep_the_hash() -> None:
    """The hash covers what the guard compares: a run that is split at another line is the same run."""
    plain = trace_launches({0: [structs.replace(ADD, count=3)]})[0]
    split = trace_launches(
        {0: [ADD, LaunchRow("free:77", "jit(local)", (0, 1), 2, 5), structs.replace(ADD, line=9, count=2)]}
    )[0]
    assert (split.hash, split.count, split.rows) == (plain.hash, 3, plain.rows)


@pytest.mark.parametrize(
    "rows",
    [
        [ADD],
        [ADD, TOP],
        [TOP, ADD, ADD],
        [structs.replace(ADD, count=2)],
        [structs.replace(ADD, fingerprint="ffff")],
        [structs.replace(ADD, participants=(0,))],
        [],
    ],
)
def test_program_order_count_and_ranks_change_the_hash(rows: list[Any]) -> None:
    """Each of these is a different sequence."""
    base = trace_launches({0: [TOP, ADD]})[0].hash
    assert [trace.hash for trace in trace_launches({0: rows})] != [base]


def test_ranks_with_equal_launches_share_a_trace() -> None:
    """A journal of 64 ranks is no longer than that of two; ranks without a launch are not in it."""
    traces = trace_launches({0: [ADD], 1: [ADD], 2: [TOP], 3: []})
    assert [trace.ranks for trace in traces] == [(0, 1), (2,)]


def test_a_long_sequence_is_hashed_whole_and_kept_in_part() -> None:
    """The hash includes the launches after the rows that are kept."""
    rows = [LaunchRow(str(n), "jit(f)", (0,), 1, 1) for n in range(MAX_TRACE_ROWS + 9)]
    long, other = (trace_launches({0: each})[0] for each in (rows, [*rows[:-1], ADD]))
    assert (len(long.rows), long.count) == (MAX_TRACE_ROWS, MAX_TRACE_ROWS + 9)
    assert long.hash != other.hash
    assert long.rows == other.rows


# -- what runs again


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, ""),
        ({"outcomes": {0: "error", 1: "error"}}, ""),
        ({"outcomes": {0: "ok", 1: "error"}}, ""),
        ({"how": "interrupted", "outcomes": {0: "interrupted", 1: "interrupted"}}, "interrupted"),
        ({"how": "interrupted"}, "interrupted"),
        ({"outcomes": {0: "ok", 1: "error"}, "errors": {1: "KeyboardInterrupt"}}, "interrupted"),
        ({"outcomes": {0: "interrupted", 1: "interrupted"}}, "interrupted"),
        ({"how": "timeout", "outcomes": {0: "killed", 1: "killed"}, "state": "dead"}, "stopped by its --timeout"),
        ({"state": "tainted"}, "tainted"),
        ({"state": "split"}, "split"),
        ({"state": "dead", "outcomes": {0: "killed", 1: "died"}}, "ranks 0-1 died during it"),
        ({"state": "dead"}, "the cluster died during it"),
        ({"state": "stopped", "outcomes": {0: "killed", 1: "ok"}}, "the cluster was stopped during it"),
        ({"outcomes": {0: "ok", 1: "refused"}}, "rank 1 refused it"),
    ],
)
def test_cells_that_ended_clean_run_again(more: dict[str, Any], why: str) -> None:
    """Cells that raised run again; cells that mhnb or the user ended, or that left the cluster in another state, do not."""
    assert skip_reason(cell(1, **more)) == why


def test_a_plan_has_cells_and_pushes_in_their_order() -> None:
    """The plan lists what is left out, each with its reason; an accept is mentioned, but makes no cell clean."""
    tainted, oversized = cell(2, state="tainted"), replace(PUSH, names=("big",), file="", why_not="too large")
    plan = plan_replay([START, cell(1), PUSH, tainted, AcceptRecord(1, "tainted"), oversized, cell(3)], 1)
    assert plan.steps == (cell(1), PUSH, cell(3))
    assert list(map(str, plan.left_out)) == ["cell 2: tainted, then accepted", "push big: too large"]
    assert plan.cells == (1, 3)


def test_replay_to_a_cell_stops_after_it() -> None:
    """Cells, pushes and skipped steps after that cell do not matter; the named cell may itself be left out."""
    records: list[Record] = [START, cell(1), PUSH, cell(2, state="split"), cell(3), PUSH, cell(4, state="tainted")]
    assert plan_replay(records, 1, 3).steps == (cell(1), PUSH, cell(3))
    assert [item.what for item in plan_replay(records, 1, 3).left_out] == ["cell 2"]
    assert plan_replay(records, 1, 2).cells == (1,)


@pytest.mark.parametrize("to", [0, 3, -1])
def test_replay_to_an_unknown_cell_is_refused(to: int) -> None:
    """Otherwise the error names the cells that exist."""
    with pytest.raises(InvalidRequest, match=rf"--to {to}: unknown cell; the journal has cells 1-2 of generation 1"):
        plan_replay([START, cell(1), cell(2)], 1, to)
    with pytest.raises(InvalidRequest, match="the journal has no cell"):
        plan_replay([START], 1, to)


def restarted(generation: int, *records: CellRecord | PushRecord, begins: bool = False) -> list[Record]:
    """Return the records of a restart, or of a start that begins afresh, and of a replay in it."""
    start = replace(START, generation=generation, after=generation - 1, is_restart=not begins)
    return [start, *(replace(r, generation=generation, replayed=True) for r in records)]


FIRST_START: list[Record] = [START, cell(1), PUSH, cell(2)]
WIDER_START = StartRecord(2, "4 hosts x 1 device", after=1)
REPLAY_END = ReplayRecord(2, 1, None, complete=True)
STOP, TO_FIRST = replace(REPLAY_END, complete=False), replace(REPLAY_END, to=1)
USED_RESTART: list[Record] = [*FIRST_START, *restarted(2), cell(3, generation=2)]
REPLAYED_BOTH = [*USED_RESTART, *restarted(3, cell(1), cell(2), cell(3)), ReplayRecord(3, 2, None, complete=True)]


@pytest.mark.parametrize(
    ("records", "generations", "cells"),
    [
        ([*FIRST_START, *restarted(2)], (1,), (1, 2)),
        ([*FIRST_START, *restarted(2), *restarted(3)], (1,), (1, 2)),
        (USED_RESTART, (1, 2), (1, 2, 3)),
        ([*USED_RESTART, *restarted(3), *restarted(4), cell(4, generation=4)], (1, 2, 4), (1, 2, 3, 4)),
        ([*FIRST_START, *restarted(2, cell(1))], (1, 2), (1, 2)),
        ([*FIRST_START, *restarted(2, cell(1)), STOP], (1, 2), (1, 2)),
        ([*USED_RESTART, *restarted(3, cell(1)), replace(STOP, generation=3)], (1, 2, 3), (1, 2, 3)),
        ([*FIRST_START, *restarted(2, cell(1)), STOP, *restarted(3), cell(3, generation=3)], (1, 2, 3), (1, 2, 3)),
        ([*FIRST_START, *restarted(2, cell(1)), STOP, cell(3, generation=2)], (1, 2), (1, 2, 3)),
        ([*FIRST_START, *restarted(2), STOP, cell(3, generation=2)], (1, 2), (1, 2, 3)),
        ([*FIRST_START, *restarted(2, cell(1)), TO_FIRST], (1, 2), (1, 2)),
        ([*FIRST_START, *restarted(2, cell(1)), TO_FIRST, cell(3, generation=2)], (1, 2), (1, 3)),
        ([*FIRST_START, *restarted(2, cell(1), PUSH, cell(2)), REPLAY_END], (1, 2), (1, 2)),
        ([*FIRST_START, *restarted(2, cell(1), cell(2)), REPLAY_END, cell(3, generation=2)], (1, 2), (1, 2, 3)),
        (REPLAYED_BOTH, (1, 2, 3), (1, 2, 3)),
        ([*REPLAYED_BOTH, cell(4, generation=3), *restarted(4), cell(5, generation=4)], (1, 2, 3, 4), (1, 2, 3, 4, 5)),
        ([*FIRST_START, *restarted(2, begins=True)], (1,), (1, 2)),
        (
            [*FIRST_START, *restarted(2, cell(1), cell(2), begins=True), REPLAY_END, cell(3, generation=2)],
            (1, 2),
            (1, 2, 3),
        ),
        ([*USED_RESTART, *restarted(3, begins=True), cell(1, generation=3)], (3,), (1,)),
        ([*USED_RESTART, *restarted(3, begins=True), *restarted(4)], (1, 2), (1, 2, 3)),
        ([*FIRST_START, WIDER_START], (2,), ()),
        ([*FIRST_START, WIDER_START, *restarted(3)], (3,), ()),
    ],
    ids=[
        "unused",
        "twice",
        "used",
        "used twice",
        "broken off",
        "stopped",
        "walk stopped",
        "used after another stop",
        "by hand after a stop",
        "by hand after a stop at once",
        "to",
        "went on after to",
        "complete",
        "went on",
        "walk complete",
        "walk went on",
        "start",
        "replay in a start",
        "used start",
        "restart after a start",
        "other shape",
        "shape between",
    ],
)
def test_replay_walks_back_to_the_last_start(
    records: list[Record], generations: tuple[int, ...], cells: tuple[int, ...]
) -> None:
    """A replay runs what the user has done since the start, in order, and nothing twice, whatever replays have come in between.

    Only after `--to` the first new cell takes the place of the cells that came later.
    """
    plan = plan_replay(records, max(record.generation for record in records))
    assert (plan.generations, plan.cells) == (generations, cells)


def test_replay_of_this_generation_runs_no_earlier_cell() -> None:
    """It runs what has run in the newest generation, also in a replay there; the next replay runs the others again."""
    assert plan_replay(USED_RESTART, 2, this_generation=True).cells == (3,)
    assert plan_replay([*USED_RESTART, *restarted(3)], 3, this_generation=True).cells == (3,)
    again: list[Record] = [*USED_RESTART, *restarted(3, cell(3)), ReplayRecord(3, 2, None, complete=True)]
    assert plan_replay(again, 3, this_generation=True).cells == (3,)
    assert plan_replay(again, 3).cells == (1, 2, 3)


def test_replay_compares_with_what_the_user_had() -> None:
    """A cell's own end counts, not that of a later replay which was interrupted or failed; a cure of a failed cell counts."""
    failed = cell(1, outcomes={0: "error", 1: "error"}, errors={0: "OSError", 1: "OSError"})
    stopped = cell(2, outcomes={0: "error", 1: "error"}, errors={0: "KeyError", 1: "KeyError"})
    interrupted = cell(2, outcomes=dict.fromkeys((0, 1), "interrupted"), how="interrupted")
    records: list[Record] = [START, failed, cell(2)]
    for generation, second in ((2, stopped), (3, interrupted)):
        records += [*restarted(generation, cell(1), second), replace(STOP, generation=generation)]
    plan = plan_replay([*records, cell(3, generation=3)], 3)
    assert [(step.generation, step.errors) for step in plan.steps if isinstance(step, CellRecord)] == [
        (3, {}),
        (1, {}),
        (3, {}),
    ]
    assert plan.left_out == ()


def test_replay_to_a_cell_before_a_restart() -> None:
    """All generations of the walk have one sequence of numbers, and an error names their cells."""
    assert plan_replay(USED_RESTART, 2, 2).steps == (cell(1), PUSH, cell(2))
    with pytest.raises(InvalidRequest, match="unknown cell; the journal has cells 1-3 of generations 1-2"):
        plan_replay(USED_RESTART, 2, 4)


def test_another_shape_ends_the_walk_with_a_sentence() -> None:
    """The cells of another shape cannot be compared; a generation without cells is not mentioned."""
    note = "generation 1 was left out: it had 2 hosts x 1 device, and this cluster has 4 hosts x 1 device"
    assert plan_replay([*FIRST_START, WIDER_START], 2).note == note
    assert plan_replay([START, WIDER_START], 2).note == ""
    assert plan_replay([*FIRST_START, WIDER_START, cell(1, generation=2)], 2).note == ""


def test_replay_follows_the_history_of_starts() -> None:
    """One journal holds the starts of two notebooks, one of which took over the other's cluster; each has its own history."""
    detached, separate, taken_over = (
        StartRecord(number, START.shape, after=after) for number, after in ((1, 0), (2, 0), (3, 1))
    )
    records: list[Record] = [START, cell(1), replace(START, generation=3, after=2)]
    assert plan_replay(records, 3).cells == (1,), "the start of generation 2 is missing"
    records = [detached, cell(1), separate, cell(1, generation=2), cell(2, generation=2), taken_over]
    plans = [plan_replay(records, number) for number in (1, 2, 3)]
    assert [(plan.generations, plan.cells) for plan in plans] == [((1,), (1,)), ((2,), (1, 2)), ((1,), (1,))]


# -- before and now


def test_equal_cells_have_no_difference() -> None:
    """Time, generation, the lines that split a run, and a missing launch record do not count."""
    before = cell(1, **launched(ADD, ADD), wall_s=1.0)
    assert (
        describe_difference(
            before, cell(1, generation=2, **launched(structs.replace(ADD, line=9, count=2)), replayed=True)
        )
        == ""
    )
    assert describe_difference(before, cell(1, launches=None)) == ""
    raised: dict[str, Any] = {"outcomes": {0: "error", 1: "error"}, "errors": {0: "KeyError", 1: "KeyError"}}
    assert describe_difference(cell(1, **raised), cell(1, **raised)) == ""


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (
            {},
            {"outcomes": {0: "ok", 1: "error"}, "errors": {1: "KeyError"}},
            "rank 1: before it finished, now it raised KeyError",
        ),
        (
            {"outcomes": {0: "error", 1: "error"}, "errors": {0: "KeyError", 1: "KeyError"}},
            {"outcomes": {0: "error", 1: "ok"}, "errors": {0: "ValueError"}},
            "rank 0: before it raised KeyError, now it raised ValueError",
        ),
        (
            {},
            {"outcomes": {0: "died", 1: "killed"}, "state": "dead"},
            "rank 0: before it finished, now it died\nrank 1: before it finished, now it was killed",
        ),
        (
            launched(ADD, TOP),
            launched(ADD, ADD, ADD),
            "ranks 0-1: launch 2 was jit(top) of line 3, now jit(add) of line 2 (launches: 2 before, 3 now)",
        ),
        (
            launched(structs.replace(ADD, count=5)),
            launched(structs.replace(ADD, count=3)),
            "ranks 0-1: launch 4 was jit(add) of line 2, now none (launches: 5 before, 3 now)",
        ),
        (
            launched(ADD, TOP),
            launched(structs.replace(ADD, fingerprint="ffffffff"), TOP),
            ("ranks 0-1: launch 1 was jit(add) (program a1b2c3) of line 2, now jit(add) (program ffffff) of line 2"
            " (launches: 2 before, 2 now)"),
        ),
        (
            launched(ADD),
            launched(ADD, other=[]),
            "rank 1: launch 1 was jit(add) of line 2, now none (launches: 1 before, 0 now)",
        ),
        ({}, {"state": "tainted"}, "the cluster was clean after it before, and is tainted now"),
        ({}, {"how": "timeout"}, "the cluster was clean after it before, and is clean after its --timeout now"),
    ],
    ids=["raised", "other_error", "died", "other_program", "fewer", "other_content", "one_rank", "state", "timeout"],
)  # fmt: skip
def test_a_difference_names_ranks_before_and_now(before: dict[str, Any], now: dict[str, Any], said: str) -> None:
    """Ranks with the same difference share a line."""
    assert describe_difference(cell(1, **before), cell(1, **now)) == said


RAISED: dict[str, Any] = {"outcomes": {0: "error", 1: "error"}, "errors": {0: "OSError", 1: "OrderMismatch"}}
ALL_MISMATCH: dict[str, Any] = RAISED | {"errors": {0: "OrderMismatch", 1: "OrderMismatch"}}


@pytest.mark.parametrize(
    ("before", "now", "difference", "cure"),
    [
        (RAISED, {}, "", "raised OSError and OrderMismatch on ranks 0-1"),
        (RAISED | launched(ADD), launched(ADD, TOP), "", "raised OSError and OrderMismatch on ranks 0-1"),
        (RAISED | launched(ADD), launched(ADD, ADD), "", "raised OSError and OrderMismatch on ranks 0-1"),
        (RAISED, {"outcomes": {0: "ok", 1: "error"}, "errors": {1: "OrderMismatch"}}, "", "raised OSError on rank 0"),
        ({"outcomes": {0: "ok", 1: "error"}, "errors": {1: "OSError"}}, {}, "", "raised OSError on rank 1"),
        (RAISED | launched(ADD), launched(TOP), "ranks 0-1: launch 1 was jit(add)", ""),
        (RAISED | launched(ADD, TOP), launched(ADD), "ranks 0-1: launch 2 was jit(top)", ""),
        (
            {"outcomes": {0: "ok", 1: "error"}, "errors": {1: "OSError"}} | launched(ADD),
            launched(ADD, TOP),
            "rank 0: launch 2 was none",
            "",
        ),
        (RAISED, {"state": "tainted"}, "the cluster was clean after it before", ""),
        (ALL_MISMATCH, {}, "ranks 0-1: before it raised OrderMismatch, now it finished", ""),
        ({}, RAISED, "rank 0: before it finished, now it raised OSError", ""),
    ],
    ids=[
        "all ranks",
        "more programs",
        "more launches",
        "one still raises",
        "one had raised",
        "another program",
        "fewer",
        "other programs of a rank that had finished",
        "state",
        "programs had differed",
        "raises now",
    ],
)
def test_rank_may_finish_instead_of_raising(
    before: dict[str, Any], now: dict[str, Any], difference: str, cure: str
) -> None:
    """An error of the user's code may be gone, if the rank then went on from where it had raised; nothing else may differ."""
    found = describe_difference(cell(1, **before), cell(1, **now))
    assert found.startswith(difference)
    assert bool(found) == bool(difference)
    if not found:
        said = f"cell 1 {cure} before, and finished there this time"
        assert describe_cure(cell(1, **before), cell(1, **now)) == said


@pytest.mark.parametrize("change", [ADD, LaunchRow(str(MAX_TRACE_ROWS - 1), "jit(f)", (0, 1), 1, 7)])
def test_difference_beyond_the_kept_rows_is_described(change: LaunchRow) -> None:
    """The hash shows the difference; the message says how far the sequences are known to be equal, and no more."""
    rows = [LaunchRow(str(n), "jit(f)", (0, 1), 1, 1) for n in range(MAX_TRACE_ROWS + 1)]
    other = [*rows[:-1], change] if change is ADD else [*rows[: MAX_TRACE_ROWS - 1], change, rows[-1]]
    text = describe_difference(cell(1, **launched(*rows)), cell(1, **launched(*other)))
    assert text.startswith(f"ranks 0-1: its launches differ after the first {MAX_TRACE_ROWS} (")


# -- texts


def test_recovery_command_estimates_the_replay() -> None:
    """Only cells that would run again count, also those before a restart, plus the start; without data there is no estimate."""
    records: list[Record] = [START]
    assert format_recovery(records, 1, 2.0) == "%mhjax restart --replay"
    records += [cell(1, wall_s=0.5), cell(2, wall_s=60.0, state="tainted")]
    assert format_recovery(records, 1, 2.0) == "%mhjax restart --replay (1 cell, about 2 s)"
    records += [*restarted(2), cell(3, generation=2, wall_s=200.0)]
    assert format_recovery(records, 2, 2.0) == "%mhjax restart --replay (2 cells, about 3 min)"


def test_replay_as_text() -> None:
    """These are the progress line, the report, and the message of a stopped replay with the next steps."""
    plan = plan_replay([START, cell(1), PUSH, cell(2, state="split"), cell(3), cell(4), cell(5)], 1)
    assert format_step(ReplayStep("cell 3", 2, plan)) == "mhjax · replaying cell 3 of 5"
    assert format_report(ReplayReport(plan, 5, 1.0), "1.0 s") == (
        "mhjax · replayed cells 1,3-5 and 1 push · 1.0 s\n  left out · cell 2: split"
    )
    stopped = ReplayReport(plan, 2, 1.0, notes=("a line is broken",), stop="cell 3 differs\nrank 1: this")
    assert format_stop(stopped, "clean").splitlines() == [
        "replay stopped: cell 3 differs",
        "  rank 1: this",
        (
            "  cell 1 gave the same result as before; cells 4-5 were not run · the cluster is clean:"
            " continue from here by hand, or %mhjax restart --replay --to 1"
        ),
        "  left out · cell 2: split",
        "  note · a line is broken",
    ]
    assert format_stop(stopped, "dead").splitlines()[2].endswith("the cluster is dead: %mhjax restart --replay --to 1")
    first = ReplayReport(ReplayPlan((1,), plan.steps), 0, 1.0, stop="cell 1 differs")
    assert format_stop(first, "tainted").endswith("the cluster is tainted: %mhjax restart")
