"""Tracebacks with library frames collapsed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from IPython.core.ultratb import AutoFormattedTB

from mhnb.types import RankError
from mhnb.view.cell.failures import (
    collapse_traceback,
    count_user_frames,
    format_trace_text,
    full_message,
    has_extra_information,
    trim_traceback,
)
from tests.support.view_samples import FRAME, HELPER, JAX_FRAME, TRACEBACK


def test_frames_of_jax_are_collapsed_to_one_line() -> None:
    """Hidden and visible JAX frames are counted together; the user's frames stay."""
    parts = collapse_traceback(TRACEBACK)
    assert [part.label for part in parts] == ["", "… 3 frames inside jax", ""]
    assert "core.py" in parts[1].text


def test_frames_of_several_libraries_are_collapsed_together() -> None:
    """Frames of mhnb are collapsed with those of JAX, because neither helps the user."""
    ours = "File /v/site-packages/mhnb/rank/execution/runner.py:7, in run\n----> 7 x"
    assert collapse_traceback([JAX_FRAME, ours])[0].label == "… 2 frames inside jax and mhnb"


@pytest.mark.parametrize(
    "path", ["<frozen os>", "/usr/lib/python3.11/json/decoder.py", "~/conda/lib/python3.13/ast.py"]
)
def test_frames_of_the_standard_library_are_collapsed(path: str) -> None:
    """Frames of Python's own modules are collapsed, because the user wrote none of them."""
    assert collapse_traceback([f"File {path}:7, in f\n----> 7 x"])[0].label == "… 1 frame inside Python"
    site = path.replace("json", "site-packages").replace("ast", "site-packages/flax/ast")
    assert "<" in path or collapse_traceback([f"File {site}:7, in f\n----> 7 x"])[0].label == ""


@pytest.mark.parametrize("path", ["~/mhnb/train.py", "/data/jax/train.py", "/v/site-packages/flax/linen.py"])
def test_user_files_are_never_collapsed(path: str) -> None:
    """A user's file is not collapsed, even if its directory happens to be named mhnb or jax."""
    assert collapse_traceback([f"File {path}:7, in f\n----> 7 x"])[0].label == ""


def test_the_users_frames_are_counted() -> None:
    """User frames are counted, because with a single one the cell's line is enough."""
    assert count_user_frames(TRACEBACK) == 1
    assert count_user_frames([FRAME, HELPER, JAX_FRAME]) == 2


def test_title_and_message_are_not_repeated() -> None:
    """Title and message are left out of the traceback; the frames stay."""
    error = RankError("ValueError", "cannot reshape", TRACEBACK)
    text = format_trace_text(trim_traceback(error), color=False)
    assert "cannot reshape" not in text
    assert "Traceback" not in text
    assert "In[1], line 3" in text


@pytest.mark.parametrize("notes", [(), ("seen in part 3", "two\nlines")])
def test_notes_follow_the_message(notes: tuple[str, ...]) -> None:
    """Notes follow the message as Python prints them (PEP 678), so the traceback does not repeat them."""
    error = RankError("ValueError", "cannot reshape", (*TRACEBACK, *notes))
    assert full_message(error) == "\n".join(["cannot reshape", *notes])
    assert trim_traceback(error) == trim_traceback(RankError("ValueError", "cannot reshape", TRACEBACK))


def test_syntax_error_shows_its_caret() -> None:
    """A syntax error has extra information, because the line alone does not show the position of the error."""
    assert has_extra_information(RankError("SyntaxError", "'(' was never closed", ("  x = (1 +", "      ^"), line=1))
    assert not has_extra_information(RankError("ValueError", "m", TRACEBACK, line=3))


def _divide(number: int) -> float:
    return 1 / number


@pytest.mark.parametrize("theme", ["linux", "neutral", "nocolor"])
def test_traceback_rendered_by_ipython_is_parsed(theme: str) -> None:
    """IPython's own rendering is parsed in every theme."""
    renderer = AutoFormattedTB(mode="Context", theme_name=theme)
    with pytest.raises(ZeroDivisionError) as caught:
        _divide(0)
    rendered = renderer.structured_traceback(caught.type, caught.value, caught.tb)
    assert count_user_frames(rendered) == 2
    assert [part.label for part in collapse_traceback(rendered)] == [""]


@pytest.mark.parametrize(
    ("line", "traceback", "more"),
    [
        (4, [FRAME], False),
        (None, [], True),
        (4, [FRAME, HELPER], True),
        (4, [FRAME, "The above exception was the direct cause of the following exception:", "KeyError: 'x'"], True),
        (4, ["  + Exception Group Traceback (most recent call last):"], True),
    ],
)
def test_traceback_with_extra_information_is_recognised(line: int | None, traceback: list[str], *, more: bool) -> None:
    """Other frames, a cause without frames, and the errors of a group are shown nowhere else."""
    assert has_extra_information(RankError("ValueError", "no", tuple(traceback), line=line)) == more


def test_frames_that_repeat_the_cells_line_add_nothing() -> None:
    """A function on the line that calls it gives two frames with the same line; a third one, on another line, adds to it."""
    error = RankError("ValueError", "no", (FRAME, JAX_FRAME, FRAME), line=3, code="x = x.reshape(7, -1)")
    assert not has_extra_information(error)
    assert has_extra_information(replace(error, traceback=(FRAME, FRAME, FRAME.replace("3", "4"))))
    assert has_extra_information(replace(error, code="another line"))
