"""Output of code that runs between cells is captured separately from the output of cells."""

from __future__ import annotations

import sys
import threading

import pytest

from mhnb.rank.execution.streams import capture_thread_output


def test_only_this_threads_output_is_captured(capsys: pytest.CaptureFixture[str]) -> None:
    """Both streams of the capturing thread are captured; output of another thread goes where it went before."""
    with capture_thread_output() as captured:
        print("one")
        print("two", file=sys.stderr)
        other = threading.Thread(target=print, args=("other",))
        other.start()
        other.join()
    print("after")
    assert captured.text == "one\ntwo\n"
    assert capsys.readouterr().out == "other\nafter\n"


def test_long_output_is_cut() -> None:
    """A function that prints endlessly does not fill the notebook; the text says that it was cut."""
    with capture_thread_output(limit=10) as captured:
        print("x" * 50)
        print("y" * 50)
    assert captured.text == "x" * 10 + "\n… (cut)\n"


def test_streams_are_restored_after_an_error() -> None:
    """The streams are restored whatever the code raises."""
    before = sys.stdout, sys.stderr
    with pytest.raises(ValueError, match="no"), capture_thread_output():
        raise ValueError("no")
    assert (sys.stdout, sys.stderr) == before
