"""A traceback inside a message: frames above the cell are removed, library frames are counted, everything else stays."""

from __future__ import annotations

import pytest

from mhnb.core.error_site import trim_embedded_traceback

BEGIN = "INTERNAL: CpuCallback error: Traceback (most recent call last):\n"
OURS = '  File "<frozen runpy>", line 198, in _run\n  File "/h/mhnb/rank/execution/runner.py", line 2, in run\n'
JAX = '  File "/v/lib/python3.11/site-packages/jax/_src/pjit.py", line 1, in call\n'
STDLIB = '  File "/u/lib/python3.11/json/decoder.py", line 1, in decode\n'
CELL, MINE = '  File "<cell 3>", line 2, in f\n', '  File "/mine/data.py", line 7, in read\n'


@pytest.mark.parametrize(
    ("frames", "left"),
    [
        (OURS + CELL + JAX * 3 + MINE, CELL + "    … 3 frames inside jax\n" + MINE),
        (CELL + JAX + CELL, CELL + "    … 1 frame inside jax\n" + CELL),
        (JAX + CELL + STDLIB, CELL + "    … 1 frame inside json\n"),
        (OURS + JAX + MINE, OURS + JAX + MINE),
    ],
    ids=["above and inside", "from the cell on", "called by another thread", "no cell in it"],
)
def test_what_is_left_of_a_stack(frames: str, left: str) -> None:
    """The cell's frames and those of the user's files remain."""
    assert trim_embedded_traceback(f"{BEGIN}{frames}ValueError: no\nmore") == f"{BEGIN}{left}ValueError: no\nmore"


@pytest.mark.parametrize(
    "message", ["", "no", 'File "<cell 1>", line 1, in f', f"said: {OURS}{CELL}", "Traceback (most recent call last):"]
)
def test_other_messages_stay(message: str) -> None:
    """Only what follows a traceback's own first line is a stack."""
    assert trim_embedded_traceback(message) == message
