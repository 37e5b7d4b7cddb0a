"""Starts, restarts and replays under way, for which other threads' cells wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mhnb.core.waiting import WAIT_NOTE_AFTER_S, format_operation_wait


@dataclass(slots=True, eq=False)
class _Operation:
    cluster: str
    text: str
    """Like `the start of 4 ranks`."""
    thread: int = field(default_factory=threading.get_ident)
    began: float = field(default_factory=time.monotonic)
    ended: threading.Event = field(default_factory=threading.Event)


_under_way: list[_Operation] = []


@contextmanager
def announce(cluster: str, text: str) -> Iterator[None]:
    """Make other threads' cells for this cluster wait until the block ends.

    Args:
        cluster: name of the cluster.
        text: the operation, such as `the start of 4 ranks`.
    """
    operation = _Operation(cluster, text)
    _under_way.append(operation)
    try:
        yield
    finally:
        _under_way.remove(operation)
        operation.ended.set()


def has_operations() -> bool:
    """Return whether any start, restart or replay is under way."""
    return bool(_under_way)


def wait_for_operations(cluster: str | None, on_wait: Callable[[str], None]) -> None:
    """Wait until no other thread starts, restarts or replays a cluster.

    Args:
        cluster: name of the one that matters; None for any.
        on_wait: called after half a second, and then each second, with a line for the user.

    Raises:
        KeyboardInterrupt: the user interrupted the wait.
    """
    while (operation := _find_other(cluster)) is not None:
        interval_s = WAIT_NOTE_AFTER_S
        while not operation.ended.wait(interval_s):
            on_wait(format_operation_wait(operation.text, time.monotonic() - operation.began))
            interval_s = 1.0


def _find_other(cluster: str | None) -> _Operation | None:
    # Its own thread may run cells while it starts or replays.
    others = [each for each in _under_way if each.thread != threading.get_ident()]
    return next((each for each in others if cluster in (None, each.cluster)), None)
