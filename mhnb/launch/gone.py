"""Wait for processes of this machine to end, and kill process groups."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence

import psutil

from mhnb.system.processes import PROCESS_ENDED

__all__ = ["is_running", "kill_groups", "wait_until_ended"]

_POLL_S = 0.01
_KILL_WAIT_S = 2.0
"""How long a killed process may take to end: it must free its memory, and may get little processor time on a busy machine."""


def is_running(process: psutil.Process) -> bool:
    """Return whether it runs; a process that has ended but was not reaped by its parent does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except PROCESS_ENDED:
        return False


def wait_until_ended(processes: Sequence[psutil.Process], limit_s: float = _KILL_WAIT_S) -> bool:
    """Wait until all have ended; return False if some have not within the limit."""
    end = time.monotonic() + limit_s
    while any(map(is_running, processes)):
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True


def kill_groups(pids: Iterable[int]) -> None:
    """Kill process groups, and return when their leaders have ended."""
    leaders: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(*PROCESS_ENDED):
            leaders.append(psutil.Process(pid))
        # It ended at this moment; macOS raises "not permitted" for a group that has only a zombie.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    wait_until_ended(leaders)
