"""A running cell in a terminal, limited to the available height."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mhnb.core.output.results import CellResult, RankResult
from mhnb.types import Output, RankError
from mhnb.view.live.frame import format_running_text
from tests.support.view_samples import cell, out
from tests.unit.view.reports.test_hang import HANG, STOP_LINE, STOPPED

MANY = [out("".join(f"line {number}\n" for number in range(40)))]


def running(*ranks: list[Output] | RankResult) -> CellResult:
    """Return a cell that has been running for two seconds."""
    return cell(*ranks, done=False, wall_s=2.0)


def test_ranks_with_equal_output_share_their_last_lines() -> None:
    """Ranks with equal output share a block, as at the cell's end."""
    lines = format_running_text(running(MANY, MANY), height=24).splitlines()
    assert lines[0] == "ranks 0-1 · running 2.0 s"
    assert lines[1:] == [f"  line {number}" for number in range(28, 40)]


@pytest.mark.parametrize(("height", "each"), [(30, 12), (20, 6), (8, 3), (4, 1)])
def test_lower_height_shows_fewer_lines_per_block(height: int, each: int) -> None:
    """Each block gets fewer lines before anything is cut."""
    other = [out("".join(f"other {chr(97 + number % 26)}\n" for number in range(40)))]
    lines = format_running_text(running(MANY, other), height=height).splitlines()
    assert len(lines) == 1 + 2 * each
    assert lines[-1].endswith("other n")


def test_text_that_does_not_fit_is_cut_below_the_heading() -> None:
    """The last lines stay, because they may belong to a traceback or a hang report."""
    snapshot = running(*([out(word)] for word in "abcdefgh"))
    whole = format_running_text(snapshot, height=100).splitlines()
    assert format_running_text(snapshot, height=3).splitlines() == [whole[0], *whole[-2:]]
    assert whole[0] == "ranks 0-7 · running 2.0 s"
    assert whole[-1].endswith("h")
    assert format_running_text(snapshot, height=1) == "ranks 0-7 · running 2.0 s"


def test_cell_without_output_is_one_line() -> None:
    """A cell without output is one line that names the ranks it waits for."""
    snapshot = running(RankResult(0, "ok"), [])
    assert format_running_text(snapshot, height=24) == "ranks 0-1 · running 2.0 s · waiting for rank 1"


def test_failure_is_shown_while_others_run() -> None:
    """A failure is one line while other ranks run; its details follow at the end of the cell."""
    error = RankError("ValueError", "cannot reshape\nall of this", ())
    snapshot = running(RankResult(0, "error", (), error=error), [], RankResult(2, "error", (), error=error))
    assert format_running_text(snapshot, height=24).splitlines() == [
        "ranks 0-2 · running 2.0 s · waiting for rank 1",
        "✗ ranks 0,2: ValueError: cannot reshape",
    ]


def test_hang_report_is_below() -> None:
    """The hang report is shown below, unless something was printed recently and no rank waits."""
    snapshot = replace(running([], []), where=HANG)
    assert "missing" in format_running_text(snapshot, height=40)
    without_waiting_ranks = replace(snapshot, where=replace(HANG, waiting=(), absent=()))
    report_lines = [
        format_running_text(without_waiting_ranks, height=40, has_recent_output=talking).count("\n")
        for talking in (False, True)
    ]
    assert report_lines[0] > report_lines[1] == 0


def test_stop_in_the_debugger_is_one_line() -> None:
    """The groups of ranks are shown as usual, and one line below them, whether or not something was printed recently."""
    snapshot = replace(running([], [], [], []), where=STOPPED)
    for has_recent_output in (False, True):
        lines = format_running_text(snapshot, height=40, has_recent_output=has_recent_output).splitlines()
        assert lines == [
            "ranks 0-3 · running 2.0 s",
            "‖ rank 2 stopped · line 4   ◌ ranks 0-1,3 waiting · line 6",
            STOP_LINE,
        ]
