"""The flight recorder's report and stragglers, and their chart."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

import pytest

from mhnb.core.flight import FlightEvent, FlightHeader, FlightReport, RankFlight, build_report
from mhnb.core.stragglers import RankDelays, Stragglers
from mhnb.view.document import Line
from mhnb.view.drawings.delays import draw_delays
from mhnb.view.print_text import print_text
from mhnb.view.reports.flight import build_flight, build_flights, build_stragglers

HEADER = FlightHeader(0, 1, 2, 77, "alpha", "clock", 1_000_000_000_000_000_000, 0)
MS = 1_000_000


def event(number: int, kind: str, **fields: object) -> FlightEvent:
    """Make an event of cell 3."""
    return FlightEvent(number, 250 * MS * number, kind, **({"cell": 3} | fields))  # type: ignore[arg-type]


def launch(number: int, kind: str = "launch", **fields: object) -> FlightEvent:
    """Make an event of a launch of ranks 0-1."""
    given = {"line": 7, "launch": 1, "fingerprint": 9, "program": "jit(step)", "participants": "0-1"}
    return event(number, kind, **(given | fields))


BEGIN = event(1, "cell", program="In [5] lockstep")


@pytest.fixture
def report() -> FlightReport:
    """Rank 0 waits for a launch that rank 1 did not reach."""
    waits = RankFlight(0, HEADER, (BEGIN, launch(2), launch(3, "proposal", launch=2, line=8)))
    ended = RankFlight(1, HEADER, (BEGIN, launch(2), event(3, "end", program="ok")), is_torn=True)
    return build_report("main", [waits, ended])


def test_text_has_the_difference_and_the_last_events(report: FlightReport) -> None:
    """The first difference comes first, with what each side did; then a row for each rank."""
    lines = print_text(build_flight(report)).splitlines()
    assert lines[:4] == [
        "main · flight recorder · 2 ranks · 6 events",
        "first difference: In [5], launch 2 of ranks 0-1",
        "  rank 0: waited for agreement on jit(step), line 8",
        "  rank 1: had not reached it; last: ended the cell (ok)",
    ]
    assert "rank 1: the last event was only partly written, and is left out" in lines
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[-3:]]
    assert rows[0] == ["rank", "time", "event", "cell", "line", "launch", "program", "ranks"]
    assert [rows[1][0], *rows[1][2:]] == ["0", "proposal", "In [5]", "8", "2", "jit(step)", "0-1"]
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.750", rows[1][1])
    assert Line("first difference: In [5], launch 2 of ranks 0-1", "bad") in build_flight(report)


def test_first_and_last_difference_are_shown() -> None:
    """The last difference is what a hang came from, and the first one may be an old refusal."""
    begins = [event(number, "cell", cell=number, program="lockstep") for number in (1, 2, 3)]
    flights = [
        RankFlight(rank, HEADER, tuple(e for b in begins for e in (b, launch(b.number, cell=b.cell, fingerprint=rank))))
        for rank in (0, 1)
    ]
    lines = print_text(build_flight(build_report("main", flights))).splitlines()
    assert [line for line in lines if "cell" in line][:3] == [
        "first difference: cell 1, launch 1 of ranks 0-1",
        "… and in 1 other cell",
        "last difference: cell 3, launch 1 of ranks 0-1",
    ]


def test_cell_that_has_not_ended_is_no_difference_yet() -> None:
    """A rank that has not ended the cell may yet reach the launch of the others."""
    waits = RankFlight(0, HEADER, (BEGIN, launch(2), launch(3, "proposal", launch=2, line=8)))
    report = build_report("main", [waits, RankFlight(1, HEADER, (BEGIN, launch(2)))])
    assert print_text(build_flight(report)).splitlines()[1:4] == [
        "In [5] has not ended. At launch 2 of ranks 0-1:",
        "  rank 0: waited for agreement on jit(step), line 8",
        "  rank 1: had not reached it; last: launched jit(step), line 7",
    ]


def test_ranks_in_step_are_said_to_be(report: FlightReport) -> None:
    """Without a difference one sentence says so."""
    same = build_report("main", [RankFlight(rank, HEADER, (BEGIN, launch(2))) for rank in (0, 1)])
    assert "the ranks launched the same programs, as far as they are recorded" in print_text(build_flight(same))


def test_what_is_missing_is_mentioned() -> None:
    """Cells without a guard, and ranks without a recording, have a line."""
    flights = [
        RankFlight(0, HEADER, tuple(event(n, "cell", cell=n, program=f"In [{n}] off") for n in range(1, 9))),
        RankFlight(1, problem="its recording is on another machine"),
    ]
    text = print_text(build_flight(build_report("main", flights)))
    names = "In [1], In [2], In [3], In [4], In [5] and 3 more"
    assert f"launches of {names} were not recorded (--guard off)" in text
    assert "rank 1: its recording is on another machine" in text


def test_events_of_one_rank_are_listed() -> None:
    """The last 40 events are listed, and the file is named that has the others."""
    events = tuple(launch(number, launch=number) for number in range(1, 51))
    report = build_report("main", [RankFlight(0, HEADER, events), RankFlight(1, problem="lost")])
    lines = print_text(build_flights(report, [0])).splitlines()
    assert lines[0] == "rank 0 · 50 events · 10 earlier events: --json FILE"
    assert len(lines) == 42
    assert print_text(build_flights(report, [1])) == "rank 1: lost"


# -- stragglers


def make_stragglers(named: tuple[int, ...] = (1,)) -> Stragglers:
    """Three launches of two ranks, at two of which rank 1 came 50 ms later."""
    rows = (RankDelays(1, 3, 2, 2, 0.1, 0.5, 0.05), RankDelays(0, 3, 1, 0, 0.001, 0.005, 0.001))
    delays = {0: (0.0, 0.0, 0.001), 1: (0.05, 0.05, 0.0)}
    return Stragglers(3, 0.2, rows, named, delays, cell_name="In [5]")


def test_stragglers_as_text() -> None:
    """The rank that stands out has a sentence, and every rank a row with a bar of its share."""
    assert print_text(build_stragglers(make_stragglers())).splitlines() == [
        "In [5] · 3 launches of several ranks in 0.20 s",
        "rank 1 came last at 2 of 3 launches; the others waited 0.1 s, 50% of the time",
        "rank  came last  others waited  share  longest",
        "   1     2 of 3         0.10 s    50%    50 ms  ████████████",
        "   0     1 of 3         1.0 ms     0%   1.0 ms  ▏",
    ]


def test_no_rank_stands_out() -> None:
    """Then the sentence says so, and there is no chart."""
    assert print_text(build_stragglers(make_stragglers(()))).splitlines()[1] == "no rank stands out"
    assert draw_delays(make_stragglers(())) == ""


def test_chart_is_accessible_and_marks_the_late_rank() -> None:
    """The chart is well-formed, has a text for those who do not see it, and a title on each line."""
    chart = ET.fromstring(draw_delays(make_stragglers()))  # noqa: S314  # our own text
    assert chart.get("role") == "img"
    assert chart.get("aria-label") == "Delay of each rank at 3 launches, from 0 to 50 ms. The table above has the sums."
    lines = {line[0].text: line for line in chart.iter() if line.tag == "polyline"}
    assert lines.keys() == {"rank 0", "rank 1"}
    assert (lines["rank 0"].get("class"), lines["rank 1"].get("class")) == (None, "mhnb-bad")
    # The late rank is drawn last, above the others.
    assert list(lines)[-1] == "rank 1"
    labels = {text.text: text.get("class") for text in chart.iter("text")}
    assert (labels["rank 1"], labels["the others"]) == ("mhnb-bad", None)


@pytest.mark.parametrize("count", [1, 2, 200, 201, 1024])
def test_long_cells_are_drawn_with_their_worst_delays(count: int) -> None:
    """However many launches there are, at most 200 points are drawn, and none of the longest delays is lost."""
    delays = {0: (0.0,) * count, 1: tuple(1.0 if number == count // 2 else 0.0 for number in range(count))}
    chart = draw_delays(Stragglers(count, 1.0, (), (1,), delays))
    points = re.findall(r'points="([^"]*)"', chart)
    assert all(len(line.split()) <= 200 for line in points)
    assert any(pair.endswith(",2.0") for pair in points[1].split())


def test_ranks_that_took_no_part_have_gaps() -> None:
    """A launch without a rank has no point in its line, and no delay at all draws nothing."""
    nan = float("nan")
    chart = draw_delays(Stragglers(2, 1.0, (), (1,), {0: (0.0, nan), 1: (0.5, 0.0)}))
    assert [len(line.split()) for line in re.findall(r'points="([^"]*)"', chart)] == [1, 2]
    assert draw_delays(Stragglers(1, 1.0, (), (1,), {0: (0.0,), 1: (0.0,)})) == ""


def test_left_out_launches_and_errors_are_mentioned() -> None:
    """What the table cannot show is said: the error of the clocks, and older launches."""

    @dataclass
    class _Case:
        stragglers: Stragglers
        said: str

    base = make_stragglers()
    for case in (
        _Case(Stragglers(3, 0.2, base.ranks, clock_error_s=0.0021), "times of different hosts may be wrong by 2.1 ms"),
        _Case(Stragglers(3, 0.2, base.ranks, dropped_count=7), "7 earlier launches are left out"),
    ):
        assert case.said in print_text(build_stragglers(case.stragglers))
