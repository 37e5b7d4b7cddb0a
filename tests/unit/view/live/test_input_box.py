"""When the display is created that removes the box of an input, and what it leaves; the page itself is in the browser tests."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import zmq

from mhnb.view.live.input_box import InputBox
from mhnb.view.live.screen import NotebookScreen
from mhnb.view.live.view import CellView
from tests.support.view_samples import RecordingScreen, cell, out

EMPTY = {"text/html": "", "text/plain": ""}


def test_display_is_created_before_the_first_line() -> None:
    """It is created once, and empty: a front end draws only the first outputs of a cell, and each line adds some."""
    screen = RecordingScreen()
    box = InputBox(screen, "mhnb-1")
    for _ in range(3):
        box.suspend()
        box.resume()
    assert screen.calls == [("show_late", EMPTY, "mhnb-1-input")]


def test_box_is_removed_by_a_script_that_is_not_kept() -> None:
    """The script is replaced once the page has sent the line that belongs to the box."""
    screen = RecordingScreen()
    box = InputBox(screen, "mhnb-1")
    box.suspend()
    box.close_input()
    assert screen.call_names == ["show_late", "replace_late", "wait", "replace_late"]
    script, _, last = (data for _, data, _ in screen.calls[1:])
    assert set(script) == {"application/javascript"}
    assert last == EMPTY
    assert {display_id for name, _, display_id in screen.calls if name != "wait"} == {"mhnb-1-input"}


def test_box_of_a_view_that_was_not_suspended() -> None:
    """The display is created first."""
    screen = RecordingScreen()
    InputBox(screen).close_input()
    assert screen.call_names == ["show_late", "replace_late", "wait", "replace_late"]


@pytest.mark.parametrize("terminal", [True, False])
def test_terminal_has_no_box(terminal: bool) -> None:  # noqa: FBT001
    """Nothing is printed in a terminal, or into a file."""
    screen = RecordingScreen(rich=False, terminal=terminal)
    with CellView(screen=screen) as view:
        view.suspend()
        view.close_input()
        view.resume()
    assert (screen.calls, screen.written) == ([], [])


def test_cell_view_closes_its_own_box() -> None:
    """The view's widget stays, and the end is shown as usual."""
    screen = RecordingScreen()
    view = CellView(screen=screen, uid="mhnb-1")
    view.update(cell([out("a\n")], [], done=False, wall_s=1.0))
    view.suspend()
    view.close_input()
    assert not screen.boxes[0].closed
    view.resume()
    view.finish(cell([out("a\n")], []))
    assert screen.call_names == ["open", "show_late", "replace_late", "wait", "replace_late", "replace"]
    assert screen.calls[-1][2] == "mhnb-1"


def test_ended_view_prepares_no_display() -> None:
    """Nothing is typed for a cell that has ended."""
    screen = RecordingScreen()
    view = CellView(screen=screen)
    view.finish(cell([], []))
    view.suspend()
    assert screen.calls == []


def test_screen_that_fails_does_not_fail_the_debugger() -> None:
    """The failure is reported once, as everywhere in a view."""
    screen = RecordingScreen(broken=True)
    view = CellView(screen=screen)
    view.suspend()
    view.close_input()
    assert len(screen.reported_errors) == 1
    assert "no front end" in screen.reported_errors[0]


def test_notebook_waits_for_the_line_and_leaves_it() -> None:
    """The line stays for the kernel, which drops it; without a line the wait has an end."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as kernel_side, context.socket(zmq.PAIR) as page_side:
        port = kernel_side.bind_to_random_port("tcp://127.0.0.1")
        page_side.connect(f"tcp://127.0.0.1:{port}")
        shell = SimpleNamespace(kernel=SimpleNamespace(stdin_socket=kernel_side), get_parent=dict)
        screen = NotebookScreen(shell)
        screen.wait_for_input(0.01)
        waiting = threading.Thread(target=screen.wait_for_input, args=[60.0])
        waiting.start()
        page_side.send(b"line")
        waiting.join()
        assert kernel_side.recv(zmq.NOBLOCK) == b"line"
