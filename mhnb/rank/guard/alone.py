"""What programs without a collective were given: compared where something that came of it is held at the cell's end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from mhnb.rank.guard.noted import Noted

__all__ = ["AloneGiven"]

_MOST = 256
"""So many launches are followed before those of which nothing is held are forgotten."""

_Followed: TypeAlias = tuple[list[Noted], tuple[Callable[[], Any], ...]]


class AloneGiven:
    """That of one cell. Keeps no output alive, and of what was given only what is not hashed yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followed: list[_Followed] = []
        self._most = _MOST

    def __len__(self) -> int:
        return len(self._followed)

    def follow(self, given: Sequence[Noted], outputs: Sequence[Any]) -> None:
        """Take what a launch was given, and what it gave."""
        with self._lock:
            if len(self._followed) >= self._most:
                self._followed = [each for each in self._followed if _is_any_held(each)]
                # Else a cell that keeps many would look through all of them at each launch.
                self._most = max(_MOST, 2 * len(self._followed))
            self._followed.append(([noted.let_go_of_hashed() for noted in given], tuple(map(weakref.ref, outputs))))

    def take(self) -> list[Noted]:
        """Hand out what is to be compared, and begin anew."""
        with self._lock:
            followed, self._followed, self._most = self._followed, [], _MOST
        return [noted for each in followed if _is_any_held(each) for noted in each[0]]


def _is_any_held(followed: _Followed) -> bool:
    return any(output() is not None for output in followed[1])
