"""Arrays that a cell started without a launch record; the cell waits for them at its end, as for recorded launches.

JAX launches most programs from C++, where no launch is recorded: programs of one process, programs without a collective, and every
program under `--guard off`. So the rank checks JAX's list of live arrays for those that are not ready yet. A launch whose results were
all dropped is not in the list, and cannot be detected any more. This module does not import JAX: an array is any object with
`is_ready`, `is_deleted`, `is_fully_addressable`, `sharding` and `block_until_ready`.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["LocalArrays", "poll_pauses_s"]

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
        self.abandoned_shared: list[Any] = []
        """Those of them in which other ranks have a part."""

    def begin_cell(self, source: str) -> None:
        """Reset for a new cell, and record whether the cell can start anything at all."""
        self._is_empty_cell, self.has_given_up, self.abandoned_shared = (
            _EMPTY_CELL.fullmatch(source) is not None,
            False,
            [],
        )

    def wait(self, limit_s: float | None = None) -> Exception | None:
        """Wait until all arrays are ready. An interrupt ends the wait at once.

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
                self.abandoned_shared = [each for each in waiting if not each.is_fully_addressable]
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
