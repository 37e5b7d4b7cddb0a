"""How much memory a process of this machine holds. Knows nothing of what the process is."""

from __future__ import annotations

import psutil

__all__ = ["resident_nbytes"]


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
