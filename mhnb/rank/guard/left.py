"""Collectives that this rank abandoned in cells that have ended: they still run or wait, and no later launch may meet them."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from mhnb.core.guard.rules import STILL_LEFT
from mhnb.core.wire.protocol import LaunchRow
from mhnb.errors import OrderMismatch
from mhnb.rank.guard.localwork import pauses_s

__all__ = ["LeftLaunches"]


class _Launch(Protocol):
    row: LaunchRow

    def is_under_way(self) -> bool: ...


class LeftLaunches:
    """Collective launches that were under way when their cell ended."""

    def __init__(self) -> None:
        self._left: list[tuple[int, _Launch]] = []
        self._expected: list[tuple[int, _Launch]] = []
        self._given_up: list[tuple[int, LaunchRow]] = []
        # A user's thread may poll while a cell ends: no abandoned launch may get lost. A finalizer may poll in between.
        self._lock = threading.RLock()
        self.refused = False
        """Whether an abandoned launch blocked a launch of the running cell."""

    def add(self, seq: int, launches: Sequence[_Launch]) -> None:
        """Record the launches that a cell abandoned."""
        with self._lock:
            self._left += [(seq, launch) for launch in launches]

    def expect(self, seq: int, launches: Sequence[_Launch]) -> None:
        """Record launches that a cell did not wait for, though they end by themselves: all participants made them."""
        with self._lock:
            self._expected += [(seq, launch) for launch in launches]

    def take_given_up(self) -> list[tuple[int, LaunchRow]]:
        """Return the expected launches, with their cells, for which the running cell was interrupted while it waited."""
        with self._lock:
            given_up, self._given_up = self._given_up, []
        return given_up

    def count(self) -> int:
        """Return how many abandoned launches still run or wait."""
        with self._lock:
            self._left = [(seq, left) for seq, left in self._left if left.is_under_way()]
            return len(self._left)

    def is_under_way(self) -> bool:
        """Return whether any launch still runs or waits, including those that end by themselves."""
        return bool(self._left or self._expected) and bool(self.count() or self._still_expected())

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
        if not self._left or not self.count():
            return
        for seq, left in self._left:
            if not set(participants).isdisjoint(left.row[2]):
                self.refused = True
                raise OrderMismatch(
                    f"nothing was launched\n  {name} would meet {left.row[1]} of cell {seq}, {STILL_LEFT}"
                    "\n  Wait until it ends, if it does; else %mhjax restart --replay",
                    result=None,
                )

    def _outlast(self, participants: Collection[int]) -> None:
        """Wait for the expected launches of these participants. Stack samples recognise the wait by this function's name.

        An interrupt gives them up: they may never end, and launches that would meet them are refused from then on.
        """
        pauses = pauses_s()
        try:
            while any(not set(participants).isdisjoint(launch.row[2]) for _, launch in self._still_expected()):
                time.sleep(next(pauses))
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        with self._lock:
            given_up = [(seq, launch) for seq, launch in self._expected if launch.is_under_way()]
            self._expected = []
            self._left += given_up
            self._given_up += [(seq, launch.row) for seq, launch in given_up]

    def _still_expected(self) -> list[tuple[int, _Launch]]:
        with self._lock:
            self._expected = [(seq, launch) for seq, launch in self._expected if launch.is_under_way()]
            return self._expected
