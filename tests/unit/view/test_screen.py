"""Where views appear, without a kernel."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from mhnb.view.html import RankLocations
from mhnb.view.live import widget as panel
from mhnb.view.live.results_panel import ResultPanel, build_panel_state
from mhnb.view.live.screen import NotebookScreen, TextScreen, detect_screen, hide_traceback
from mhnb.view.live.view import CellView
from tests.support.view_samples import StrictPage, cell, failed, out


class Shell:
    """The parts of a kernel's shell that a screen needs."""

    def __init__(self) -> None:
        self.published: list[dict[str, str]] = []
        self.display_pub = self

    def get_parent(self) -> dict[str, Any]:
        """Return the message that is being executed."""
        return {"header": {"msg_id": "1"}}

    def publish(self, data: dict[str, str], **_: Any) -> None:
        """Record a display."""
        self.published.append(data)


def test_a_process_without_a_kernel_is_a_terminal() -> None:
    """Without a kernel there is no HTML."""
    assert isinstance(detect_screen(), TextScreen)


def test_a_terminal_prints_the_text_form(capsys: pytest.CaptureFixture[str]) -> None:
    """The text of a result that a notebook shows as HTML is printed."""
    CellView(screen=TextScreen(io.StringIO())).finish(cell([out("hello\n")], [out("hello\n")]))
    assert capsys.readouterr().out == "ranks 0-1 · 0.21 s\n  hello\n"


def test_without_ipywidgets_nothing_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is not an error: the static form is shown at the end."""
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.setattr(panel, "_CLASSES", {})
    shell = Shell()
    view = CellView(screen=NotebookScreen(shell))
    view.update(cell([out("a\n")], done=False, wall_s=1.0))
    assert shell.published == []
    view.finish(cell([out("a\n")]))
    assert [set(data) for data in shell.published] == [{"text/html", "text/plain"}]


def test_without_anywidget_the_html_widget_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The live view falls back to the HTML of ipywidgets, and the panel to the stored form."""
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.setattr(panel, "_CLASSES", {})
    shell = Shell()
    view = CellView(screen=NotebookScreen(shell))
    view.update(cell([out("a\n")], done=False, wall_s=1.0))
    view.update(cell([out("b\n")], done=False, wall_s=2.0))
    assert [next(iter(data)) for data in shell.published] == ["application/vnd.jupyter.widget-view+json"]
    view.finish(cell([out("b\n")]))
    ResultPanel(cell([out("c\n")]), RankLocations(), screen=NotebookScreen(shell)).open()
    assert set(shell.published[-1]) == {"text/html", "text/plain"}


def test_a_panel_in_a_terminal_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal has nothing to click."""
    ResultPanel(cell([out("c\n")]), RankLocations(), screen=TextScreen(io.StringIO())).open()
    assert capsys.readouterr().out == "ranks 0 · 0.21 s\n  c\n".replace("ranks", "rank")


def test_panel_shows_later_cells_and_closes_its_widget() -> None:
    """The panel shows the next cells that run; once closed, it is the stored form."""
    shell = Shell()
    screen = NotebookScreen(shell)
    replaced: list[dict[str, str]] = []
    screen.replace_late = lambda data, _display_id: replaced.append(dict(data))  # type: ignore[assignment,method-assign]
    opened = ResultPanel(cell([out("first\n")], [out("other\n")]), RankLocations({0: "host0"}), screen=screen)
    opened.open()
    widget = opened._widget
    assert [one["rank"] for one in widget.ranks] == [0, 1]
    assert "first" in opened.format_body(0)
    opened.update(cell([out("under way\n")], [], done=False, wall_s=1.0), RankLocations())
    assert "under way" in widget.page
    opened.finish(cell([out("second\n")], [out("second\n")]), RankLocations())
    assert "second" in widget.page
    assert widget.number == 2
    opened.close()
    assert set(replaced[-1]) == {"text/html", "text/plain"}
    assert widget.comm is None


@pytest.mark.slow
def test_panel_names_the_logs_of_the_shown_ranks() -> None:
    """After a restart these are the logs of the new processes, not of those for which the panel was opened."""
    screen = NotebookScreen(Shell())
    screen.replace_late = lambda *_: None  # type: ignore[method-assign]
    opened = ResultPanel(cell([out("first\n")]), RankLocations({0: "old"}, {0: "/gone/rank0.log"}), screen=screen)
    opened.open()
    for name, show in (("next", opened.update), ("last", opened.finish)):
        show(cell([out("second\n" * 90_000)]), RankLocations({0: name}, {0: f"/{name}/rank0.log"}))
        assert f"/{name}/rank0.log" in opened.format_body(0)
        assert [one["host"] for one in opened._widget.ranks] == [name]
    assert "/last/rank0.log" in opened._widget.page


def test_saved_panel_is_readable() -> None:
    """No front end saves a widget, so a text before it has the cell, the command that reopens the panel, and all output."""
    shell = Shell()
    opened = ResultPanel(cell([out("first\n")], [out("other\n")]), RankLocations(), screen=NotebookScreen(shell))
    opened.open()
    stored, widget = shell.published
    assert "application/vnd.jupyter.widget-view+json" in widget
    page = StrictPage(stored["text/html"])
    for text in (page.visible, stored["text/plain"]):
        assert "mhjax · panel over cell 12 · ranks 0-1 · 0.21 s · " in text
        assert "to open it again, %mhjax show 12; in a new kernel, run the cell again first, then %mhjax show" in text
    for text in (page.text, stored["text/plain"]):
        assert "first" in text
        assert "other" in text


def test_saved_panel_has_the_last_cell() -> None:
    """The saved text is that of the last cell shown; once the panel is closed, only the stored form remains."""
    shell = Shell()
    screen = NotebookScreen(shell)
    shown: dict[str, dict[str, str]] = {}
    screen.replace_late = lambda data, display_id: shown.update({display_id: dict(data)})  # type: ignore[method-assign]
    opened = ResultPanel(cell([out("first\n")]), RankLocations(), screen=screen)
    opened.open()
    opened.finish(replace(cell([out("second\n")]), seq=13), RankLocations())
    (stored_id,) = shown
    assert "panel over cell 13" in shown[stored_id]["text/html"]
    assert "second" in shown[stored_id]["text/html"]
    opened.close()
    assert shown.pop(stored_id) == {"text/html": "", "text/plain": ""}
    assert "second" in next(iter(shown.values()))["text/html"]


@pytest.mark.parametrize("done", [True, False])
def test_a_panel_has_one_heading(done: bool) -> None:  # noqa: FBT001  # a parametrized test's argument
    """The panel's head has the ranks and the duration, so its page does not repeat them."""
    opened = ResultPanel(cell([out("a\n")], [out("b\n")]), RankLocations(), screen=NotebookScreen(Shell()))
    opened.open()
    if not done:
        opened.update(cell([out("a\n")], [out("b\n")], done=False, wall_s=1.0), RankLocations())
    widget = opened._widget
    assert widget.head.startswith("cell 12 · ranks 0-1 · ")
    assert "ranks 0-1 ·" not in widget.page
    assert "2 different outputs" in widget.page or not done


def test_panel_shows_the_error_of_a_silent_failed_rank() -> None:
    """The tab of a failed rank shows its error, even if the rank printed nothing."""
    opened = ResultPanel(
        cell(failed(0), failed(1, said=[out("so far\n")])), RankLocations(), screen=NotebookScreen(Shell())
    )
    assert StrictPage(opened.format_body(0)).text.strip() == "✗ ValueError: cannot reshape"
    assert "ValueError: cannot reshape" in opened.format_body(1)
    assert "so far" in opened.format_body(1)


def test_panel_state_says_whether_the_cell_runs() -> None:
    """The panel state says whether the cell runs, because only a running cell needs a note that updates have stopped."""
    states = [
        build_panel_state(cell([], done=done), RankLocations(), uid="u", view="fold")["runs"] for done in (True, False)
    ]
    assert states == [False, True]
    screen = NotebookScreen(Shell())
    screen.replace_late = lambda *_: None  # type: ignore[method-assign]
    opened = ResultPanel(cell([]), RankLocations(), screen=screen)
    opened.open()
    opened.update(cell([], done=False), RankLocations())
    assert opened._widget.runs
    opened.finish(cell([]), RankLocations())
    assert not opened._widget.runs


# -- an error that a view has shown


CELL = """
from mhnb.view.live.screen import hide_traceback
error = {}
assert hide_traceback(error)
{}
"""


def _handle_by_user(*_: Any, tb_offset: Any = None) -> None:
    print("the handler of the user")


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """The shell of this process, with a handler of its own for one class."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.set_custom_exc((KeyError,), _handle_by_user)
    yield shell
    shell.set_custom_exc((), None)
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("error", "then", "drawn"),
    [
        ("ValueError('shown')", "raise error", ""),
        ("ValueError('shown')", "raise ValueError('another')", "another"),
        ("ValueError('shown')", "1 / 0", "ZeroDivisionError"),
        ("ValueError('shown')", "{}['key']", "the handler of the user"),
        ("KeyError('shown')", "raise error", ""),
        ("KeyError('shown')", "raise KeyError('another')", "the handler of the user"),
    ],
)
def test_only_the_error_that_was_shown_is_not_drawn(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], error: str, then: str, drawn: str
) -> None:
    """The cell fails in any case; another error is drawn as before, also by a handler that the user registered."""
    before = (shell.custom_exceptions, shell.CustomTB)
    result = shell.run_cell(CELL.format(error, then))
    assert not result.success
    output = capsys.readouterr()
    assert (output.out + output.err == "") if not drawn else drawn in output.out + output.err
    assert (shell.custom_exceptions, shell.CustomTB) == before
    assert not shell.run_cell("raise ValueError('later')").success
    assert "later" in capsys.readouterr().out


def test_handler_that_the_cell_registers_is_kept(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    """A cell that caught the error and then registered a handler of its own keeps it."""
    assert hide_traceback(ValueError("shown"))
    shell.run_cell("get_ipython().set_custom_exc((ZeroDivisionError,), lambda *_, **__: print('the new handler'))")
    shell.run_cell("1 / 0")
    assert "the new handler" in capsys.readouterr().out


def test_without_a_shell_nothing_is_hidden() -> None:
    """In a script the error is all that is seen."""
    InteractiveShell.clear_instance()
    assert not hide_traceback(ValueError())
