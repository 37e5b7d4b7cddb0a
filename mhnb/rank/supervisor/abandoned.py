"""Decide whether a kept supervisor has anything left to keep, while no notebook drives its cluster."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from mhnb.system.processes import UNSEEN

__all__ = ["Abandonment", "has_callers"]

_LOOKS = 8
"""How many checks there are within the limit: a kept cluster may be idle for days, and must cost nothing."""


class Abandonment:
    """Measures how long no notebook has driven a cluster that has nothing left to drive.

    Args:
        limit_s: seconds after which it is over; 0 for never.
        is_bare: returns whether nothing is left to drive.

    >>> alone = Abandonment(10.0, lambda: True)
    >>> [alone.is_over(driven, now) for driven, now in ((False, 0.0), (True, 9.0), (False, 12.0), (False, 21.0), (False, 24.0))]
    [False, False, False, False, True]
    """

    def __init__(self, limit_s: float, is_bare: Callable[[], bool]) -> None:
        self._limit_s, self._is_bare = limit_s, is_bare
        self._since: float | None = None
        self._looked_at: float | None = None

    def is_over(self, driven: bool, now: float) -> bool:  # noqa: FBT001  # a state, and its time
        """Return whether the limit has passed; to be called repeatedly.

        Args:
            driven: whether a notebook is attached.
            now: seconds of a clock that only goes forward.
        """
        if driven or self._limit_s <= 0:
            self._since = self._looked_at = None
            return False
        if self._looked_at is not None and now - self._looked_at < self._limit_s / _LOOKS:
            return False
        self._looked_at = now
        if not self._is_bare():
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self._limit_s


def has_callers(pid: int) -> bool:
    """Return whether a process, or a child of it, has a TCP connection with a process outside of them.

    A machine that lost its power has not closed its connection. The connection stays until the kernel gives it up, on Linux
    a quarter of an hour after something was sent.
    """
    own, others = set(), set()
    try:
        hub = psutil.Process(pid)
        for process in (hub, *hub.children(recursive=True)):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_ESTABLISHED:
                    own.add(tuple(connection.laddr))
                    others.add(tuple(connection.raddr))
    except UNSEEN:
        # It is ending in this moment and its parent will learn of it, or it cannot be seen and is not judged.
        return True
    return bool(others - own)
