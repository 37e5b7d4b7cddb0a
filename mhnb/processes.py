"""What can be seen of a process of this machine from outside. Knows nothing of what the process is."""

from __future__ import annotations

import psutil

__all__ = ["is_halted", "resident_nbytes"]


def resident_nbytes(pid: int) -> int | None:
    """Give a process's resident memory in bytes, pages that it shares included; None when it is gone or another user's.

    >>> import os
    >>> (resident_nbytes(os.getpid()) or 0) > 1_000_000
    True
    """
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def is_halted(pid: int) -> bool:
    """Whether a process was halted by a signal such as SIGSTOP, or by a debugger, and waits to be let go on.

    >>> import os
    >>> is_halted(os.getpid())
    False
    """
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False
