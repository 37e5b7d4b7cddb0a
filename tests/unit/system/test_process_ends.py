"""Seeing processes off by force, with real ones."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from mhnb.system.processes import is_running, kill_groups, wait_until_ended


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, and a child in it."""
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True) as process:
        yield process
        process.kill()


def test_one_that_lives_is_waited_for_as_long_as_is_asked(sleeper: subprocess.Popen[bytes]) -> None:
    """The answer is no."""
    assert not wait_until_ended([psutil.Process(sleeper.pid)], 0.05)


def test_a_group_that_was_killed_is_gone_when_this_returns(sleeper: subprocess.Popen[bytes]) -> None:
    """Nobody has waited for it yet, as for a rank whose supervisor is stopped; and its child went with it."""
    shell = psutil.Process(sleeper.pid)
    (child,) = shell.children() or [shell]
    kill_groups([sleeper.pid])
    assert not is_running(shell)
    assert wait_until_ended([child], 20.0)


def test_those_that_are_gone_already_are_no_error(sleeper: subprocess.Popen[bytes]) -> None:
    """They may end in any moment."""
    kill_groups([sleeper.pid])
    assert sleeper.wait() == -signal.SIGKILL
    kill_groups([sleeper.pid])
