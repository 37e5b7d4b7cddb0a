"""Processes of this machine that are to be gone: whether they are, and the force that sees to it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence

import psutil

from mhnb.system.processes import GONE

__all__ = ["await_gone", "kill_groups", "lives"]

_LOOK_S = 0.01
_KILLED_S = 2.0
"""How long a process that was killed may take to be gone: it has its memory to give back, and no processor in a crowd."""


def lives(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended and that its parent has not looked at does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except GONE:
        return False


def await_gone(processes: Sequence[psutil.Process], limit_s: float = _KILLED_S) -> bool:
    """Wait until all are gone; false where some are not, after the limit."""
    end = time.monotonic() + limit_s
    while any(map(lives, processes)):
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_S)
    return True


def kill_groups(pids: Iterable[int]) -> None:
    """Kill process groups, and return when their leaders are gone."""
    leaders: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(*GONE):
            leaders.append(psutil.Process(pid))
        # Gone in this moment; macOS says "not permitted" of a group that has only a zombie.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    await_gone(leaders)
