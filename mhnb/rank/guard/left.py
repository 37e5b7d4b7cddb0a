"""Collectives that this rank abandoned in cells that have ended: they still run or wait, and no later launch may meet them."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from mhnb.core.guard.rules import STILL_ABANDONED
from mhnb.core.wire.protocol import LaunchRow
from mhnb.errors import OrderMismatch
from mhnb.rank.guard.localwork import poll_pauses_s

__all__ = ["AbandonedLaunches"]


class _Launch(Protocol):
    row: LaunchRow

    def is_running(self) -> bool: ...


class AbandonedLaunches:
    """Collective launches that were under way when their cell ended."""

    def __init__(self) -> None:
        self._abandoned: list[tuple[int, _Launch]] = []
        self._expected: list[tuple[int, _Launch]] = []
        self._given_up: list[tuple[int, LaunchRow]] = []
        # A user's thread may poll while a cell ends: no abandoned launch may get lost. A finalizer may poll in between.
        self._lock = threading.RLock()
        self.has_refused_launch = False
        """Whether an abandoned launch blocked a launch of the running cell."""

    def add(self, seq: int, launches: Sequence[_Launch]) -> None:
        """Record the launches that a cell abandoned."""
        with self._lock:
            self._abandoned += [(seq, launch) for launch in launches]

    def add_expected(self, seq: int, launches: Sequence[_Launch]) -> None:
        """Record launches that a cell did not wait for, though they end by themselves: all participants made them."""
        with self._lock:
            self._expected += [(seq, launch) for launch in launches]

    def take_given_up(self) -> list[tuple[int, LaunchRow]]:
        """Return the expected launches, with their cells, for which the running cell was interrupted while it waited."""
        with self._lock:
            given_up, self._given_up = self._given_up, []
        return given_up

    def count_running(self) -> int:
        """Return how many abandoned launches still run or wait."""
        with self._lock:
            self._abandoned = [(seq, launch) for seq, launch in self._abandoned if launch.is_running()]
            return len(self._abandoned)

    def has_running(self) -> bool:
        """Return whether any launch still runs or waits, including those that end by themselves."""
        return bool(self._abandoned or self._expected) and bool(self.count_running() or self._list_expected())

    def check(self, name: str, participants: Collection[int]) -> None:
        """Check that no abandoned launch waits for ranks that a new launch would reach; wait for launches that end by themselves.

        Ranks that met an abandoned launch would take one launch for the other, and read a wrong number, even if the user accepted
        that. A launch that all participants made does not end either if it failed on one of them: that rank would meet the others in
        it.

        Raises:
            OrderMismatch: an abandoned launch waits for such ranks.
        """
        if self._expected:
            self._outlast(participants)
        if not self._abandoned or not self.count_running():
            return
        for seq, launch in self._abandoned:
            if not set(participants).isdisjoint(launch.row[2]):
                self.has_refused_launch = True
                raise OrderMismatch(
                    f"nothing was launched\n  {name} would meet {launch.row[1]} of cell {seq}, {STILL_ABANDONED}"
                    "\n  Wait until it ends, if it does; else %mhjax restart --replay",
                    result=None,
                )

    def _outlast(self, participants: Collection[int]) -> None:
        """Wait for the expected launches of these participants. Stack samples recognise the wait by this function's name.

        An interrupt gives them up: they may never end, and launches that would meet them are refused from then on.
        """
        pauses = poll_pauses_s()
        try:
            while any(not set(participants).isdisjoint(launch.row[2]) for _, launch in self._list_expected()):
                time.sleep(next(pauses))
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        with self._lock:
            given_up = [(seq, launch) for seq, launch in self._expected if launch.is_running()]
            self._expected = []
            self._abandoned += given_up
            self._given_up += [(seq, launch.row) for seq, launch in given_up]

    def _list_expected(self) -> list[tuple[int, _Launch]]:
        with self._lock:
            self._expected = [(seq, launch) for seq, launch in self._expected if launch.is_running()]
            return self._expected
