"""Work still unfinished when a cell ends: abandoned collectives and unrecorded arrays.

Abandoned collectives still run or wait in cells that have ended, and no later launch may meet them.

Arrays without a launch record are waited for at the end of the cell, as recorded launches are. JAX launches most programs from C++,
where no launch is recorded: programs of one process, programs without a collective, and every program under `--guard off`. So the rank
checks JAX's list of live arrays for those that are not ready yet. A launch whose results were all dropped is not in the list, and
cannot be detected any more.
This module does not import JAX: an array is any object with `is_ready`, `is_deleted` and `block_until_ready`.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from mhnb.core.guard.launch_report import LaunchRow
from mhnb.core.guard.launches import STILL_ABANDONED
from mhnb.core.messages import RunCell
from mhnb.errors import OrderMismatch
from mhnb.rank.execution.cell_names import CELL_NAMES
from mhnb.rank.execution.stack_sampler import own_wait

_SHORT_PAUSES_S = (0.0,) * 20 + (20e-6,) * 50 + (200e-6,) * 50
"""Pauses between two polls. Short ones come first, because most launches end within 1 ms."""
_PAUSE_GROWTH = 1.02
"""After those, a pause is 2 % of the time waited so far, from 2 ms to `_LONGEST_PAUSE_S`."""
_FIRST_LONG_PAUSE_S, _LONGEST_PAUSE_S = 2e-3, 0.1
_EMPTY_CELL = re.compile(r"\s*(?:pass)?\s*")
"""Matches the source of a cell that starts nothing."""


def poll_pauses_s() -> Iterator[float]:
    """Yield the seconds to sleep between two polls, without end."""
    yield from _SHORT_PAUSES_S
    # since jax 0.10.2: each `is_ready` of an array of several devices leaks 400 bytes, so a long wait polls rarely.
    pause_s = _FIRST_LONG_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)


class LocalArrays:
    """The arrays that are not ready when a cell ends.

    Args:
        list_arrays: returns every live array, by platform, the newest first. Listing 1,000 takes 15 us and polling each takes 150 us
            more, so arrays older than one that was polled are not polled again.
    """

    def __init__(
        self,
        list_arrays: Callable[[], Sequence[Sequence[Any]]],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._list_arrays, self._sleep, self._clock = list_arrays, sleep, clock
        self._is_empty_cell = False
        self._polled: dict[int, weakref.ref[Any]] = {}
        """Some of the arrays that were polled, by id; every older array was polled with them."""
        self._abandoned: list[weakref.ref[Any]] = []
        """Arrays not ready when their cell was given up. They may wait for a collective that never ends: no later cell waits for them."""
        self.has_given_up = False
        """Whether the running cell has given up on some arrays."""

    def begin_cell(self, cell: RunCell) -> None:
        """Reset for a new cell, and record whether it can start anything."""
        self._is_empty_cell, self.has_given_up = _EMPTY_CELL.fullmatch(cell.source) is not None, False

    def wait(self, limit_s: float | None = None) -> Exception | None:
        """Wait until all arrays are ready, or an interrupt comes.

        Args:
            limit_s: give up after about this many seconds; None waits forever.

        Returns:
            The error of the first array that failed among those that were not ready yet: the user cannot have seen it before.
        """
        if self._is_empty_cell:
            return None
        platforms = self._list_arrays()
        new_arrays = [array for arrays in platforms for array in self._newer_than_polled(arrays)]
        if not new_arrays:
            return None
        waiting = self._exclude_abandoned([array for array in new_arrays if not _is_finished(array)])
        failure = self._outwait(waiting, limit_s)
        self._record_polled(platforms)
        return failure

    def _newer_than_polled(self, arrays: Sequence[Any]) -> Sequence[Any]:
        for index, array in enumerate(arrays):
            known = self._polled.get(id(array))
            if known is not None and known() is array:
                return arrays[:index]
        return arrays

    def _record_polled(self, platforms: Sequence[Sequence[Any]]) -> None:
        # Keep a few, at growing distances, because many of the newest arrays do not live long.
        self._polled.clear()
        for arrays in platforms:
            index = 0
            while index < len(arrays):
                self._polled[id(arrays[index])] = weakref.ref(arrays[index])
                index = 2 * index + 1

    def _exclude_abandoned(self, arrays: list[Any]) -> list[Any]:
        if not arrays:
            return arrays
        abandoned_ids = {id(array) for ref in self._abandoned if (array := ref()) is not None}
        return [array for array in arrays if id(array) not in abandoned_ids]

    @own_wait("end of cell")
    def _outwait(self, waiting: list[Any], limit_s: float | None) -> Exception | None:
        failure: Exception | None = None
        pauses, began_s = poll_pauses_s(), self._clock()
        while waiting:
            # The oldest first: the others may be computed from it, and fail with it.
            array = waiting[-1]
            if _is_finished(array):
                failure = failure or _get_failure(array)
                waiting.pop()
                continue
            if limit_s is not None and self._clock() - began_s >= limit_s:
                self.has_given_up = True
                self._abandoned = [ref for ref in self._abandoned if ref() is not None] + [
                    weakref.ref(each) for each in waiting
                ]
                return failure
            self._sleep(next(pauses))
        return failure


def _is_finished(array: Any) -> bool:
    try:
        return bool(array.is_ready())
    except RuntimeError:
        # The array is deleted; a user's thread may have donated it in between.
        return True


def _get_failure(array: Any) -> Exception | None:
    if array.is_deleted():
        return None
    try:
        array.block_until_ready()
    except Exception as error:  # noqa: BLE001 - any failure of the program: the caller of `wait` raises it
        return error
    return None


# -- abandoned collectives


class _Launch(Protocol):
    row: LaunchRow

    def is_running(self) -> bool: ...


class UnknownLaunch:
    """An unrecorded collective that a signal may have left waiting."""

    def __init__(self, process_count: int) -> None:
        self.row = LaunchRow("", "an unrecorded collective", tuple(range(process_count)), None, 1)

    def is_running(self) -> bool:
        """Return True: it may be."""
        return True


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

    def begin_cell(self, cell: RunCell) -> None:
        """Reset for a new cell. What was abandoned stays abandoned."""
        del cell
        self.has_refused_launch = False

    def add(self, seq: int, launches: Sequence[_Launch]) -> None:
        """Record the launches that a cell abandoned."""
        with self._lock:
            self._abandoned += [(seq, launch) for launch in launches]

    def add_expected(self, seq: int, launches: Sequence[_Launch]) -> None:
        """Record agreed launches that the cell left to end by themselves."""
        with self._lock:
            self._expected += [(seq, launch) for launch in launches]

    def take_given_up(self) -> list[tuple[int, LaunchRow]]:
        """Return and forget the expected launches whose wait was interrupted."""
        with self._lock:
            given_up, self._given_up = self._given_up, []
        return given_up

    def count_running(self) -> int:
        """Return how many abandoned launches still run or wait."""
        with self._lock:
            self._abandoned = [(seq, launch) for seq, launch in self._abandoned if launch.is_running()]
            return len(self._abandoned)

    def has_running(self) -> bool:
        """Return whether any abandoned or expected launch still runs or waits."""
        return bool(self._abandoned or self._expected) and bool(self.count_running() or self._list_expected())

    def check(self, name: str, participants: Collection[int]) -> None:
        """Wait for expected launches; check that a launch meets no abandoned one.

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
            if not set(participants).isdisjoint(launch.row.participants):
                self.has_refused_launch = True
                # The cluster is tainted then, and the note on that has the other way out.
                wait = "" if isinstance(launch, UnknownLaunch) else "\n  Wait until it ends, then: %mhjax accept"
                raise OrderMismatch(
                    f"nothing was launched\n  {STILL_ABANDONED} {launch.row.name} of {CELL_NAMES.format_name(seq)}."
                    f" {name} could join it and give wrong results.{wait}",
                    result=None,
                )

    @own_wait("earlier cell")
    def _outlast(self, participants: Collection[int]) -> None:
        """Wait for the expected launches of these participants.

        An interrupt gives them up: they may never end, and launches that would meet them are refused from then on.
        """
        pauses = poll_pauses_s()
        try:
            while any(not set(participants).isdisjoint(launch.row.participants) for _, launch in self._list_expected()):
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
