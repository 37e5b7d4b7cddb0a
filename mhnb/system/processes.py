"""What can be seen of a process of this machine from outside. Knows nothing of what the process is."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import psutil

__all__ = ["GONE", "UNSEEN", "end_with_parent", "find_began_s", "find_end", "is_halted", "is_still", "resident_nbytes"]

GONE = (psutil.NoSuchProcess, FileNotFoundError)
"""What psutil raises for a process that has ended: the second where its number has another owner, if only a thread, a moment later."""

UNSEEN = (psutil.Error, FileNotFoundError)
"""The same, and of a process that this user may not look at."""

_EXIT_CODE_FIELD = 49
"""Of `/proc/PID/stat`, counted from 0 behind the name: the status as `waitpid` would return it."""
_SAME_S = 2.0
"""What the time of boot is rounded by, with room. No number comes round so soon."""
_PR_SET_PDEATHSIG = 1


def resident_nbytes(pid: int) -> int | None:
    """Give a process's resident memory in bytes, pages that it shares included; None when it is gone or another user's.

    >>> import os
    >>> (resident_nbytes(os.getpid()) or 0) > 1_000_000
    True
    """
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except UNSEEN:
        return None


def is_halted(pid: int) -> bool:
    """Whether a process was halted by a signal such as SIGSTOP, or by a debugger, and waits to be let go on.

    >>> import os
    >>> is_halted(os.getpid())
    False
    """
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except UNSEEN:
        return False


def find_end(pid: int) -> tuple[int | None, int | None] | None:
    """Return exit code and signal of a process that has ended, and that its parent has not waited for; None of any other.

    Both are None where the system does not show them.

    >>> import os
    >>> find_end(os.getpid()) is None
    True
    """
    try:
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return None
    except UNSEEN:
        return None
    try:
        status = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[_EXIT_CODE_FIELD])
    except (OSError, IndexError):
        # No Linux, or its parent has waited for it in this moment.
        return None, None
    return (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.waitstatus_to_exitcode(status), None)


def find_began_s(pid: int) -> float | None:
    """Give when a process began, in seconds after the boot, which no change of the clock touches.

    None when it is gone, and on macOS, which knows the time of day only: there the number alone has to do.

    >>> import os
    >>> find_began_s(os.getpid()) == find_began_s(os.getpid())
    True
    """
    if sys.platform != "linux":
        return None
    try:
        # Before the other: older psutil adds the time of boot as it was known when it was asked last.
        boot = psutil.boot_time()
        return psutil.Process(pid).create_time() - boot
    except UNSEEN:
        return None


def is_still(pid: int, began_s: float | None) -> bool:
    """Whether a process lives that had this number and began then: the system gives numbers again, to any process.

    Args:
        pid: its number.
        began_s: as `find_began_s` gave it; None where that is not known, and the number has to do.

    >>> import os
    >>> is_still(os.getpid(), find_began_s(os.getpid()))
    True
    """
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            # It has ended, and its parent, which may be halted, has not looked.
            return False
    except UNSEEN:
        return psutil.pid_exists(pid) and began_s is None
    if began_s is None:
        return True
    now_s = find_began_s(pid)
    return now_s is not None and abs(now_s - began_s) < _SAME_S


def end_with_parent(parent: int) -> None:
    """Die when the supervisor dies, even by SIGKILL. Linux only; elsewhere the rank's own lifeline looks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
