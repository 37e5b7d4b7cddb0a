"""`ipython` in a terminal: the same cells, as text."""

from __future__ import annotations

import subprocess
import sys

import psutil

from tests.leftovers import processes_of

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


def test_a_terminal_gets_text(leftovers: None, mhnb_home: str) -> None:
    """Lines that differ in the rank's number once, errors short, no widget and no HTML; and nothing is left when the session ends."""
    command = [
        sys.executable,
        "-m",
        "IPython",
        "--simple-prompt",
        "--no-banner",
        "--no-confirm-exit",
        "--colors=nocolor",
    ]
    before = {process.pid for process in processes_of(mhnb_home)}
    done = subprocess.run(command, input=TYPED, capture_output=True, text=True, check=True, timeout=100)
    assert "mhjax · 2 ranks × 1 CPU device on this machine" in done.stdout
    for step in range(4):
        assert done.stdout.count(f"rank ‹rank› step {step}") == 1
    assert "ZeroDivisionError on ranks 0-1" in done.stdout
    assert "CellFailed: ZeroDivisionError on ranks 0-1" in done.stdout
    assert "step" in done.stdout.rpartition("CellFailed")[2]
    assert "went on" in done.stdout
    assert not [word for word in ("widget", "HTML(", "<div", "<details", "Traceback") if word in done.stdout]
    assert done.stderr == ""
    ended = [process for process in processes_of(mhnb_home) if process.pid not in before]
    assert psutil.wait_procs(ended, timeout=60)[1] == []
