"""`ipython` in a terminal: the same cells, with output as text."""

from __future__ import annotations

import subprocess
import sys

from tests.support.leftovers import processes_of, wait_for_end
from tests.support.terminal import CTRL_C, IPYTHON, Terminal

TYPED = """\
%load_ext mhnb
%mhjax start -n 2 --devices 1
%%mhjax
import time, jax
for step in range(4):
    print(f"rank {jax.process_index()} step {step}", flush=True); time.sleep(0.1)


%%mhjax
1 / 0


%mhjax vars
print("went on")
"""


def test_terminal_output_is_text(leftovers: None, mhnb_home: str) -> None:
    """Lines that differ only in the rank are shown once and errors are short, without widgets or HTML; no process remains."""
    command = [sys.executable, "-m", *IPYTHON]
    before = {process.pid for process in processes_of(mhnb_home)}
    done = subprocess.run(command, input=TYPED, capture_output=True, text=True, check=True, timeout=100)
    assert "mhjax · 2 ranks × 1 CPU device on this machine" in done.stdout
    for step in range(4):
        assert done.stdout.count(f"rank ‹rank› step {step}") == 1
    assert "ZeroDivisionError on ranks 0-1" in done.stdout
    assert "CellFailed: ZeroDivisionError on ranks 0-1; details above" in done.stdout
    assert "step" in done.stdout.rpartition("CellFailed")[2]
    assert "went on" in done.stdout
    assert not [word for word in ("widget", "HTML(", "<div", "<details", "Traceback") if word in done.stdout]
    assert done.stderr == ""
    ended = [process for process in processes_of(mhnb_home) if process.pid not in before]
    assert wait_for_end(ended, 60) == []


CATCHES_INTERRUPT = """\
%%mhjax
import time
print("on", flush=True)
try:
    while True: time.sleep(0.01)
except KeyboardInterrupt:
    print("saved")


"""


def test_terminal_shows_live_output(leftovers: None, mhnb_home: str) -> None:
    """A terminal shows the phases of a start and the output of a running cell, and Ctrl-C reaches both.

    The text that stays has each line once.
    """
    before = {process.pid for process in processes_of(mhnb_home)}
    with Terminal() as terminal:
        terminal.read_until("In [1]: ")
        terminal.press("%load_ext mhnb\n")
        terminal.read_until("In [2]: ")
        terminal.press("%mhjax start -n 2 --devices 1\n")
        terminal.read_until("starting 2 ranks · ")
        terminal.press(CTRL_C)
        output = terminal.read_until("In [3]: ")
        assert (
            "KeyboardInterrupt: %mhjax start was interrupted; all processes that it had started were stopped" in output
        )
        assert "Traceback" not in output
        terminal.press("%mhjax start -n 2 --devices 1\n")
        terminal.read_until("ranks 0-1 ready")
        assert "mhjax · 2 ranks × 1 CPU device on this machine" in terminal.read_until("In [4]: ")
        terminal.press(CATCHES_INTERRUPT)
        terminal.read_until("ranks 0-1 · running ")
        terminal.read_until("on\r")
        terminal.press(CTRL_C)
        ended = terminal.read_until("In [5]: ")
        # The cursor is shown again before the final text.
        final_text = ended.rpartition("\x1b[?25h")[2]
        assert final_text.count("saved") == final_text.count("  on") == 1
        assert "CellInterrupted: Ctrl-C came, but In [4] succeeded on ranks 0-1" in final_text
        terminal.press("exit\n")
        assert terminal.process.wait(timeout=60) == 0
    ended_ranks = [process for process in processes_of(mhnb_home) if process.pid not in before]
    assert wait_for_end(ended_ranks, 60) == []
