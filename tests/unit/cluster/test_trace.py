"""How a trace is collected: ranks that do not answer, Ctrl-C, clocks, profiles in parts. Real ranks: integration/ranks/test_trace.py."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mhnb.cluster import trace
from mhnb.cluster.trace import TracedCell, collect_trace
from mhnb.core.flight import FlightHeader, RankFlight
from mhnb.core.messages import RankReply
from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.stragglers import ClockOffsets
from mhnb.core.trace import RankTrace, pack_trace
from mhnb.system.trace import profile_path
from mhnb.types import RankInfo

MS = 1_000_000
PROFILE = bytes(range(256)) * 10
TRACE = RankTrace(0, 100 * MS, lines=((1, 0), (3, 50 * MS)), profile_nbytes=len(PROFILE), recorded_until_ns=100 * MS)


class Ranks:
    """Answers as two ranks do that have traced a cell.

    Args:
        broken: by rank, the value of the reply to `trace`, instead of a trace.
        interrupts_at: the request during which the user presses Ctrl-C.
    """

    process_count = 2

    def __init__(self, broken: dict[int, Any] | None = None, interrupts_at: str = "") -> None:
        self._broken, self._interrupts_at = broken or {}, interrupts_at
        self.released: list[int] = []

    def ask(
        self, rank: int, handler: str, arguments: dict[str, Any], payload: tuple[Any, ...] = ()
    ) -> Future[RankReply]:
        """Answer at once."""
        assert not payload
        if handler == self._interrupts_at:
            raise KeyboardInterrupt
        answer: Future[RankReply] = Future()
        if handler == "read_profile":
            data = PROFILE[arguments["start"] : arguments["stop"]]
            answer.set_result(RankReply(rank, 1, ok=True, value=None, payload=(data,)))
        elif handler == "release_trace":
            self.released.append(rank)
        elif rank in self._broken:
            answer.set_result(RankReply(rank, 1, ok=False, value=self._broken[rank]))
        else:
            answer.set_result(RankReply(rank, 1, ok=True, value=None, payload=(pack_trace(TRACE),)))
        return answer

    def ask_all(
        self,
        ranks: Iterable[int],
        handler: str,
        arguments: dict[str, Any],
        on_success: Callable[[], None] | None = None,
    ) -> dict[int, Future[RankReply]]:
        """Send the request to each rank."""
        assert on_success is None
        return {rank: self.ask(rank, handler, arguments) for rank in ranks}

    def interrupt_requests(self) -> None:
        """Do nothing, because every request is answered at once."""


def flight(rank: int, monotonic_ns: int) -> RankFlight:
    """Make a recording of a host whose clock began at some time before the same moment."""
    return RankFlight(rank, FlightHeader(rank, 1, 2, 77, f"host{rank}", f"clock{rank}", 1_000 * MS, monotonic_ns))


SAME_CLOCK = ({0: 0, 1: 0}, ClockOffsets({"a": 0}, {"a": "a"}, 0))
OTHER_CLOCKS = ({0: 0, 1: 0}, ClockOffsets({"a": 0, "b": 0}, {"a": "a", "b": "b"}, 0))
RESULT = CellResult(3, "x = 'a\x0cb'\n\ny = 2", (RankResult(0, "ok"), RankResult(1, "ok")), 0.1)
CELL = TracedCell(RESULT, 1, lambda: [RankInfo(rank, f"host{rank}") for rank in range(2)], list, lambda: SAME_CLOCK)


def test_profiles_are_fetched_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has all parts in their order, the ranks free their memory, and another trace of the cell has another name."""
    monkeypatch.setattr(trace, "_PART_NBYTES", 1000)
    ranks = Ranks()
    report = collect_trace(ranks, CELL, tmp_path, None)
    assert report.notes == ()
    assert [profile_path(Path(report.folder), "cell3", rank).read_bytes() for rank in (0, 1)] == [PROFILE, PROFILE]
    assert ranks.released == [0, 1]
    assert Path(collect_trace(ranks, CELL, tmp_path, None).path).name == "cell3-2.timeline.json.gz"


def test_lines_of_a_cell_end_with_a_line_feed_only(tmp_path: Path) -> None:
    """A form feed in a text is no new line, so the line after it has its own text."""
    report = collect_trace(Ranks(), CELL, tmp_path, None)
    with gzip.open(report.path, "rt") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"]}
    assert {"line 1: x = 'a\x0cb'", "line 3: y = 2"} <= names


def test_rank_that_does_not_answer_has_the_reason(tmp_path: Path) -> None:
    """The others have their times all the same."""
    reason = {"ename": "LookupError", "evalue": "this rank has no trace of cell 3 any more", "traceback": ""}
    report = collect_trace(Ranks({1: reason}), CELL, tmp_path, None)
    assert [row.wall_s > 0 for row in report.ranks] == [True, False]
    (note,) = report.notes
    assert note.startswith("rank 1: no profile: rank 1 could not answer 'trace': LookupError: this rank has no trace")
    assert report.path


@pytest.mark.parametrize(
    ("handler", "written"),
    [("trace", "nothing was written"), ("read_profile", "the timeline is written, but not all profiles are")],
)
def test_ctrl_c_ends_the_collection_and_not_more(tmp_path: Path, handler: str, written: str) -> None:
    """The cell's result is kept; a note says how far the collection came."""
    report = collect_trace(Ranks(interrupts_at=handler), CELL, tmp_path, None)
    assert report.notes == (f"Ctrl-C ended the collection of the trace: {written}",)
    assert bool(report.path) is (handler == "read_profile")


def test_error_of_mhnb_does_not_lose_the_result(tmp_path: Path) -> None:
    """It is a note that asks for a report."""

    def fail() -> list[RankInfo]:
        raise RuntimeError("no ranks")

    report = collect_trace(Ranks(), replace(CELL, describe_ranks=fail), tmp_path, None)
    assert report.notes == (
        "the trace could not be collected: internal error of mhnb, please report it: RuntimeError('no ranks')",
    )


def test_hosts_without_a_launch_in_common_are_compared_by_their_system_clocks(tmp_path: Path) -> None:
    """The clocks of two hosts began an hour apart, and the cell began at the same moment."""
    flights = [flight(0, 50 * MS), flight(1, 50 * MS + 3_600_000 * MS)]
    cell = replace(CELL, read_flights=lambda: flights, align_clocks=lambda: OTHER_CLOCKS)
    sources, notes = trace._make_sources(cell, {0: TRACE, 1: TRACE})
    assert [source.ahead_ns for source in sources] == [0, 3_600_000 * MS]
    (note,) = notes
    assert "the clocks of the hosts are the systems' own, which may differ" in note
    assert note in collect_trace(Ranks(), cell, tmp_path, None).notes


def test_clock_that_is_not_known_does_not_move_the_others() -> None:
    """Without a recording of the first rank, the next one's clock is the first; a note names the rank."""
    cell = replace(CELL, read_flights=lambda: [flight(1, 50 * MS)], align_clocks=lambda: OTHER_CLOCKS)
    sources, notes = trace._make_sources(cell, {0: TRACE, 1: TRACE})
    assert [source.ahead_ns for source in sources] == [0, 0]
    assert notes[1] == "the clock of rank 0 is not known: its times cannot be compared with the others"
