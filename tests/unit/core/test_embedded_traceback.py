"""A traceback inside a message: frames above the cell are removed, library frames are counted, everything else stays."""

from __future__ import annotations

import pytest

from mhnb.core.error_site import trim_embedded_traceback

BEGIN = "INTERNAL: CpuCallback error: Traceback (most recent call last):\n"
MHNB_FRAMES = '  File "<frozen runpy>", line 198, in _run\n  File "/h/mhnb/rank/execution/runner.py", line 2, in run\n'
JAX_FRAME = '  File "/v/lib/python3.11/site-packages/jax/_src/pjit.py", line 1, in call\n'
STDLIB_FRAME = '  File "/u/lib/python3.11/json/decoder.py", line 1, in decode\n'
OWN_FRAME = '  File "/h/mhnb/rank/execution/callbacks.py", line 4, in _call\n'
CELL_FRAME, USER_FRAME = '  File "<cell 3>", line 2, in f\n', '  File "/mine/data.py", line 7, in read\n'


@pytest.mark.parametrize(
    ("frames", "left"),
    [
        (
            MHNB_FRAMES + CELL_FRAME + JAX_FRAME * 3 + USER_FRAME,
            CELL_FRAME + "    … 3 frames inside jax\n" + USER_FRAME,
        ),
        (CELL_FRAME + JAX_FRAME + OWN_FRAME + JAX_FRAME, CELL_FRAME + "    … 2 frames inside jax\n"),
        (CELL_FRAME + JAX_FRAME + CELL_FRAME, CELL_FRAME + "    … 1 frame inside jax\n" + CELL_FRAME),
        (JAX_FRAME + CELL_FRAME + STDLIB_FRAME, CELL_FRAME + "    … 1 frame inside json\n"),
        (MHNB_FRAMES + JAX_FRAME + USER_FRAME, MHNB_FRAMES + JAX_FRAME + USER_FRAME),
    ],
    ids=["above and inside", "around mhnb", "from the cell on", "called by another thread", "no cell in it"],
)
def test_embedded_traceback_is_trimmed(frames: str, left: str) -> None:
    """The cell's frames and those of the user's files remain."""
    assert trim_embedded_traceback(f"{BEGIN}{frames}ValueError: no\nmore") == f"{BEGIN}{left}ValueError: no\nmore"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "no",
        'File "<cell 1>", line 1, in f',
        f"said: {MHNB_FRAMES}{CELL_FRAME}",
        "Traceback (most recent call last):",
    ],
)
def test_other_messages_are_unchanged(message: str) -> None:
    """Only what follows a traceback's own first line is a stack."""
    assert trim_embedded_traceback(message) == message
