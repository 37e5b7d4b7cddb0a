"""One cell on the screen: when a widget opens, and that no widget remains."""

from __future__ import annotations

from contextlib import suppress

import pytest

from mhnb.core.output.results import CellResult
from mhnb.view.cell.html import View
from mhnb.view.live import view as live
from mhnb.view.live.view import CellView
from tests.support.view_samples import RecordingScreen, StrictPage, cell, failed, out

SAID = cell([out("a\n")], [out("b\n")])
RUNNING = cell([out("a\n")], [], done=False, wall_s=0.2)


def make(screen: RecordingScreen, *, view: View = "fold", quiet: bool = False, badge: bool = False) -> CellView:
    """Return a view of one cell."""
    return CellView(view=view, quiet=quiet, badge=badge, screen=screen, uid="u")


def test_a_short_cell_shows_its_static_form_once() -> None:
    """No widget opens before 150 ms."""
    screen = RecordingScreen()
    view = make(screen)
    view.update(cell([out("a")], done=False, wall_s=0.149))
    view.finish(SAID)
    assert screen.names == ["show"]
    assert set(screen.acts[0][1]) == {"text/html", "text/plain"}


def test_a_cell_that_lasts_opens_one_widget_and_replaces_it() -> None:
    """The widget is closed, and its display contains only HTML and text."""
    screen = RecordingScreen()
    view = make(screen)
    view.update(RUNNING)
    view.update(cell([out("a\nc\n")], [], done=False, wall_s=0.3))
    view.finish(SAID)
    assert screen.names == ["open", "replace"]
    assert set(screen.acts[-1][1]) == {"text/html", "text/plain"}
    assert {display_id for _, _, display_id in screen.acts} == {"u"}
    assert [len(box.values) for box in screen.boxes] == [2]
    assert screen.boxes[0].closed


def test_an_update_that_changes_nothing_is_not_sent() -> None:
    """Equal HTML is not sent again."""
    screen = RecordingScreen()
    view = make(screen)
    view.update(RUNNING)
    view.update(RUNNING)
    assert len(screen.boxes[0].values) == 1


@pytest.mark.parametrize("kind", ["tabs", "grid"])
def test_tabs_are_live_from_the_start(kind: View) -> None:
    """A user who requests tabs or a grid sees them immediately."""
    screen = RecordingScreen()
    make(screen, view=kind).update(cell([], done=False, wall_s=0.0))
    assert screen.names == ["open"]


def test_silence_shows_nothing() -> None:
    """A cell without output creates no display."""
    screen = RecordingScreen()
    make(screen).finish(cell([], []))
    assert screen.names == []


def test_silence_after_a_widget_replaces_the_widget() -> None:
    """An opened display keeps no widget and does not stay empty: it shows that the cell has ended, and its duration."""
    screen = RecordingScreen()
    view = make(screen)
    view.update(RUNNING)
    view.finish(cell([], []))
    assert screen.names == ["open", "replace"]
    assert screen.acts[-1][1]["text/plain"] == "mhjax · ranks 0-1 · 0.21 s"
    assert "ranks 0-1 · 0.21 s" in StrictPage(screen.acts[-1][1]["text/html"]).visible


def test_a_badge_is_shown_for_a_silent_cell() -> None:
    """Auto mode shows where a plain cell ran."""
    screen = RecordingScreen()
    make(screen, badge=True).finish(cell([], []))
    assert "mhjax · ranks 0-1" in screen.acts[0][1]["text/plain"]


@pytest.mark.parametrize(("result", "names"), [(SAID, []), (cell([out("a")], failed(1)), ["show"])])
def test_quiet_speaks_of_errors_alone(result: CellResult, names: list[str]) -> None:
    """`--quiet` opens no widget, and shows the cell only if it failed."""
    screen = RecordingScreen()
    view = make(screen, quiet=True)
    view.update(RUNNING)
    view.finish(result)
    assert screen.names == names


def test_without_widgets_the_static_form_is_all() -> None:
    """If ipywidgets is missing, the cell is shown at its end."""
    screen = RecordingScreen(widgets=False)
    view = make(screen)
    view.update(RUNNING)
    view.finish(SAID)
    assert screen.names == ["show"]


def test_a_terminal_gets_text_at_the_end() -> None:
    """A terminal has no displays, only one text."""
    screen = RecordingScreen(rich=False)
    view = make(screen)
    view.update(RUNNING)
    view.finish(SAID)
    assert screen.names == []
    assert [text.splitlines()[0] for text in screen.written] == ["ranks 0-1 · 0.21 s · 2 different outputs"]


def test_a_cell_that_lasts_is_followed_in_a_terminal() -> None:
    """The text is redrawn in one region, which is removed before the final text is printed."""
    screen = RecordingScreen(terminal=True)
    view = make(screen)
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
    view.finish(SAID)
    assert region.closed
    assert [text.splitlines()[0] for text in screen.written] == ["ranks 0-1 · 0.21 s · 2 different outputs"]


def test_a_silent_cell_leaves_nothing_on_a_terminal() -> None:
    """The region is removed, and nothing is printed."""
    screen = RecordingScreen(terminal=True)
    view = make(screen)
    view.update(cell([], [], done=False, wall_s=2.0))
    view.finish(cell([], []))
    assert screen.regions[0].closed
    assert screen.written == []


@pytest.mark.parametrize("terminal", [True, False])
def test_a_cell_without_a_result_leaves_nothing_that_moves(terminal: bool) -> None:  # noqa: FBT001
    """If an exception ends a cell without a result, its widget or region closes, and only its output so far is saved."""
    screen = RecordingScreen(terminal=terminal)
    with suppress(KeyboardInterrupt), make(screen) as view:
        view.update(RUNNING)
        raise KeyboardInterrupt
    view.update(RUNNING)
    assert screen.names == ([] if terminal else ["open", "replace"])
    followed = [region.closed for region in screen.regions] + [box.closed for box in screen.boxes]
    assert followed == [True]


def test_late_output_updates_the_display() -> None:
    """The display of the cell is replaced."""
    screen = RecordingScreen()
    view = make(screen)
    view.finish(SAID)
    view.show_late(cell([out("a\nlate\n")], [out("b\n")]))
    assert screen.names == ["show", "replace_late"]
    assert "late" in screen.acts[-1][1]["text/html"]


def test_a_terminal_gets_what_is_new_of_late_output() -> None:
    """Only new lines are printed, below a line that names the cell."""
    screen = RecordingScreen(rich=False)
    view = make(screen)
    view.finish(cell([out("a\n")], [out("a\n")]))
    view.show_late(cell([out("a\nb\n")], [out("a\nb\n")]))
    view.show_late(cell([out("a\nb\n")], [out("a\nb\n")]))
    view.show_late(cell([out("a\nb\n")], [out("a\nb\nc\n")]))
    assert screen.written[:2] == ["ranks 0-1 · 0.21 s\n  a", "cell 12 went on after its end:\n  b"]
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


def test_a_terminal_is_told_which_cell_speaks_late() -> None:
    """The cell is named even if it had printed nothing before."""
    screen = RecordingScreen(rich=False)
    view = make(screen)
    view.finish(cell([], []))
    view.show_late(cell([out("b\n")], [out("b\n")]))
    assert screen.written == ["cell 12 went on after its end:\nranks 0-1 · 0.21 s\n  b"]


def test_late_output_of_a_silent_cell_makes_a_display_in_it() -> None:
    """Further late output updates that display."""
    screen = RecordingScreen()
    view = make(screen)
    view.finish(cell([], []))
    view.show_late(cell([out("late\n")], []))
    view.show_late(cell([out("later\n")], []))
    assert screen.names == ["show_late", "replace_late"]


def test_late_output_that_comes_before_the_end_is_kept() -> None:
    """Late output before the cell's end is kept, because the reader thread may be faster than the thread that waits."""
    screen = RecordingScreen()
    view = make(screen)
    view.show_late(cell([out("a\nlate\n")], [out("b\n")]))
    view.finish(SAID)
    assert screen.names == ["show"]
    assert "late" in screen.acts[0][1]["text/plain"]


def test_an_update_after_the_end_is_ignored() -> None:
    """A snapshot that was under way does not open the widget again."""
    screen = RecordingScreen()
    view = make(screen)
    view.finish(SAID)
    view.update(RUNNING)
    assert screen.names == ["show"]


def test_a_screen_that_fails_never_fails_the_cell() -> None:
    """The failure is reported once, and the ranks' output is written as plain lines."""
    screen = RecordingScreen(broken=True)
    view = make(screen)
    view.update(RUNNING)
    view.finish(SAID)
    assert len(screen.complaints) == 1
    assert "RuntimeError: no front end" in screen.complaints[0]
    assert screen.written == ["rank 0 │ a", "rank 1 │ b"]


def test_a_renderer_that_fails_still_closes_the_widget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that failed leaves no open widget."""

    def broken(*_: object, **__: object) -> str:
        raise ValueError("bug")

    screen = RecordingScreen()
    view = make(screen)
    view.update(RUNNING)
    monkeypatch.setattr(live, "format_cell_html", broken)
    view.finish(SAID)
    assert screen.boxes[0].closed
    assert screen.acts[-1] == ("replace", {"text/plain": "rank 0 │ a\nrank 1 │ b"}, "u")


def test_displays_have_names_of_their_own() -> None:
    """Two cells never share a display."""
    screen = RecordingScreen()
    for _ in range(2):
        CellView(screen=screen).finish(SAID)
    assert len({display_id for _, _, display_id in screen.acts}) == 2
