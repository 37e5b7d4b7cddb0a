"""The hang report as text and HTML."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mhnb.core.hang_report import HangReport, RankLocation, ThreadLocation
from mhnb.view.cell.html import View, format_cell_html
from mhnb.view.cell.text import format_cell_text
from mhnb.view.html import STATE_COLORS, RankLocations
from mhnb.view.live.frame import build_frame, frame_to_html
from mhnb.view.live.view import CellView
from mhnb.view.print_html import print_html, print_parts
from mhnb.view.print_text import print_text
from mhnb.view.reports.hang import build_hang, build_where, describe_stop
from tests.support.view_samples import RecordingScreen, StrictPage, cell, failed, out

STEP = RankLocation((0, 1, 3), "launch", "jit(step)", 4, "loss = step(params, batch)")
SLEEP = RankLocation((2,), "sleep", "sleep", 3, "batch = next(batches)", "data.py:31 read_shard")
HANG = HangReport(
    5, (0, 1, 3), (2,), "jit(step)", {0: 4, 1: 4, 2: 3, 3: 4}, 6.2, progress=False, known=True, stuck=True,
    places=(STEP, SLEEP),
)  # fmt: skip
STOPPED = HangReport(
    5, (0, 1, 3), (2,), "jit(f)", {0: 6, 1: 6, 2: 4, 3: 6}, 6.2, progress=False, known=True, stopped=(2,),
    places=(RankLocation((0, 1, 3), "agreement", "jit(f)", 6, "f(x)"), RankLocation((2,), "stopped", "", 4, "breakpoint()")),
)  # fmt: skip
STOP_LINE = "rank 2 is stopped in the debugger at line 4; ranks 0-1,3 wait for it: jit(f), line 6"


def test_hang_report_has_three_lines() -> None:
    """The lines show which ranks wait where, where the absent ranks are, and what the user can do."""
    assert print_text(build_hang(HANG, name="demo")).splitlines() == [
        "waiting 6.2 s · ranks 0-1,3 in jit(step), line 4:  loss = step(params, batch)",
        "missing       · rank 2 in sleep, data.py:31 read_shard ← line 3:  batch = next(batches)",
        "no progress · stop it with the stop button or %mhjax interrupt · mhnb where demo",
    ]


def test_stopped_cell_keeps_its_hang_report() -> None:
    """It is below the errors, in a fold of the stored HTML, and has no words on how to stop."""
    stopped = replace(cell(failed(0, "KeyboardInterrupt"), failed(2, "KeyboardInterrupt")), where=HANG)
    lines = [
        "where the ranks were when the cell was stopped",
        "waiting 6.2 s · ranks 0-1,3 in jit(step), line 4:  loss = step(params, batch)",
        "missing       · rank 2 in sleep, data.py:31 read_shard ← line 3:  batch = next(batches)",
    ]
    shown = [line.strip() for line in format_cell_text(stopped).splitlines()]
    assert [line for line in shown if line in lines] == lines
    page = StrictPage(format_cell_html(stopped))
    assert lines[0] in page.visible
    assert "data.py:31" not in page.visible
    assert "data.py:31" in page.text
    assert "stop it with" not in page.text
    assert lines[0] not in format_cell_text(replace(stopped, done=False))


def test_equal_locations_are_distinguished_by_launch_number() -> None:
    """Ranks on the same line are distinguished by the launch number, because a rank that lags is on that line too."""
    waiting, lagging = replace(STEP, ranks=(0, 1), number=7), replace(STEP, ranks=(2,), number=6)
    report = replace(HANG, waiting=(0, 1), places=(waiting, lagging))
    first, second, _ = print_text(build_hang(report)).splitlines()
    assert first == "waiting 6.2 s · ranks 0-1 in jit(step) (launch 7 of the cell), line 4:  loss = step(params, batch)"
    assert second.startswith("missing       · rank 2 in jit(step) (launch 6 of the cell), line 4:")


def test_compiling_ranks_are_reported_as_working() -> None:
    """Ranks that compile are not reported as hanging."""
    compiling = RankLocation((0, 1), "compiling", "", 7, "f(x)")
    report = HangReport(
        5, (), (), None, {0: 7, 1: 7}, 31.0, progress=False, known=True, stuck=True, places=(compiling,)
    )
    assert print_text(build_hang(report)).splitlines() == [
        "running 31 s · ranks 0-1 compiling, line 7:  f(x)",
        "ranks 0-1 working · stop it with the stop button or %mhjax interrupt",
    ]


def test_each_kind_of_absence_is_described() -> None:
    """A rank that ended, was not requested, or reports nothing has no line, but a description."""
    absent = (RankLocation((2,), "ended"), RankLocation((4,), "outside"), RankLocation((5,), "silent"))
    report = replace(HANG, absent=(2, 4), places=(STEP, *absent), waiting=(0, 1))
    lines = print_text(build_hang(report)).splitlines()
    assert [line.partition("· ")[2] for line in lines[1:4]] == [
        "rank 2 ended the cell",
        "rank 4 does not run this cell (--ranks)",
        "rank 5 reports nothing: it is suspended, or in a long native call",
    ]
    assert lines[4] == "elsewhere     · rank 3 in jit(step), line 4:  loss = step(params, batch)"
    assert [line.partition(" ")[0] for line in lines[1:4]] == ["missing", "", "unknown"]
    assert lines[5].startswith("rank 5: no report · ")


def test_threads_that_a_rank_waits_for_are_listed_below_it() -> None:
    """Each thread has its name and its line; equal threads share a line."""
    threads = (
        ThreadLocation("load", "sleep", "sleep", 2, "time.sleep(9)"),
        ThreadLocation("pool", "launch", "jit(f)", 3, "f(x)", count=2),
    )
    report = replace(HANG, places=(replace(STEP, ranks=(0, 1), threads=threads),), waiting=(0, 1), absent=())
    assert [line.partition("· ")[2] for line in print_text(build_hang(report)).splitlines()[1:3]] == [
        "  thread load in sleep, line 2:  time.sleep(9)",
        "  2 threads pool in jit(f), line 3:  f(x)",
    ]


def test_ranks_with_progress_are_named() -> None:
    """If only some ranks make progress, the report names them."""
    assert "rank 2 is making progress" in print_text(build_hang(replace(HANG, progress=True, moved=(2,))))


def test_report_before_the_second_sample_says_so() -> None:
    """A report requested in the first seconds says that there was no second sample yet."""
    assert "collecting status" in print_text(build_hang(replace(HANG, known=False)))


def test_a_long_line_is_cut() -> None:
    """A long line of the cell is cut, so that it does not run off the page."""
    report = replace(HANG, places=(replace(STEP, code="x" * 500), SLEEP))
    assert max(map(len, print_text(build_hang(report)).splitlines())) < 200


def _many_places(count: int) -> HangReport:
    places = tuple(replace(STEP, ranks=(rank,), line=rank + 1) for rank in range(count - 1))
    absent = replace(SLEEP, ranks=(count - 1,))
    return replace(HANG, waiting=tuple(range(count - 1)), absent=(count - 1,), places=(*places, absent))


def test_many_places_that_differ_in_the_line_share_a_row() -> None:
    """Above the limit, ranks that do the same in different lines are shown together; up to the limit each has its line."""
    rows = print_text(build_hang(_many_places(8), max_places=4)).splitlines()[:-1]
    assert rows == [
        "waiting 6.2 s · ranks 0-6 in jit(step), lines 1-7:  loss = step(params, batch)",
        "missing       · rank 7 in sleep, data.py:31 read_shard ← line 3:  batch = next(batches)",
    ]
    assert len(print_text(build_hang(_many_places(5), max_places=4)).splitlines()) == 6
    report = _many_places(8)
    other = replace(report, places=(replace(report.places[0], code="warm_up(params)"), *report.places[1:]))
    assert print_text(build_hang(other, max_places=4)).startswith("waiting 6.2 s · ranks 0-6 in jit(step), lines 1-7\n")
    numbered = replace(report, places=tuple(replace(place, number=3 + at) for at, place in enumerate(report.places)))
    assert "ranks 0-6 in jit(step) (launches 3-9 of the cell), lines 1-7:" in print_text(
        build_hang(numbered, max_places=4)
    )


def test_further_places_are_counted_and_shown_on_request() -> None:
    """At most so many places are shown for each heading, with the number of the others; without a limit all are shown."""
    report = _many_places(8)
    different = replace(report, places=tuple(replace(place, what=f"jit(f{place.ranks[0]})") for place in report.places))
    rows = print_text(build_hang(different, max_places=4)).splitlines()
    assert [row.partition(" · ")[2][:16] for row in rows[3:6]] == [
        "rank 3 in jit(f3",
        "… and 3 more pla",
        "rank 7 in jit(f7",
    ]
    assert "… and 3 more places: Where" in print_text(build_hang(different, max_places=4, where_all_are=": Where"))
    everything = print_text(build_hang(different))
    assert "more place" not in everything
    assert all(f"jit(f{rank})" in everything for rank in range(8))


def test_where_shows_every_place() -> None:
    """The button Where shows the places that the report had left out."""
    report = _many_places(8)
    different = replace(report, places=tuple(replace(place, what=f"jit(f{place.ranks[0]})") for place in report.places))
    snapshot = replace(cell(*[[]] * 8, wall_s=6.2, done=False), where=different)
    assert "jit(f6)" not in frame_to_html(build_frame(snapshot))
    assert "jit(f6)" in frame_to_html(build_frame(snapshot, expanded=True))


def test_where_is_a_table_and_its_text_is_the_hang_report() -> None:
    """The notebook shows a row for each place, the absent ranks in the error colour; terminals show the lines of the report."""
    document = build_where(HANG, name="demo")
    assert print_text(document) == print_text(build_hang(HANG, name="demo"))
    page = print_html(document)
    assert "demo · where the ranks are" in page
    _, *rows = page.split("<tr")
    seen = [[StrictPage(cell).text for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]
    assert [cells[:2] for cells in seen] == [
        ["state", "ranks"],
        ["waiting 6.2 s", "ranks 0-1,3"],
        ["missing", "rank 2"],
    ]
    assert ["mhnb-bad" in row for row in rows] == [False, False, True]
    shell = print_text(build_where(HANG, name="demo", is_shell=True))
    assert shell == print_text(build_hang(HANG, how_to_end="the stop button or Ctrl-C in its notebook"))


def test_absent_ranks_are_in_the_error_colour() -> None:
    """Each place is a row beside its heading, those of the absent ranks in the error colour; the command is not broken."""
    page = print_parts(build_hang(HANG, name="demo"))
    rows = page.split("<tr")[1:]
    assert ["mhnb-bad" in row for row in rows] == [False, True, False]
    assert ">missing</th>" in rows[1]
    assert '<span style="white-space:nowrap">mhnb where demo</span>' in rows[2]


def stopped_at(*lines: int | None) -> HangReport:
    """Return the report of a cell that is stopped on every rank, rank k at the k-th line."""
    ranks = tuple(range(len(lines)))
    return replace(
        STOPPED, waiting=(), absent=(), launch=None, lines=dict(enumerate(lines)), stopped=ranks,
        places=tuple(RankLocation((rank,), "stopped", "", line) for rank, line in enumerate(lines)),
    )  # fmt: skip


def test_report_of_a_stop_begins_with_a_sentence_about_it() -> None:
    """The sentence names the line, and who waits for the rank; the places follow, and no rank counts as missing."""
    assert print_text(build_hang(STOPPED, name="demo")).splitlines() == [
        STOP_LINE,
        "stopped       · rank 2 in the debugger, line 4:  breakpoint()",
        "waiting 6.2 s · ranks 0-1,3 in jit(f), line 6:  f(x)",
        "end the cell with the stop button or %mhjax interrupt · mhnb where demo",
    ]
    running = RankLocation((0, 1, 3), "computing", "", 5, "g(x)")
    report = replace(STOPPED, waiting=(), absent=(), places=(running, STOPPED.places[1]), progress=True, moved=(0,))
    assert print_text(build_hang(report)).splitlines() == [
        "rank 2 is stopped in the debugger at line 4",
        "stopped       · rank 2 in the debugger, line 4:  breakpoint()",
        "running 6.2 s · ranks 0-1,3 computing, line 5:  g(x)",
        "rank 0 is making progress · end the cell with the stop button or %mhjax interrupt",
    ]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ((4, 4), "ranks 0-1 are stopped in the debugger at line 4"),
        ((4, 7, 4), "ranks 0,2 are stopped in the debugger at line 4, rank 1 at line 7"),
        ((4, 7, 9, 2), "ranks 0-3 are stopped in the debugger at lines 2-9"),
        ((None,), "rank 0 is stopped in the debugger"),
        ((4, None), "ranks 0-1 are stopped in the debugger"),
    ],
)
def test_sentence_about_a_stop_has_the_lines(lines: tuple[int | None, ...], text: str) -> None:
    """Up to three different lines are named, of more the first and the last; none where a rank is in no line of the cell."""
    assert describe_stop(stopped_at(*lines)) == text


def test_sentence_about_a_stop_names_the_ranks_that_are_waited_for() -> None:
    """Other ranks may be waited for too, or instead; several waiting lines are a range."""
    report = replace(STOPPED, waiting=(0, 1), lines={0: 5, 1: 6, 2: 4, 3: 9})
    assert describe_stop(report).endswith("; ranks 0-1 wait for it: jit(f), lines 5-6")
    assert describe_stop(replace(report, absent=(2, 3))).endswith("; ranks 0-1 wait for ranks 2-3: jit(f), lines 5-6")
    both = replace(report, waiting=(0,), absent=(2, 3), stopped=(2, 3))
    assert describe_stop(both).endswith("; rank 0 waits for them: jit(f), line 5")
    assert "missing" not in print_text(build_hang(replace(report, absent=(2, 3))))


def test_sentence_about_a_stop_does_not_guess_who_waits() -> None:
    """It says so only of ranks that were sampled twice, and that are in a launch, not in a lock of their own."""
    alone = "rank 2 is stopped in the debugger at line 4"
    in_lock = RankLocation((0, 1, 3), "lock", "acquire", 6, "with lock:")
    in_thread = replace(in_lock, threads=(ThreadLocation("pool", "agreement", "jit(f)", 6),))
    assert describe_stop(replace(STOPPED, known=False)) == alone
    assert describe_stop(replace(STOPPED, absent=())) == alone
    assert describe_stop(replace(STOPPED, places=(in_lock, STOPPED.places[1]))) == alone
    assert describe_stop(replace(STOPPED, places=(in_thread, STOPPED.places[1]))) == STOP_LINE


def test_report_of_a_stop_has_no_colour_of_an_alarm() -> None:
    """Neither the colour of errors, nor the one beside a report of ranks that hang."""
    alarm, calm = print_parts(build_hang(HANG)), print_parts(build_hang(STOPPED))
    assert "mhnb-bad" in alarm
    assert "mhnb-bad" not in calm
    assert STATE_COLORS["waiting"] in alarm
    assert STATE_COLORS["waiting"] not in calm
    page = StrictPage(calm)
    assert page.unclosed == []
    assert page.visible.startswith(STOP_LINE)


def test_report_is_below_the_running_cell() -> None:
    """The live view shows the report once ranks hang, with the command that shows it in a terminal."""
    snapshot = replace(cell([out("step 3\n")], [out("step 3\n")], wall_s=6.2, done=False), where=HANG)
    page = StrictPage(frame_to_html(build_frame(snapshot, locations=RankLocations(cluster="demo"))))
    assert page.unclosed == []
    assert page.visible.index("step 3") < page.visible.index("waiting 6.2 s")
    assert "mhnb where demo" in page.visible


def test_stop_is_one_quiet_line_below_the_running_cell() -> None:
    """The live view shows the sentence, and the whole report only on request."""
    snapshot = replace(cell(*[[out("step 3\n")]] * 4, wall_s=6.2, done=False), where=STOPPED)
    html = frame_to_html(build_frame(snapshot, locations=RankLocations(cluster="demo")))
    page = StrictPage(html)
    assert page.unclosed == []
    assert page.visible.endswith(STOP_LINE)
    assert 'class="mhnb-bad"' not in html
    assert "mhnb where demo" not in page.visible
    asked = StrictPage(
        frame_to_html(build_frame(snapshot, locations=RankLocations(cluster="demo"), expanded=True))
    ).visible
    assert "rank 2 in the debugger, line 4:  breakpoint()" in asked
    assert "mhnb where demo" in asked


def test_cell_with_progress_shows_no_report() -> None:
    """Nothing is shown while the ranks make progress."""
    snapshot = replace(cell([], [], wall_s=6.2, done=False), where=replace(HANG, stuck=False))
    assert "waiting" not in StrictPage(frame_to_html(build_frame(snapshot))).text


def test_buttons_work_while_the_cell_runs() -> None:
    """The buttons appear after a second. Where shows or hides the report of a progressing cell; Interrupt interrupts the cell."""
    screen, interrupts = RecordingScreen(), []
    view = CellView(screen=screen)
    view.interrupt = lambda: interrupts.append(True)
    progressing = replace(
        cell([out("a\n")], [], wall_s=2.9, done=False), where=replace(HANG, stuck=False, progress=True)
    )
    view.update(replace(progressing, wall_s=0.2, where=None))
    (box,) = screen.boxes
    view.update(progressing)
    assert [frame.has_buttons for frame in box.frames] == [False, True]
    assert "waiting 6.2 s" not in box.values[-1]
    box.press("where")
    assert "waiting 6.2 s" in box.values[-1]
    box.press("where")
    assert "waiting 6.2 s" not in box.values[-1]
    box.press("interrupt")
    assert interrupts == [True]


def test_show_all_has_a_block_per_rank() -> None:
    """Ranks with equal output have a block each, until the user folds them again."""
    screen = RecordingScreen()
    view = CellView(screen=screen)
    view.update(cell(*[[out("a\n")]] * 3, wall_s=2.0, done=False))
    (box,) = screen.boxes
    box.press("all")
    assert [block.label for block in box.frames[-1].blocks] == ["rank 0", "rank 1", "rank 2"]
    box.press("fold")
    assert len(box.frames[-1].blocks) == 1


@pytest.mark.parametrize("kind", ["tabs", "grid"])
def test_tabs_and_grid_start_with_a_block_per_rank(kind: View) -> None:
    """The first view is the requested one; `fold` shows one block, and the button returns to the requested view."""
    screen = RecordingScreen()
    view = CellView(screen=screen, view=kind)
    view.update(cell(*[[out("a\n")]] * 3, wall_s=2.0, done=False))
    (box,) = screen.boxes
    for act, shown in (("", (3, kind)), ("fold", (1, "fold")), ("all", (3, kind))):
        box.press(act)
        assert (len(box.frames[-1].blocks), box.frames[-1].view) == shown


def test_a_click_after_the_end_changes_nothing() -> None:
    """A click that was under way when the cell ended changes nothing."""
    screen = RecordingScreen()
    view = CellView(screen=screen)
    running = replace(cell([out("a\n")], [], wall_s=0.9, done=False), where=HANG)
    view.update(running)
    view.update(running)
    view.finish(cell([out("a\n")], []))
    screen.boxes[0].press("where")
    assert screen.call_names == ["open", "replace"]
