"""The states of the ranks while a cell runs: as chips, as words beside the heading, and rank by rank."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mhnb.core.hang_report import HangReport, RankLocation
from mhnb.core.output.results import CellResult, RankResult
from mhnb.types import Outcome
from mhnb.view.html import RankLocations
from mhnb.view.live import strip
from mhnb.view.live.frame import build_frame, format_running_text, frame_parts, frame_to_html
from mhnb.view.live.strip import (
    MAX_EACH,
    MAX_STRIP_LINES,
    StatusItem,
    _count_lines,
    build_strip,
    format_each_html,
    is_unusual,
)
from tests.support.view_samples import StrictPage, cell, failed, out, with_ranks_at_different_lines, with_states
from tests.unit.view.reports.test_hang import HANG, STOPPED


def texts(snapshot: CellResult) -> list[str]:
    """Return the chips as text."""
    return [item.text for item in build_strip(snapshot)]


def test_ranks_are_grouped_by_state_the_absent_first() -> None:
    """A chip has its ranks, a sign beside its colour, state, line, time and memory; what needs attention comes first."""
    report = HangReport(
        1, (1, 2, 5), (4,), launch="jit(f)", lines={0: None, 1: 4, 2: 4, 4: 7, 5: 4}, age_s=3.0, progress=False,
        places=(RankLocation((1, 2, 5), "launch", "jit(f)"), RankLocation((4,), "computing")),
        memory_nbytes={1: 2**28, 2: 2**28, 4: 2**29, 5: 2**27}, stuck=True,
    )  # fmt: skip
    running = replace(cell(RankResult(0, "ok", wall_s=1.5), [], [], failed(3), [], [], done=False), where=report)
    assert texts(running) == [
        "! rank 4 missing · line 7 · 512.0 MiB",
        "✗ rank 3 failed · 0 ms",
        "◌ ranks 1-2,5 waiting · line 4 · up to 256.0 MiB",
        "✓ rank 0 ended · 1.5 s",
    ]
    assert [item.kind for item in build_strip(running)] == ["absent", "failed", "waiting", "ended"]
    assert [item.details for item in build_strip(running)][2] == "memory 128.0 MiB to 256.0 MiB"


@pytest.mark.parametrize("count", [2, 16, 64, 512])
def test_one_state_is_one_chip(count: int) -> None:
    """The number of chips does not depend on the number of ranks, nor on their memory and time."""
    ranks = [RankResult(rank, "ok" if rank % 2 else "running", wall_s=rank / 10) for rank in range(count)]
    report = replace(HANG, waiting=(), absent=(), places=(), lines=dict.fromkeys(range(count), 4))
    report = replace(report, memory_nbytes={rank: rank * 2**20 for rank in range(count)})
    strip = build_strip(replace(cell(*ranks, done=False), where=report))
    assert [item.state for item in strip] == ["running", "ended"]
    assert all(len(item.label) <= 40 for item in strip)


def test_many_lines_of_one_state_share_a_chip() -> None:
    """Up to three lines have a chip each; ranks at more lines share one with the first and the last line."""
    three, many = (with_ranks_at_different_lines(count, state="running") for count in (3, 9))
    assert texts(three) == [f"● rank {rank} running · line {rank + 1}" for rank in range(3)]
    assert texts(many) == ["● ranks 0-8 running · lines 1-9"]


def test_rank_that_ended_without_the_others_is_absent() -> None:
    """Others wait for it, so its end is not a quiet one; one that is not missed has just ended."""
    report = replace(HANG, waiting=(0, 1), absent=(2,), places=(), lines={0: 4, 1: 4})
    ranks = (RankResult(0, "running"), RankResult(1, "running"), RankResult(2, "ok"), RankResult(3, "ok"))
    strip = build_strip(replace(cell(*ranks, done=False), where=report))
    assert [(item.label, item.state) for item in strip] == [
        ("rank 2", "missing"),
        ("ranks 0-1", "waiting"),
        ("rank 3", "ended"),
    ]


def test_without_a_hang_nobody_is_absent() -> None:
    """While ranks make progress, or were not looked at twice, it is a guess who waits for whom."""
    report = replace(HANG, stuck=False)
    assert {item.state for item in build_strip(replace(cell(*[[]] * 4, done=False), where=report))} == {"running"}


def test_stopped_rank_comes_first_and_nobody_is_missing() -> None:
    """The chip has its own word, sign and colour; the others wait, although the hang report is not shown by itself."""
    snapshot = replace(cell(*[[]] * 4, done=False), where=STOPPED)
    assert texts(snapshot) == ["‖ rank 2 stopped · line 4", "◌ ranks 0-1,3 waiting · line 6"]
    assert [item.kind for item in build_strip(snapshot)] == ["stopped", "waiting"]
    page = StrictPage(format_each_html(snapshot, RankLocations()))
    assert page.text.startswith("rankstateline2‖ stopped4")
    sampled_once = replace(snapshot, where=replace(STOPPED, known=False))
    assert texts(sampled_once) == ["‖ rank 2 stopped · line 4", "● ranks 0-1,3 running · line 6"]


def test_every_colour_of_a_chip_is_in_the_style_sheet() -> None:
    """A kind without a rule would have the colour of none."""
    css = (Path(strip.__file__).parent / "panel.css").read_text()
    kinds = {state.kind for state in strip._STATES} - {"off"}
    assert {kind for kind in kinds if f".mhnb-panel .mhnb-{kind} {{" not in css} == set()


def test_rank_that_reports_nothing_is_unknown() -> None:
    """Nothing is known of a halted rank, so it does not count as running."""
    assert texts(with_ranks_at_different_lines(1, state="silent")) == ["? rank 0 unknown · line 1"]


@pytest.mark.parametrize("count", [16, 64, 256])
def test_strip_of_ranks_at_different_lines_and_states_stays_small(count: int) -> None:
    """The chips take few lines, and still name a state's lines."""
    strip = build_strip(with_states(count))
    assert _count_lines(strip) <= MAX_STRIP_LINES
    assert len({item.state for item in strip}) == 9
    assert "missing" in strip[0].text
    assert "line" in strip[0].text


def test_every_outcome_has_a_state() -> None:
    """Each outcome of a rank has a chip with a word and a sign."""
    outcomes: tuple[Outcome, ...] = ("running", "ok", "error", "interrupted", "skipped", "died", "killed", "refused")
    strip = build_strip(cell(*[RankResult(rank, outcome) for rank, outcome in enumerate(outcomes)], done=False))
    assert sorted(item.label for item in strip) == [f"rank {rank}" for rank in range(8)]
    assert [item.state for item in strip] == [
        "failed", "died", "killed", "refused", "running", "interrupted", "ended", "not asked",
    ]  # fmt: skip


def test_without_anything_unusual_the_heading_says_it() -> None:
    """Ranks that all work at the same line need no chips; ranks that differ, or wait, do."""
    report = replace(HANG, waiting=(), absent=(), stuck=False, lines={0: 4, 1: 4}, places=())
    running = cell([], [], done=False, wall_s=6.2)
    calm = replace(running, where=replace(report, memory_nbytes={0: 2**20, 1: 2**21}))
    frame = build_frame(calm)
    assert (frame.strip, frame.heading) == ((), "ranks 0-1 · running 6.2 s · line 4 · up to 2.0 MiB")
    assert format_running_text(calm, height=9) == frame.heading
    computing = replace(running, where=replace(report, places=(RankLocation((0, 1), "computing"),)))
    assert build_frame(computing).heading == "ranks 0-1 · running 6.2 s · computing · line 4"
    waits = replace(report, waiting=(0, 1), stuck=True, places=(RankLocation((0, 1), "launch", "jit(step)", 4),))
    waiting = replace(running, where=waits)
    assert [item.state for item in build_frame(waiting).strip] == ["waiting"]
    assert not is_unusual(())


def test_heading_does_not_repeat_the_strip() -> None:
    """Which ranks still run is in the chips; without them it is in the heading."""
    frame = build_frame(cell(RankResult(0, "ok", wall_s=0.5), [], done=False, wall_s=2.0))
    assert frame.heading == "ranks 0-1 · running 2.0 s"
    assert [item.text for item in frame.strip] == ["● rank 1 running", "✓ rank 0 ended · 0.50 s"]
    assert json.loads(frame_parts(frame)["strip"])[0]["label"] == "rank 1"


def test_terminal_has_the_same_groups() -> None:
    """The groups are one line below the output, unless the hang report has the same ranks with more of each."""
    ranks = (RankResult(0, "ok", wall_s=0.5), RankResult(1, "running", (out("a\n"),)))
    report = replace(HANG, waiting=(), absent=(), places=(), lines={1: 4}, stuck=False)
    running = replace(cell(*ranks, done=False, wall_s=6.2), where=report)
    lines = format_running_text(running, height=9).splitlines()
    assert lines[0] == "ranks 0-1 · running 6.2 s"
    assert lines[-1] == "● rank 1 running · line 4   ✓ rank 0 ended · 0.50 s"
    hanging = format_running_text(replace(running, where=replace(HANG)), height=9)
    assert "●" not in hanging
    assert "missing" in hanging


def test_html_without_the_widget_has_the_same_groups() -> None:
    """Where mhnb's own widget cannot be shown, the chips are one line of text."""
    frame = build_frame(cell(RankResult(0, "ok", wall_s=0.5), [], done=False, wall_s=2.0), expanded=True)
    page = StrictPage(frame_to_html(frame))
    assert "● rank 1 running   ✓ rank 0 ended · 0.50 s" in page.visible
    assert page.unclosed == []


def test_each_rank_is_listed_on_request() -> None:
    """Where shows a row for each rank with its host; a column without any value is left out."""
    report = replace(HANG, memory_nbytes={rank: 2**20 * (rank + 1) for rank in range(4)})
    snapshot = replace(cell([], [], [], [], done=False, wall_s=6.2), where=report)
    locations = RankLocations({rank: f"host{rank}" for rank in range(4)})
    assert build_frame(snapshot, locations).each_html == ""
    html = build_frame(snapshot, locations, expanded=True).each_html
    cells = html.replace("</tr>", "\n").replace("</th>", "|</th>").replace("</td>", "|</td>")
    assert re.sub("<.*?>", "", cells).splitlines()[:3] == [
        "rank|host|state|line|memory|",
        "2|host2|! missing|3|3.0 MiB|",
        "0|host0|◌ waiting|4|1.0 MiB|",
    ]


def test_list_of_ranks_is_limited() -> None:
    """Of very many ranks the others are named, because the list is sent again when it changes."""
    page = StrictPage(format_each_html(cell(*[[]] * 300, done=False), RankLocations()))
    assert page.text.endswith(f"… and ranks {MAX_EACH}-299")


def test_label_names_some_of_many_ranks() -> None:
    """A label that would be long has the first and the last ranks and their number; the tooltip has all."""
    ranks = [RankResult(rank, "ok" if rank % 2 else "running") for rank in range(64)]
    chip: StatusItem = build_strip(cell(*ranks, done=False))[0]
    assert chip.label == "32 ranks 0,2,4,6…62"
    assert chip.details.startswith("ranks 0,2,4,6,8,10,")
