"""Where the time of traced ranks went: spans, collectives matched across ranks, and the events of the timeline."""

from __future__ import annotations

import pytest

from mhnb.core.flight import FlightEvent
from mhnb.core.trace import (
    RankTrace,
    TracedCollective,
    TraceEvent,
    TraceSource,
    build_timeline,
    describe_problems,
    match_collectives,
    measure_ranks,
    merge_spans,
    pack_trace,
    subtract_spans,
    sum_collectives,
    unpack_trace,
)

MS = 1_000_000


def compute(start: int, duration: int, device: int = 0, name: str = "fusion.1") -> TraceEvent:
    """Make an operation, times in ms."""
    return TraceEvent("compute", name, start * MS, duration * MS, device, "stream", "jit_step")


def reduce(start: int, duration: int, device: int = 0, name: str = "all-reduce.1") -> TraceEvent:
    """Make a collective, times in ms."""
    return TraceEvent("collective", name, start * MS, duration * MS, device, "stream", "jit_step")


def known(groups: dict[str, tuple[int, str]], name: str = "all-reduce.1") -> TracedCollective:
    """Make what a rank knows of a collective."""
    return TracedCollective("jit_step", name, "all-reduce f32[8] over x", "In [3], line 2", groups)


def source(rank: int, *events: TraceEvent, ahead_ms: int = 0, begin_ms: int = 0, **fields: object) -> TraceSource:
    """Make a rank that ran from `begin_ms` to 100 ms by the first rank's clock."""
    shifted = tuple(
        TraceEvent(e.kind, e.name, e.start_ns + ahead_ms * MS, e.duration_ns, e.device, e.thread, e.program)
        for e in events
    )
    flight = fields.pop("flight", ())
    fields = {"recorded_until_ns": (100 + ahead_ms) * MS} | fields
    trace = RankTrace((begin_ms + ahead_ms) * MS, (100 + ahead_ms) * MS, shifted, **fields)  # type: ignore[arg-type]
    return TraceSource(rank, f"host{rank}", 40 + rank, trace, flight, ahead_ms * MS)  # type: ignore[arg-type]


def test_spans_are_merged_and_subtracted() -> None:
    """Spans that touch are one; what is in both is not left."""
    assert merge_spans([(0, 1), (1, 2), (4, 4), (5, 9), (6, 7)]) == [(0, 2), (5, 9)]
    assert subtract_spans([(0, 10)], []) == [(0, 10)]
    assert subtract_spans([(0, 10)], [(0, 10)]) == []
    assert subtract_spans([(0, 4), (6, 10)], [(1, 2), (3, 7), (9, 12)]) == [(0, 1), (2, 3), (7, 9)]
    assert subtract_spans([(0, 4), (6, 10)], [(0, 20)]) == []


def test_each_moment_counts_once() -> None:
    """Compute hides a collective; before the last rank comes it is waiting; the four parts add up to the whole."""
    sources = [
        source(0, compute(0, 10), reduce(10, 40), compute(45, 10)),
        source(1, compute(0, 30), reduce(30, 20)),
    ]
    rows, span_s = measure_ranks(sources, match_collectives(sources))
    assert span_s == pytest.approx(0.1)
    first, second = rows
    # Rank 0 waits from 10 to 30, when rank 1 comes; from 45 on it computes in the collective.
    assert (first.compute_s, first.waiting_s, first.communication_s) == pytest.approx((0.020, 0.020, 0.015))
    assert (second.compute_s, second.waiting_s, second.communication_s) == pytest.approx((0.030, 0.0, 0.020))
    for row in rows:
        parts = row.compute_s + row.communication_s + row.waiting_s + row.host_s
        assert parts == pytest.approx(row.wall_s) == pytest.approx(0.1)


def test_clock_that_is_ahead_is_no_wait() -> None:
    """Times of a host whose clock is ahead are shifted back before ranks are compared."""
    sources = [source(0, reduce(10, 5)), source(1, reduce(10, 5), ahead_ms=7000)]
    rows, span_s = measure_ranks(sources, match_collectives(sources))
    assert span_s == pytest.approx(0.1)
    assert [row.waiting_s for row in rows] == [0.0, 0.0]
    assert [row.begin_s for row in rows] == [0.0, 0.0]


def test_wait_for_a_rank_that_has_not_begun_does_not_count() -> None:
    """A rank enters the profiler 30 ms after the other, which waits for it in a launch's agreement or a collective."""
    sources = [
        source(0, compute(0, 5), reduce(10, 30), reduce(50, 20)),
        source(1, reduce(35, 5), reduce(60, 10), begin_ms=30),
    ]
    runs = match_collectives(sources)
    (first, second), span_s = measure_ranks(sources, runs)
    # From 10 to 30 rank 1 had not begun; from 30 to 35, and from 50 to 60, it was late.
    assert (first.compute_s, first.waiting_s, first.communication_s) == pytest.approx((0.005, 0.015, 0.015))
    assert (first.host_s, first.wall_s, second.wall_s) == pytest.approx((0.045, 0.080, 0.070))
    (collective,) = sum_collectives(sources, runs)
    assert (collective.total_s, collective.waiting_s) == pytest.approx((0.030, 0.015))
    assert span_s == pytest.approx(0.070)
    assert first.states[0] == "waiting"
    waits = [e for e in build_timeline(sources, runs, cell_name="c", code={}) if e["name"] == "waits for rank 1"]
    assert waits[0]["dur"] == 25_000.0  # the timeline has all that was
    assert describe_problems(sources) == []
    assert describe_problems([source(0), source(1, begin_ms=99)]) == []
    assert describe_problems([source(0, ahead_ms=-900), source(1, ahead_ms=-900, begin_ms=-500)])[0].startswith(
        "rank 0 entered the profiler 0.50 s after the first rank"
    )


def test_wait_for_a_rank_that_had_begun_counts() -> None:
    """Also if a rank that has no part in it begins meanwhile."""
    sources = [
        source(0, reduce(10, 80), collectives=(known({"0": (0, "0-1")}),)),
        source(1, reduce(85, 5), collectives=(known({"0": (0, "0-1")}),)),
        source(2, begin_ms=60),
    ]
    rows, _ = measure_ranks(sources, match_collectives(sources))
    assert (rows[0].waiting_s, rows[0].wall_s) == pytest.approx((0.075, 0.100))


def test_rank_that_ended_before_another_began_is_drawn() -> None:
    """Then there is no time that all ranks share, and the picture begins with the first one."""
    sources = [source(0, compute(0, 50)), source(1, begin_ms=100)]
    sources[1] = sources[1]._replace(trace=RankTrace(100 * MS, 150 * MS, recorded_until_ns=150 * MS))
    rows, span_s = measure_ranks(sources, {})
    assert span_s == pytest.approx(0.150)
    assert (rows[0].states[0], rows[1].states[0]) == ("compute", None)


def test_only_the_group_of_a_collective_is_waited_for() -> None:
    """Two groups of ranks run the same instruction; the ranks of one do not wait for those of the other."""
    sources = [
        source(0, reduce(0, 9), collectives=(known({"0": (0, "0-1")}),)),
        source(1, reduce(4, 5), collectives=(known({"0": (0, "0-1")}),)),
        source(2, reduce(50, 5), collectives=(known({"0": (1, "2-3")}),)),
        source(3, reduce(50, 5), collectives=(known({"0": (1, "2-3")}),)),
    ]
    rows, _ = measure_ranks(sources, match_collectives(sources))
    assert [round(1000 * row.waiting_s) for row in rows] == [4, 0, 0, 0]
    (collective,) = sum_collectives(sources, match_collectives(sources))
    assert (collective.label, collective.place, collective.count) == ("all-reduce f32[8] over x", "In [3], line 2", 1)
    assert collective.total_s == pytest.approx(0.009)
    assert collective.waiting_s == pytest.approx(0.004)


def test_rank_that_comes_last_is_named_if_it_does_so_mostly() -> None:
    """The last rank of most runs is named with its share; without one that stands out none is."""
    late = [source(0, reduce(0, 9), reduce(20, 9)), source(1, reduce(5, 4), reduce(25, 4))]
    (row,) = sum_collectives(late, match_collectives(late))
    assert row.last == "rank 1 (100%)"
    turns = [source(0, reduce(0, 9), reduce(25, 4)), source(1, reduce(5, 4), reduce(20, 9))]
    (row,) = sum_collectives(turns, match_collectives(turns))
    assert row.last == ""
    together = [source(0, reduce(0, 9)), source(1, reduce(0, 9))]
    (row,) = sum_collectives(together, match_collectives(together))
    assert row.last == ""
    alone = [source(0, reduce(0, 9))]
    (row,) = sum_collectives(alone, match_collectives(alone))
    assert (row.last, row.waiting_s, row.label) == ("", 0.0, "all-reduce")


def test_loop_is_not_computation_itself() -> None:
    """The event of a loop contains those of its operations, and would hide the collectives among them."""
    own = source(0, compute(0, 50, name="while.3"), compute(0, 10), reduce(10, 10))
    rows, _ = measure_ranks([own], match_collectives([own]))
    assert (rows[0].compute_s, rows[0].communication_s) == pytest.approx((0.010, 0.010))


def test_wait_for_agreement_is_waiting() -> None:
    """From the proposal of a launch to the agreement the rank waits for the others."""
    events = tuple(
        FlightEvent(number, time * MS, kind, 3, line=2, launch=1, program="jit(step)", participants="0-1")  # type: ignore[arg-type]
        for number, (time, kind) in enumerate([(10, "proposal"), (30, "agreement"), (31, "launch")], start=1)
    )
    own = source(0, flight=events)
    rows, _ = measure_ranks([own], {})
    assert (rows[0].waiting_s, rows[0].host_s) == pytest.approx((0.020, 0.080))
    shown = list(build_timeline([own], {}, cell_name="In [3]", code={}))
    waits = [event for event in shown if event["name"].startswith("waits for agreement")]
    assert [(event["ts"], event["dur"], event["args"]["line"]) for event in waits] == [(10_000.0, 20_000.0, 2)]
    assert [event["ts"] for event in shown if event["ph"] == "i"] == [31_000.0]


def test_time_without_a_profile_is_not_called_host_time() -> None:
    """From where the profile ends there are only the agreements; the rest of the time is not recorded."""
    events = tuple(
        FlightEvent(number, time * MS, kind, 3, launch=1, program="jit(step)", participants="0-1")  # type: ignore[arg-type]
        for number, (time, kind) in enumerate([(70, "proposal"), (80, "agreement")], start=1)
    )
    own = source(0, compute(0, 10), compute(45, 20), flight=events, recorded_until_ns=50 * MS)
    rows, _ = measure_ranks([own], {})
    assert (rows[0].compute_s, rows[0].host_s) == pytest.approx((0.015, 0.035))
    assert (rows[0].waiting_s, rows[0].unrecorded_s) == pytest.approx((0.010, 0.040))
    assert set(rows[0].states[-40:]) == {"not recorded"}


def test_programs_of_one_name_do_not_wait_for_each_other() -> None:
    """Where two programs cannot be told apart, their collectives have no waiting time, rather than a wrong one."""
    unclear = TracedCollective("jit_step", "all-reduce.1", "all-reduce", "", {}, is_ambiguous=True)
    sources = [
        source(rank, reduce(40 * rank, 9), reduce(40 * rank, 9, device=1), collectives=(unclear,)) for rank in (0, 1)
    ]
    rows, _ = measure_ranks(sources, match_collectives(sources))
    assert [row.waiting_s for row in rows] == [0.0, 0.0]
    (row,) = sum_collectives(sources, match_collectives(sources))
    assert (row.label, row.last) == ("all-reduce", "")


def test_runs_are_those_of_one_device() -> None:
    """Two devices of a rank run a collective together: that is one run, and the time of one device."""
    sources = [source(rank, reduce(10, 5), reduce(11, 4, device=1)) for rank in (0, 1)]
    (row,) = sum_collectives(sources, match_collectives(sources))
    assert row.count == 1
    assert row.total_s == pytest.approx(0.005)
    shown = build_timeline(sources, match_collectives(sources), cell_name="c", code={})
    assert "waits for device 1" in {event["name"] for event in shown if event["pid"] == 2}


def test_tracks_of_many_devices_are_different() -> None:
    """A rank may have hundreds of devices."""
    own = source(
        0, *(compute(0, 9, device=device) for device in range(300)), TraceEvent("host", "f", 0, MS, thread="t")
    )
    shown = [event for event in build_timeline([own], {}, cell_name="c", code={}) if event["ph"] == "X"]
    assert len({event["tid"] for event in shown}) == 302


def test_picture_has_the_state_that_takes_most_of_each_part() -> None:
    """Equal parts of the whole time, also before a rank began."""
    sources = [source(0, compute(0, 50)), source(1, compute(50, 50))]
    rows, _ = measure_ranks(sources, {})
    assert set(rows[0].states[:100]) == {"compute"}
    assert set(rows[0].states[-100:]) == {"host"}
    assert set(rows[1].states[-100:]) == {"compute"}


def test_rank_without_a_trace_has_its_problem() -> None:
    """A rank that died has no times, and the others are measured all the same."""
    gone = TraceSource(1, "host1", None, RankTrace(problem="no profile: it died"), (), 0)
    other = TraceSource(2, "host2", None, RankTrace(problem="no profile: it died"), (), 0)
    rows, _ = measure_ranks([source(0, compute(0, 5)), gone], {})
    assert (rows[1].wall_s, rows[1].problem) == (0.0, "no profile: it died")
    assert describe_problems([source(0), gone, other]) == ["ranks 1-2: no profile: it died"]
    cut = source(3, dropped_count=1200)
    assert describe_problems([cut])[0].startswith(
        "1,200 later events of rank 3 are left out, and their time counts as not recorded"
    )
    assert measure_ranks([gone], {})[1] == 0.0


def test_timeline_names_ranks_tracks_lines_and_collectives() -> None:
    """One process per rank, a track per device, the cell's lines with their text, and collectives by their names."""
    own = source(
        0,
        compute(5, 5, device=1),
        reduce(10, 20, device=1),
        TraceEvent("host", "PjitFunction(step)", 2 * MS, 3 * MS, thread="python"),
        collectives=(known({"1": (0, "0-1")}),),
        lines=((1, 1 * MS), (2, 40 * MS)),
    )
    late = source(1, reduce(25, 5), collectives=(known({"0": (0, "0-1")}),))
    sources = [own, late]
    shown = list(
        build_timeline(sources, match_collectives(sources), cell_name="In [3]", code={1: "  y = step(x)", 2: ""})
    )
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in shown if e["ph"] == "M" and "name" in e["args"]}
    assert names[1, 0] == "rank 0 (host0, pid 40)"
    assert {"cell", "lines of the cell", "device 1", "device 1 collectives", "host: python"} <= set(names.values())
    slices = {event["name"]: event for event in shown if event["ph"] == "X" and event["pid"] == 1}
    assert (slices["In [3]"]["ts"], slices["In [3]"]["dur"]) == (0.0, 100_000.0)
    assert (slices["line 1: y = step(x)"]["ts"], slices["line 1: y = step(x)"]["dur"]) == (1000.0, 39_000.0)
    assert slices["line 2"]["dur"] == 60_000.0
    cut = source(0, lines=((1, 0), (2, 40 * MS)), lines_until_ns=50 * MS)
    (last,) = [e for e in build_timeline([cut], {}, cell_name="c", code={}) if e["name"] == "line 2"]
    assert last["dur"] == 10_000.0
    collective = slices["all-reduce f32[8] over x"]
    assert collective["args"] == {"program": "jit_step", "instruction": "all-reduce.1", "line": "In [3], line 2"}
    wait = slices["waits for rank 1"]
    assert (wait["tid"], wait["ts"], wait["dur"]) == (collective["tid"], 10_000.0, 15_000.0)


def test_events_that_overlap_are_in_different_tracks() -> None:
    """In one track of Chrome's form an event is inside another, or at another time."""
    own = source(
        0, compute(0, 10, name="a"), compute(2, 3, name="b"), compute(5, 10, name="c"), compute(20, 1, name="d")
    )
    shown = [
        e for e in build_timeline([own], {0: []}, cell_name="c", code={}) if e["ph"] == "X" and e["name"] in "abcd"
    ]
    track = {event["name"]: event["tid"] for event in shown}
    assert track["a"] == track["b"] == track["d"] != track["c"]


def test_packed_trace_is_checked() -> None:
    """What a rank sends is checked when it is unpacked."""
    trace = source(0, compute(0, 5), reduce(5, 5), collectives=(known({"0": (0, "0-1")}),), lines=((1, 2),)).trace
    packed = pack_trace(trace)
    assert unpack_trace(packed) == trace
    for broken in (b"", packed[:-3], b"x" + packed, pack_trace(trace).replace(packed[10:12], b"\0\0")):
        with pytest.raises(ValueError, match=r"."):
            unpack_trace(broken)
