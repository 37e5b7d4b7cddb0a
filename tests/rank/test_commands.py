"""A command of a `!` line, without a rank around it."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time

import psutil
import pytest

from mhnb.rank.commands import run_command


@pytest.fixture(autouse=True)
def plain_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the user's, which may have another language."""
    monkeypatch.setenv("SHELL", "/bin/sh")


def said_by(command: str) -> tuple[str, int]:
    """Run a command; return what it said and its exit status."""
    said: list[str] = []
    code = run_command(command, said.append)
    return "".join(said), code


@pytest.mark.parametrize(
    ("command", "said", "code"),
    [
        ("echo a; echo b >&2; exit 4", "a\nb\n", 4),
        ("printf 'no end'", "no end", 0),
        ("printf '\\303'; sleep 0.1; printf '\\251\\n'", "\u00e9\n", 0),
        ("printf '\\377'", "\ufffd", 0),
        ("kill -9 $$", "", -9),
        ("exit 143", "", -15),
        ("test -t 1 && echo terminal", "terminal\n", 0),
        ("cat", "", 0),
        ("exec >&- 2>&-; sleep 0.2; exit 5", "", 5),
        ("seq 20000 | tail -n 1", "20000\n", 0),
    ],
)
def test_what_it_says_and_how_it_ends(command: str, said: str, code: int) -> None:
    """Both outputs in their order, on a terminal; nothing to read; a signal is told as one."""
    assert said_by(command) == (said, code)


def test_what_it_leaves_behind_is_not_waited_for() -> None:
    """A process in the background has the terminal too, and may live for ever."""
    said, code = said_by("sleep 60 & echo $!")
    assert code == 0
    psutil.Process(int(said)).kill()


def test_what_never_stops_to_speak_is_not_waited_for() -> None:
    """It has no terminal any more once the command has ended, and ends."""
    said, code = said_by("yes & echo $! >&2; sleep 0.2")
    assert code == 0
    assert "y\ny\n" in said


def test_descriptors_may_be_many() -> None:
    """A rank may have more files open than `select` can look at."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert said_by("echo said") == ("said\n", 0)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_all_of_a_long_output_comes() -> None:
    """More than a terminal holds at a time."""
    said, _ = said_by("seq 200000")
    assert said.splitlines() == [str(n) for n in range(1, 200_001)]


@pytest.mark.parametrize("stubborn", ["", "trap '' INT; "], ids=["ends", "does not end"])
def test_an_interrupt_ends_it(stubborn: str) -> None:
    """The command is gone when the interrupt goes on its way."""
    said: list[str] = []

    def interrupt(text: str) -> None:
        said.append(text)
        # Only once it runs, and not out of this call.
        threading.Thread(target=signal.raise_signal, args=(signal.SIGINT,)).start()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_command(f"{stubborn}echo $$; sleep 62; exit 0", interrupt)
    assert time.monotonic() - began < 60
    assert not psutil.pid_exists(int(said[0]))
