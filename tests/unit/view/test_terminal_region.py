"""A region of a real terminal: what it shows while it is redrawn, and afterwards."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from mhnb.view.live.screen import open_region

PROGRAM = """
import sys
from mhnb.view.live.screen import open_region
from mhnb.view.live.screen import TextScreen
print("before", flush=True)
screen = TextScreen()
region = open_region()
if region is None:
    print("none")
else:
    for step in range(3):
        region.show(f"step {step}\\n" + "\\x1b[1mwide\\x1b[0m " * 40)
        if step == 1:
            screen.write("late")
            print("[/notice] :smile:", file=sys.stderr)
    print("<shown>", end="", file=sys.__stdout__, flush=True)
    height = region.height
    region.close()
    print(height)
print("after", flush=True)
"""


TYPING_PROGRAM = """
import threading
from mhnb.core.output.results import CellResult, RankResult
from mhnb.view.live.view import CellView

def running(wall_s):
    ranks = [RankResult(0, "running", ({"output_type": "stream", "name": "stdout", "text": "step\\n"},))]
    return CellResult(1, "x", tuple(ranks), wall_s, done=False, process_count=1)

view, is_updating, is_read = CellView(), threading.Event(), threading.Event()

def update():
    wall_s = 1.0
    while not is_read.is_set():
        wall_s += 0.1
        view.update(running(wall_s))
        is_updating.set()

view.update(running(1.0))
thread = threading.Thread(target=update)
thread.start()
is_updating.wait()
view.suspend()
is_updating.clear()
is_updating.wait()
line = input("rank 0 > ")
is_read.set()
thread.join()
print("got", line)
view.resume()
view.update(running(9.0))
print("<shown>", end="", flush=True)
view.suspend()
print("after", flush=True)
"""


def run_on_terminal(code: str, *, prompt: str = "", typed: str = "", **environment: str) -> str:
    """Return the output of a process on a terminal with 24 lines of 80 characters; `typed` is typed once `prompt` is there."""
    terminal_fd, process_fd = os.openpty()
    os.set_blocking(terminal_fd, True)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=process_fd, stdout=process_fd, stderr=process_fd,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"} | environment,
    )  # fmt: skip
    os.close(process_fd)
    output = b""
    try:
        while data := os.read(terminal_fd, 4096):
            output += data
            if typed and prompt.encode() in output:
                os.write(terminal_fd, typed.encode())
                typed = ""
    except OSError:
        # Linux reports in this way that no process has the other end open.
        pass
    os.close(terminal_fd)
    assert process.wait(timeout=60) == 0, output.decode()
    return output.decode()


def replay(output: str) -> list[str]:
    """Return the lines that a terminal shows after this output."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", output):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token.startswith("\x1b["):
            row -= int(token[2:-1]) if token.endswith("A") else 0
        else:
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + len(token) :]
            column += len(token)
    return [line for line in lines if line]


def test_region_is_redrawn_and_removed() -> None:
    """Only the latest text is shown, a long line is cut to one line, and other printed text stays above the region."""
    said = run_on_terminal(PROGRAM)
    *above, first, second = replay(said.partition("<shown>")[0])
    assert above == ["before", "late", "[/notice] :smile:"]
    assert first == "step 2"
    assert second.startswith("wide wide")
    assert second.endswith("…")
    assert len(second) <= 80
    assert replay(said.replace("<shown>", "")) == ["before", "late", "[/notice] :smile:", "23", "after"]


def test_cursor_stays_visible() -> None:
    """The cursor stays visible, because a process that is killed would otherwise leave a terminal without one."""
    said = run_on_terminal(PROGRAM).partition("<shown>")[0]
    assert said.rfind("\x1b[?25h") > said.rfind("\x1b[?25l")


def test_line_that_is_typed_is_not_overwritten() -> None:
    """While a view is suspended only the prompt and the typed line are there, although another thread updates the view."""
    said = run_on_terminal(TYPING_PROGRAM, prompt="rank 0 > ", typed="p x\n")
    at_prompt, _, later = said.partition("got p x\r\n")
    assert replay(at_prompt) == ["rank 0 > p x"]
    assert "running 9.0 s" in later
    assert replay(said.replace("<shown>", "")) == ["rank 0 > p x", "got p x", "after"]


def test_dumb_terminal_has_no_region() -> None:
    """A dumb terminal, as an editor's shell window reports itself, has no region."""
    assert run_on_terminal(PROGRAM, TERM="dumb") == "before\r\nnone\r\nafter\r\n"


def test_file_has_no_region(capsys: pytest.CaptureFixture[str]) -> None:
    """A file has no region, because it would contain every redraw."""
    assert open_region() is None
    assert capsys.readouterr().out == ""
