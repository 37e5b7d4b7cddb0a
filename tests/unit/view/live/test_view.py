"""One cell on the screen: when a widget opens, and that no widget remains."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from mhnb.core.hang_report import HangReport
from mhnb.core.output.results import CellResult
from mhnb.view.cell.html import View
from mhnb.view.live import view as live
from mhnb.view.live.view import CellView
from tests.support.view_samples import RecordingScreen, StrictPage, cell, failed, out, waiting_cell
from tests.unit.view.reports.test_hang import HANG, STOP_LINE, STOPPED

FINISHED = cell([out("a\n")], [out("b\n")])
RUNNING = cell([out("a\n")], [], done=False, wall_s=0.2)


def make_view(screen: RecordingScreen, *, view: View = "fold", quiet: bool = False, badge: bool = False) -> CellView:
    """Return a view of one cell."""
    return CellView(view=view, quiet=quiet, badge=badge, screen=screen, uid="u")


def test_a_short_cell_shows_its_static_form_once() -> None:
    """No widget opens before 150 ms."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.update(cell([out("a")], done=False, wall_s=0.149))
    view.finish(FINISHED)
    assert screen.call_names == ["show"]
    assert set(screen.calls[0][1]) == {"text/html", "text/plain"}


def test_long_cell_opens_one_widget_and_replaces_it() -> None:
    """The widget is closed, and its display contains only HTML and text."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.update(RUNNING)
    view.update(cell([out("a\nc\n")], [], done=False, wall_s=0.3))
    view.finish(FINISHED)
    assert screen.call_names == ["open", "replace"]
    assert set(screen.calls[-1][1]) == {"text/html", "text/plain"}
    assert {display_id for _, _, display_id in screen.calls} == {"u"}
    assert [len(box.values) for box in screen.boxes] == [2]
    assert screen.boxes[0].closed


def test_an_update_that_changes_nothing_is_not_sent() -> None:
    """Equal HTML is not sent again."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.update(RUNNING)
    view.update(RUNNING)
    assert len(screen.boxes[0].values) == 1


def test_page_that_was_loaded_during_a_cell_asks_for_its_end() -> None:
    """A file may contain the widget of a cell that had a placeholder, so the widget is kept, and shows the end to who asks."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.update(RUNNING)
    view.update(cell([out("a\n")], [], done=False, wall_s=1.1))
    view.finish(FINISHED)
    (box,) = screen.boxes
    assert (box.retired, box.closed, box.ends) == (True, False, [])
    view.show_late(FINISHED)
    assert box.ends == []
    box.press("end")
    assert "ranks 0-1 · 0.21 s" in box.ends[0]
    assert "%mhjax show 12" in StrictPage(box.ends[0]).visible
    view.show_late(replace(cell([out("a\nlate\n")], [out("b\n")]), execution_count=7))
    assert "late" in box.ends[1]
    assert "%mhjax show In[7]" in StrictPage(box.ends[1]).visible


def test_widget_of_a_cell_that_failed_to_draw_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text that replaces it is not what a page would ask for."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.update(RUNNING)
    view.update(cell([out("a\n")], [], done=False, wall_s=1.1))
    monkeypatch.setattr(live, "format_cell_html", lambda *_, **__: 1 / 0)
    view.finish(FINISHED)
    assert (screen.boxes[0].retired, screen.boxes[0].closed) == (False, True)


WAITING = waiting_cell()


def test_cell_that_waits_shows_one_line_for_what() -> None:
    """The line is replaced each second, and is gone once the cell runs, also if the cell is silent."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.update(WAITING)
    view.update(waiting_cell("waiting for cell 11 to end (ranks 0-1 running 13 s)"))
    assert [(name, display_id) for name, _, display_id in screen.calls] == [("show", "u-wait"), ("replace", "u-wait")]
    assert StrictPage(screen.calls[0][1]["text/html"]).visible == WAITING.waiting
    assert screen.calls[1][1]["text/plain"].endswith("13 s)")
    view.finish(cell([], []))
    assert screen.calls[2:] == [("replace", {"text/html": "", "text/plain": ""}, "u-wait")]


def test_line_about_the_wait_is_replaced_by_the_live_view() -> None:
    """It is removed before the widget opens, and only once."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.update(WAITING)
    view.update(RUNNING)
    view.finish(FINISHED)
    assert [(name, display_id) for name, _, display_id in screen.calls] == [
        ("show", "u-wait"), ("replace", "u-wait"), ("open", "u"), ("replace", "u"),
    ]  # fmt: skip


@pytest.mark.parametrize("terminal", [True, False])
def test_line_about_the_wait_leaves_nothing_in_text(terminal: bool) -> None:  # noqa: FBT001
    """A terminal shows it in a region that closes; a file, from which nothing can be removed, gets no line."""
    screen = RecordingScreen(rich=False, terminal=terminal)
    view = make_view(screen)
    view.update(WAITING)
    view.update(WAITING)
    assert [region.texts for region in screen.regions] == ([[WAITING.waiting] * 2] if terminal else [])
    with suppress(KeyboardInterrupt), view:
        raise KeyboardInterrupt
    assert [region.closed for region in screen.regions] == ([True] if terminal else [])
    assert screen.written == []


@pytest.mark.parametrize("kind", ["tabs", "grid"])
def test_tabs_are_live_from_the_start(kind: View) -> None:
    """A user who requests tabs or a grid sees them immediately."""
    screen = RecordingScreen()
    make_view(screen, view=kind).update(cell([], done=False, wall_s=0.0))
    assert screen.call_names == ["open"]


def test_silent_cell_shows_nothing() -> None:
    """A cell without output creates no display."""
    screen = RecordingScreen()
    make_view(screen).finish(cell([], []))
    assert screen.call_names == []


def test_end_of_a_silent_cell_replaces_its_widget() -> None:
    """An opened display keeps no widget and does not stay empty: it shows that the cell has ended, and its duration."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.update(RUNNING)
    view.finish(cell([], []))
    assert screen.call_names == ["open", "replace"]
    assert screen.calls[-1][1]["text/plain"] == "mhjax · ranks 0-1 · 0.21 s"
    assert "ranks 0-1 · 0.21 s" in StrictPage(screen.calls[-1][1]["text/html"]).visible


def test_a_badge_is_shown_for_a_silent_cell() -> None:
    """Auto mode shows where a plain cell ran."""
    screen = RecordingScreen()
    make_view(screen, badge=True).finish(cell([], []))
    assert "mhjax · ranks 0-1" in screen.calls[0][1]["text/plain"]


@pytest.mark.parametrize(("result", "names"), [(FINISHED, []), (cell([out("a")], failed(1)), ["show"])])
def test_quiet_shows_only_errors(result: CellResult, names: list[str]) -> None:
    """`--quiet` opens no widget, says nothing about a wait, and shows the cell only if it failed."""
    screen = RecordingScreen()
    view = make_view(screen, quiet=True)
    view.update(WAITING)
    view.update(RUNNING)
    view.finish(result)
    assert screen.call_names == names


def test_without_widgets_only_the_static_form_is_shown() -> None:
    """If ipywidgets is missing, the cell is shown at its end."""
    screen = RecordingScreen(widgets=False)
    view = make_view(screen)
    view.update(RUNNING)
    view.finish(FINISHED)
    assert screen.call_names == ["show"]


def test_a_terminal_gets_text_at_the_end() -> None:
    """A terminal has no displays, only one text."""
    screen = RecordingScreen(rich=False)
    view = make_view(screen)
    view.update(RUNNING)
    view.finish(FINISHED)
    assert screen.call_names == []
    assert [text.splitlines()[0] for text in screen.written] == ["ranks 0-1 · 0.21 s · 2 different outputs"]


def test_long_cell_is_redrawn_in_a_terminal() -> None:
    """The text is redrawn in one region, which is removed before the final text is printed."""
    screen = RecordingScreen(terminal=True)
    view = make_view(screen)
    view.update(cell([out("a")], [], done=False, wall_s=0.149))
    assert screen.regions == []
    view.update(RUNNING)
    view.update(cell([out("a\nc\n")], [], done=False, wall_s=0.3))
    (region,) = screen.regions
    assert [text.splitlines()[0] for text in region.texts] == [
        "ranks 0-1 · running 0.20 s",
        "ranks 0-1 · running 0.30 s",
    ]
    assert "c" in region.texts[1]
    assert (region.closed, screen.written) == (False, [])
    view.finish(FINISHED)
    assert region.closed
    assert [text.splitlines()[0] for text in screen.written] == ["ranks 0-1 · 0.21 s · 2 different outputs"]


# -- while the user types to the debugger


def test_terminal_is_not_redrawn_while_suspended() -> None:
    """The region is removed, so that a typed line is not overwritten; the next one is opened after `resume`."""
    screen = RecordingScreen(terminal=True)
    view = make_view(screen)
    view.update(RUNNING)
    view.suspend()
    assert screen.regions[0].closed
    view.update(cell([out("a\nc\n")], [], done=False, wall_s=60.0))
    view.update(WAITING)
    view.suspend()
    assert len(screen.regions) == 1
    view.resume()
    view.resume()
    assert len(screen.regions) == 1
    view.update(cell([out("a\nc\n")], [], done=False, wall_s=61.0))
    assert [region.closed for region in screen.regions] == [True, False]
    assert screen.regions[1].texts[0].startswith("ranks 0-1 · running 1 min 1 s")
    view.finish(FINISHED)
    assert screen.regions[1].closed


def test_terminal_opens_no_region_while_suspended() -> None:
    """A rank may stop before anything was drawn; the line about a wait is removed too."""
    screen = RecordingScreen(terminal=True)
    view = make_view(screen)
    view.update(WAITING)
    view.suspend()
    view.update(RUNNING)
    assert [region.closed for region in screen.regions] == [True]


def test_notebook_display_changes_while_suspended() -> None:
    """The input has a place of its own there, and the display shows who is stopped."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.suspend()
    view.update(RUNNING)
    view.update(replace(cell(*[[]] * 4, done=False, wall_s=6.2), where=STOPPED))
    # The first one is for the end of the input, the last one is the placeholder.
    assert screen.call_names == ["show_late", "open", "show"]
    assert STOP_LINE in StrictPage(screen.boxes[0].values[-1]).visible


def test_notebook_display_opens_above_what_the_user_types() -> None:
    """A rank may stop at once; the display would otherwise open between its first stop and the prompt."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.update(cell([], [], done=False, wall_s=0.01))
    assert screen.call_names == []
    view.suspend()
    assert screen.call_names[0] == "open"
    view.suspend()
    view.resume()
    assert screen.call_names.count("open") == 1


def test_quiet_notebook_opens_no_display_for_the_debugger() -> None:
    """`--quiet` shows output only if the cell fails."""
    screen = RecordingScreen()
    view = make_view(screen, quiet=True)
    view.update(RUNNING)
    view.suspend()
    view.update(RUNNING)
    assert "open" not in screen.call_names


@pytest.mark.parametrize("terminal", [True, False])
def test_suspended_view_ends_as_usual(terminal: bool) -> None:  # noqa: FBT001
    """The cell's result is shown, also if the view is not resumed; afterwards both calls do nothing."""
    screen = RecordingScreen(terminal=terminal)
    view = make_view(screen)
    view.update(RUNNING)
    view.suspend()
    view.finish(FINISHED)
    view.suspend()
    view.resume()
    view.update(RUNNING)
    assert len(screen.written) == int(terminal)
    assert screen.call_names == ([] if terminal else ["open", "show_late", "replace"])


@pytest.mark.parametrize("terminal", [True, False])
def test_exception_ends_a_suspended_view(terminal: bool) -> None:  # noqa: FBT001
    """The widget or region is closed, each once."""
    screen = RecordingScreen(terminal=terminal)
    with suppress(KeyboardInterrupt), make_view(screen) as view:
        view.update(RUNNING)
        view.suspend()
        raise KeyboardInterrupt
    view.resume()
    view.update(RUNNING)
    closed = [region.closed for region in screen.regions] + [box.closed for box in screen.boxes]
    assert closed == [True]


def test_region_that_cannot_be_closed_does_not_fail_the_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is reported once, as everywhere in a view."""
    screen = RecordingScreen(terminal=True)
    view = make_view(screen)
    view.update(RUNNING)
    monkeypatch.setattr(screen.regions[0], "close", lambda: 1 / 0)
    view.suspend()
    view.suspend()
    view.resume()
    assert len(screen.reported_errors) == 1
    assert "ZeroDivisionError" in screen.reported_errors[0]


def test_view_is_suspended_while_another_thread_updates_it() -> None:
    """No update of the other thread draws after `suspend` has returned, however the two meet."""
    screen = RecordingScreen(terminal=True)
    view = make_view(screen)

    def update() -> None:
        for _ in range(200):
            view.update(RUNNING)

    thread = threading.Thread(target=update)
    thread.start()
    while thread.is_alive():
        view.suspend()
        assert all(region.closed for region in list(screen.regions))
        view.resume()
    thread.join()
    assert screen.reported_errors == []


@pytest.mark.parametrize("terminal", [True, False])
def test_time_at_a_prompt_is_not_time_without_output(terminal: bool) -> None:  # noqa: FBT001
    """Right after a stop of a minute the ranks are not reported as silent; after three more seconds they may be."""
    idle = replace(HANG, waiting=(), absent=())
    screen = RecordingScreen(terminal=terminal)
    view = make_view(screen)

    def shown_at(wall_s: float, report: HangReport) -> str:
        view.update(replace(cell(*[[out("a\n")]] * 4, done=False, wall_s=wall_s), where=report))
        return screen.regions[-1].texts[-1] if terminal else screen.boxes[0].values[-1]

    assert "no progress" in (shown_at(1.0, idle), shown_at(4.5, idle))[1]
    shown_at(5.0, STOPPED)
    view.suspend()
    view.update(replace(cell(*[[out("a\n")]] * 4, done=False, wall_s=65.0), where=STOPPED))
    view.resume()
    assert "no progress" not in shown_at(66.0, idle)
    assert "no progress" in shown_at(69.0, idle)


def test_silent_cell_prints_nothing_on_a_terminal() -> None:
    """The region is removed, and nothing is printed."""
    screen = RecordingScreen(terminal=True)
    view = make_view(screen)
    view.update(cell([], [], done=False, wall_s=2.0))
    view.finish(cell([], []))
    assert screen.regions[0].closed
    assert screen.written == []


@pytest.mark.parametrize("terminal", [True, False])
def test_cell_without_a_result_closes_its_widget(terminal: bool) -> None:  # noqa: FBT001
    """If an exception ends a cell without a result, its widget or region closes, and only its output so far is saved."""
    screen = RecordingScreen(terminal=terminal)
    with suppress(KeyboardInterrupt), make_view(screen) as view:
        view.update(RUNNING)
        raise KeyboardInterrupt
    view.update(RUNNING)
    assert screen.call_names == ([] if terminal else ["open", "replace"])
    closed = [region.closed for region in screen.regions] + [box.closed for box in screen.boxes]
    assert closed == [True]


def test_late_output_updates_the_display() -> None:
    """The display of the cell is replaced."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.finish(FINISHED)
    view.show_late(cell([out("a\nlate\n")], [out("b\n")]))
    assert screen.call_names == ["show", "replace_late"]
    assert "late" in screen.calls[-1][1]["text/html"]


def test_terminal_prints_only_new_late_output() -> None:
    """Only new lines are printed, below a line that names the cell."""
    screen = RecordingScreen(rich=False)
    view = make_view(screen)
    view.finish(cell([out("a\n")], [out("a\n")]))
    view.show_late(cell([out("a\nb\n")], [out("a\nb\n")]))
    view.show_late(cell([out("a\nb\n")], [out("a\nb\n")]))
    view.show_late(cell([out("a\nb\n")], [out("a\nb\nc\n")]))
    assert screen.written[:2] == ["ranks 0-1 · 0.21 s\n  a", "cell 12 printed more after its end:\n  b"]
    # Without the other lines, the new line's rank would be unknown.
    assert [line.partition("│")[0].strip() for line in screen.written[2].splitlines()[2:]] == [
        "rank 0",
        "",
        "rank 1",
        "",
        "",
    ]
    view.show_late(cell([out("a\nb\n")], [out("a\nb\nc\nd\n")]))
    assert [line.partition("│")[0].strip() for line in screen.written[3].splitlines()[2:4]] == ["rank 0", ""]
    assert len(screen.written) == 4


def test_terminal_names_the_cell_of_late_output() -> None:
    """The cell is named even if it had printed nothing before."""
    screen = RecordingScreen(rich=False)
    view = make_view(screen)
    view.finish(cell([], []))
    view.show_late(cell([out("b\n")], [out("b\n")]))
    assert screen.written == ["cell 12 printed more after its end:\nranks 0-1 · 0.21 s\n  b"]


def test_late_output_of_a_silent_cell_creates_a_display() -> None:
    """Further late output updates that display."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.finish(cell([], []))
    view.show_late(cell([out("late\n")], []))
    view.show_late(cell([out("later\n")], []))
    assert screen.call_names == ["show_late", "replace_late"]


def test_late_output_before_the_end_is_shown() -> None:
    """Late output before the cell's end is kept, because the reader thread may be faster than the thread that waits."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.show_late(cell([out("a\nlate\n")], [out("b\n")]))
    view.finish(FINISHED)
    assert screen.call_names == ["show"]
    assert "late" in screen.calls[0][1]["text/plain"]


def test_an_update_after_the_end_is_ignored() -> None:
    """A snapshot that was under way does not open the widget again."""
    screen = RecordingScreen()
    view = make_view(screen)
    view.finish(FINISHED)
    view.update(RUNNING)
    assert screen.call_names == ["show"]


def test_failing_screen_does_not_fail_the_cell() -> None:
    """The failure is reported once, and the ranks' output is written as plain lines."""
    screen = RecordingScreen(broken=True)
    view = make_view(screen)
    view.update(RUNNING)
    view.finish(FINISHED)
    assert len(screen.reported_errors) == 1
    assert "RuntimeError: no front end" in screen.reported_errors[0]
    assert screen.written == ["rank 0 │ a", "rank 1 │ b"]


def test_failing_renderer_still_closes_the_widget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that failed leaves no open widget."""

    def broken(*_: object, **__: object) -> str:
        raise ValueError("bug")

    screen = RecordingScreen()
    view = make_view(screen)
    view.update(RUNNING)
    monkeypatch.setattr(live, "format_cell_html", broken)
    view.finish(FINISHED)
    assert screen.boxes[0].closed
    assert screen.calls[-1] == ("replace", {"text/plain": "rank 0 │ a\nrank 1 │ b"}, "u")


def test_display_ids_are_unique() -> None:
    """Two cells never share a display."""
    screen = RecordingScreen()
    for _ in range(2):
        CellView(screen=screen).finish(FINISHED)
    assert len({display_id for _, _, display_id in screen.calls}) == 2
