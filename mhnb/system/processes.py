"""Inspect processes of this machine from outside: memory, state, exit status and start time, whatever the process runs."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import psutil

__all__ = [
    "PROCESS_ENDED",
    "PROCESS_UNREADABLE",
    "end_with_parent",
    "find_exit_status",
    "find_start_time_s",
    "is_same_process",
    "is_stopped",
    "resident_nbytes",
]

PROCESS_ENDED = (psutil.NoSuchProcess, FileNotFoundError)
"""What psutil raises for a process that has ended.

The second is raised if a process (or only a thread) of another owner has the number a moment later.
"""

PROCESS_UNREADABLE = (psutil.Error, FileNotFoundError)
"""The same errors, and those for a process that this user may not inspect."""

_EXIT_CODE_FIELD = 49
"""Field of `/proc/PID/stat`, counted from 0 after the name: the status as `waitpid` would return it."""
_START_TIME_TOLERANCE_S = 2.0
"""Tolerance for two readings of a start time: the rounding of the boot time, with a margin. No process id is reused so soon."""
_PR_SET_PDEATHSIG = 1


def resident_nbytes(pid: int) -> int | None:
    """Return a process's resident memory in bytes, including shared pages; None if it has ended or belongs to another user.

    >>> import os
    >>> (resident_nbytes(os.getpid()) or 0) > 1_000_000
    True
    """
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except PROCESS_UNREADABLE:
        return None


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by a signal such as SIGSTOP or by a debugger, and waits to be continued.

    >>> import os
    >>> is_stopped(os.getpid())
    False
    """
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except PROCESS_UNREADABLE:
        return False


def find_exit_status(pid: int) -> tuple[int | None, int | None] | None:
    """Return exit code and signal of a process that has ended and was not reaped by its parent; None for any other process.

    Both are None if the system does not show them.

    >>> import os
    >>> find_exit_status(os.getpid()) is None
    True
    """
    try:
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return None
    except PROCESS_UNREADABLE:
        return None
    try:
        status = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[_EXIT_CODE_FIELD])
    except (OSError, IndexError):
        # Not Linux, or its parent reaped it at this moment.
        return None, None
    return (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.waitstatus_to_exitcode(status), None)


def find_start_time_s(pid: int) -> float | None:
    """Return when a process started, in seconds after boot, which clock changes do not affect.

    None if it has ended. Also None on macOS, which stores only the time of day: the process id alone has to suffice there.

    >>> import os
    >>> find_start_time_s(os.getpid()) == find_start_time_s(os.getpid())
    True
    """
    if sys.platform != "linux":
        return None
    try:
        # Read first: older psutil adds the boot time as of its last `boot_time` call.
        boot = psutil.boot_time()
        return psutil.Process(pid).create_time() - boot
    except PROCESS_UNREADABLE:
        return None


def is_same_process(pid: int, start_time_s: float | None) -> bool:
    """Return whether a process still lives that had this id and start time, because the system reuses ids for any process.

    Args:
        pid: the process id.
        start_time_s: the result of `find_start_time_s`; None if unknown, so that the id has to suffice.

    >>> import os
    >>> is_same_process(os.getpid(), find_start_time_s(os.getpid()))
    True
    """
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            # It has ended, but its parent, which may be stopped, has not reaped it.
            return False
    except PROCESS_UNREADABLE:
        return psutil.pid_exists(pid) and start_time_s is None
    if start_time_s is None:
        return True
    now_s = find_start_time_s(pid)
    return now_s is not None and abs(now_s - start_time_s) < _START_TIME_TOLERANCE_S


def end_with_parent(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL. Linux only; elsewhere the rank checks its parent itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
