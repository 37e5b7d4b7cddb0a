"""A place on a real terminal: what stands there while it is drawn anew, and after."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mhnb.view.region import open_region

DRAWS = """
from mhnb.view.region import open_region
print("before", flush=True)
region = open_region()
if region is None:
    print("none")
else:
    for step in range(3):
        region.show(f"step {step}\\n" + "\\x1b[1mwide\\x1b[0m " * 40)
    height = region.height
    region.close()
    print(height)
print("after", flush=True)
"""


def run_on_terminal(code: str, **environment: str) -> str:
    """Give what a process writes to its terminal, which has 24 lines of 80 characters."""
    ours, its = os.openpty()
    os.set_blocking(ours, True)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=its, stdout=its, stderr=its,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"} | environment,
    )  # fmt: skip
    os.close(its)
    said = b""
    try:
        while data := os.read(ours, 4096):
            said += data
    except OSError:
        # So Linux tells that nobody has the other end any more.
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0, said.decode()
    return said.decode()


def test_it_is_drawn_anew_and_taken_away() -> None:
    """Each picture erases the one before; a line that is too long takes one line; nothing is left but what was printed."""
    said = run_on_terminal(DRAWS)
    *pictures, last = said.split("step ")[1:]
    assert [picture[0] for picture in pictures] == ["0", "1", "2"]
    # Up and erased, as many lines as there were below the first.
    assert all(picture.count("\x1b[1A\x1b[2K") == 1 for picture in pictures)
    assert all("…" in picture and picture.count("wide") < 20 for picture in pictures)
    left = last.rpartition("\x1b[2K")[2]
    assert last.count("\x1b[1A\x1b[2K") == 2
    assert left == "23\r\nafter\r\n"
    assert said.startswith("before\r\n")


def test_a_terminal_that_can_take_nothing_back_has_none() -> None:
    """As an editor's shell window says of itself."""
    assert run_on_terminal(DRAWS, TERM="dumb") == "before\r\nnone\r\nafter\r\n"


def test_a_file_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    """It would hold every picture."""
    assert open_region() is None
    assert capsys.readouterr().out == ""
