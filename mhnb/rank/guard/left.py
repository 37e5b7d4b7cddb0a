"""What this rank left behind in cells that have ended: collectives that still run or wait, and that no later launch may meet."""

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
    """Launches that communicate and were under way when their cell ended."""

    def __init__(self) -> None:
        self._left: list[tuple[int, _Launch]] = []
        self._expected: list[tuple[int, _Launch]] = []
        self._given_up: list[tuple[int, LaunchRow]] = []
        # A thread of the user's may look while a cell ends: nothing that was left may be lost. A finalizer may look in between.
        self._lock = threading.RLock()
        self.refused = False
        """Whether one stood in the way of a launch of the cell that runs."""

    def add(self, seq: int, launches: Sequence[_Launch]) -> None:
        """Take in what a cell has left."""
        with self._lock:
            self._left += [(seq, launch) for launch in launches]

    def expect(self, seq: int, launches: Sequence[_Launch]) -> None:
        """Take in what a cell has not waited for, though it ends by itself: all who take part in it launched it."""
        with self._lock:
            self._expected += [(seq, launch) for launch in launches]

    def take_given_up(self) -> list[tuple[int, LaunchRow]]:
        """Return the expected launches, with their cells, whose end the cell that runs was interrupted waiting for."""
        with self._lock:
            given_up, self._given_up = self._given_up, []
        return given_up

    def count(self) -> int:
        """Say how many still run or wait."""
        with self._lock:
            self._left = [(seq, left) for seq, left in self._left if left.is_under_way()]
            return len(self._left)

    def is_under_way(self) -> bool:
        """Whether anything still runs or waits, also of what ends by itself."""
        return bool(self._left or self._expected) and bool(self.count() or self._still_expected())

    def check(self, name: str, participants: Collection[int]) -> None:
        """Hold that none of them waits for ranks that a new launch would reach; what ends by itself is waited for.

        The ranks that met it would take the one for the other, and read a wrong number: also where the user has accepted that.
        Nor does what all launched end where it failed on one of them: that rank would meet the others in it.

        Raises:
            OrderMismatch: there is one.
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
        """Wait. A look at this rank's stack knows the wait by this function's name.

        An interrupt gives them up: they may never end, and what would meet them is refused from then on.
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
