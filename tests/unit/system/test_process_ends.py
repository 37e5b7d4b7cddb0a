"""Killing process groups and waiting for processes to end, with real processes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from mhnb.system.processes import is_running, kill_groups, wait_until_ended


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, with a child."""
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True) as process:
        yield process
        process.kill()


def test_one_that_lives_is_waited_for_as_long_as_is_asked(sleeper: subprocess.Popen[bytes]) -> None:
    """`wait_until_ended` returns False if the process still runs at the end of the time limit."""
    assert not wait_until_ended([psutil.Process(sleeper.pid)], 0.05)


def test_a_group_that_was_killed_is_gone_when_this_returns(sleeper: subprocess.Popen[bytes]) -> None:
    """A killed group has ended when `kill_groups` returns, with its child, though its parent has not waited for it."""
    shell = psutil.Process(sleeper.pid)
    (child,) = shell.children() or [shell]
    kill_groups([sleeper.pid])
    assert not is_running(shell)
    assert wait_until_ended([child], 20.0)


def test_those_that_are_gone_already_are_no_error(sleeper: subprocess.Popen[bytes]) -> None:
    """Killing a group that has ended is not an error, because processes may end at any moment."""
    kill_groups([sleeper.pid])
    assert sleeper.wait() == -signal.SIGKILL
    kill_groups([sleeper.pid])
