"""What is printed by code that is run between cells is kept apart from the cells' own output."""

from __future__ import annotations

import sys
import threading

import pytest

from mhnb.rank.execution.streams import capture_thread_output


def test_only_this_threads_words_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """Both streams of the thread that listens; what another thread prints goes where it always went."""
    with capture_thread_output() as heard:
        print("one")
        print("two", file=sys.stderr)
        other = threading.Thread(target=print, args=("other",))
        other.start()
        other.join()
    print("after")
    assert heard.text == "one\ntwo\n"
    assert capsys.readouterr().out == "other\nafter\n"


def test_much_is_cut() -> None:
    """A function that prints without end does not fill the notebook; that it was cut is said."""
    with capture_thread_output(limit=10) as heard:
        print("x" * 50)
        print("y" * 50)
    assert heard.text == "x" * 10 + "\n… (cut)\n"


def test_streams_come_back_after_an_error() -> None:
    """Whatever the code raises."""
    before = sys.stdout, sys.stderr
    with pytest.raises(ValueError, match="no"), capture_thread_output():
        raise ValueError("no")
    assert (sys.stdout, sys.stderr) == before
