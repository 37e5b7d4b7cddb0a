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


def test_waiting_for_running_process_times_out(sleeper: subprocess.Popen[bytes]) -> None:
    """`wait_until_ended` returns False if the process still runs at the end of the time limit."""
    assert not wait_until_ended([psutil.Process(sleeper.pid)], 0.05)


def test_killed_group_has_ended_on_return(sleeper: subprocess.Popen[bytes]) -> None:
    """A killed group has ended when `kill_groups` returns, with its child, though its parent has not waited for it."""
    shell = psutil.Process(sleeper.pid)
    (child,) = shell.children() or [shell]
    kill_groups([sleeper.pid])
    assert not is_running(shell)
    assert wait_until_ended([child], 20.0)


def test_killing_ended_group_is_not_an_error(sleeper: subprocess.Popen[bytes]) -> None:
    """Killing a group that has ended is not an error, because processes may end at any moment."""
    kill_groups([sleeper.pid])
    assert sleeper.wait() == -signal.SIGKILL
    kill_groups([sleeper.pid])
