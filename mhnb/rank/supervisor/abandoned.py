"""Decide whether a kept supervisor has anything left to keep, while no notebook drives its cluster."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from mhnb.system.processes import PROCESS_UNREADABLE

__all__ = ["OrphanTimer", "has_connections"]

_CHECKS_PER_LIMIT = 8
"""How many checks there are within the limit: a kept cluster may be idle for days, and must cost nothing."""


class OrphanTimer:
    """Measures how long no notebook has driven a cluster that has nothing left to drive.

    Args:
        limit_s: seconds after which it is over; 0 for never.
        has_nothing_left: returns whether nothing is left to drive.

    >>> alone = OrphanTimer(10.0, lambda: True)
    >>> samples = ((False, 0.0), (True, 9.0), (False, 12.0), (False, 21.0), (False, 24.0))
    >>> [alone.has_expired(is_attached, now) for is_attached, now in samples]
    [False, False, False, False, True]
    """

    def __init__(self, limit_s: float, has_nothing_left: Callable[[], bool]) -> None:
        self._limit_s, self._has_nothing_left = limit_s, has_nothing_left
        self._since: float | None = None
        self._checked_at: float | None = None

    def has_expired(self, is_attached: bool, now: float) -> bool:  # noqa: FBT001  # a state, and its time
        """Return whether the limit has passed; to be called repeatedly.

        Args:
            is_attached: whether a notebook is attached.
            now: seconds of a clock that only goes forward.
        """
        if is_attached or self._limit_s <= 0:
            self._since = self._checked_at = None
            return False
        if self._checked_at is not None and now - self._checked_at < self._limit_s / _CHECKS_PER_LIMIT:
            return False
        self._checked_at = now
        if not self._has_nothing_left():
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self._limit_s


def has_connections(pid: int) -> bool:
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
    except PROCESS_UNREADABLE:
        # It is ending in this moment and its parent will learn of it, or it cannot be seen and is not judged.
        return True
    return bool(others - own)
