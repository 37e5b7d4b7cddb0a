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

__all__ = ["LocalWork", "pauses_s"]

_PAUSES_S = (0.0,) * 20 + (20e-6,) * 50 + (200e-6,) * 50
"""Pauses between two polls. Short ones come first, because most launches end within 1 ms."""
_GROWTH = 1.02
"""After those, a pause is 2 % of the time waited so far, from 2 ms to `_LONGEST_S`."""
_FIRST_LONG_S, _LONGEST_S = 2e-3, 0.1
_IDLE = re.compile(r"\s*(?:pass)?\s*")
"""Matches the source of a cell that starts nothing."""


def pauses_s() -> Iterator[float]:
    """Yield the seconds to sleep between two polls, without end."""
    yield from _PAUSES_S
    # since jax 0.10.2: each `is_ready` of an array of several devices leaks 400 bytes, so a long wait polls rarely.
    pause_s = _FIRST_LONG_S
    while True:
        yield pause_s
        pause_s = min(pause_s * _GROWTH, _LONGEST_S)


class LocalWork:
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
        self._list, self._sleep, self._clock = list_arrays, sleep, clock
        self._is_idle = False
        self._seen: dict[int, weakref.ref[Any]] = {}
        """Some of the arrays that were polled, by id; every older array was polled with them."""
        self._left: list[weakref.ref[Any]] = []
        """Arrays not ready when their cell was given up. They may wait for a collective that never ends: no later cell waits for them."""
        self.gave_up = False
        """Whether the running cell has given up on some arrays."""
        self.shared: list[Any] = []
        """Those of them in which other ranks have a part."""

    def begin_cell(self, source: str) -> None:
        """Reset for a new cell, and record whether the cell can start anything at all."""
        self._is_idle, self.gave_up, self.shared = _IDLE.fullmatch(source) is not None, False, []

    def wait(self, limit_s: float | None = None) -> Exception | None:
        """Wait until all arrays are ready. An interrupt ends the wait at once.

        Args:
            limit_s: give up after about this many seconds; None waits forever.

        Returns:
            The error of the first array that failed among those that were not ready yet: the user cannot have seen it before.
        """
        if self._is_idle:
            return None
        platforms = self._list()
        fresh = [array for arrays in platforms for array in self._newer_than_seen(arrays)]
        if not fresh:
            return None
        waiting = self._without_left([array for array in fresh if not _is_over(array)])
        failure = self._outwait(waiting, limit_s)
        self._see(platforms)
        return failure

    def _newer_than_seen(self, arrays: Sequence[Any]) -> Sequence[Any]:
        for index, array in enumerate(arrays):
            known = self._seen.get(id(array))
            if known is not None and known() is array:
                return arrays[:index]
        return arrays

    def _see(self, platforms: Sequence[Sequence[Any]]) -> None:
        # Keep a few, at growing distances, because many of the newest arrays do not live long.
        self._seen.clear()
        for arrays in platforms:
            place = 0
            while place < len(arrays):
                self._seen[id(arrays[place])] = weakref.ref(arrays[place])
                place = 2 * place + 1

    def _without_left(self, arrays: list[Any]) -> list[Any]:
        if not arrays:
            return arrays
        left = {id(array) for ref in self._left if (array := ref()) is not None}
        return [array for array in arrays if id(array) not in left]

    def _outwait(self, waiting: list[Any], limit_s: float | None) -> Exception | None:
        failure: Exception | None = None
        pauses, began_s = pauses_s(), self._clock()
        while waiting:
            # The oldest first: the others may be computed from it, and fail with it.
            array = waiting[-1]
            if _is_over(array):
                failure = failure or _failure_of(array)
                waiting.pop()
                continue
            if limit_s is not None and self._clock() - began_s >= limit_s:
                self.gave_up = True
                self.shared = [each for each in waiting if not each.is_fully_addressable]
                self._left = [ref for ref in self._left if ref() is not None] + [weakref.ref(each) for each in waiting]
                return failure
            self._sleep(next(pauses))
        return failure


def _is_over(array: Any) -> bool:
    try:
        return bool(array.is_ready())
    except RuntimeError:
        # The array is deleted; a user's thread may have donated it in between.
        return True


def _failure_of(array: Any) -> Exception | None:
    if array.is_deleted():
        return None
    try:
        array.block_until_ready()
    except Exception as error:  # noqa: BLE001 - any failure of the program: the caller of `wait` raises it
        return error
    return None
