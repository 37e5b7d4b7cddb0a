"""Wait by polling, where nothing wakes the waiting thread.

Loops that vary their pauses, or catch errors, have code of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")


def wait_until(
    poll: Callable[[], _T],
    limit_s: float,
    pause_s: float,
    *,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> _T:
    """Poll until the result is true or the limit is reached.

    Args:
        poll: returns something true once the wait is over.
        limit_s: how long to wait; there is at least one poll, and one after the last pause.
        pause_s: the time between two polls.
        pause: waits that long; for instance the `wait` of an event, of which `poll` then checks that it is not set.
        clock: rising, in seconds.

    Returns:
        The last result; false if the limit was reached.

    >>> wait_until(iter([0, 0, 7]).__next__, 1.0, 0.0)
    7
    """
    until = clock() + limit_s
    while not (found := poll()) and clock() < until:
        pause(pause_s)
    return found


def read_whole_json(path: Path) -> str:
    """Return the text of a JSON object; empty if missing or incomplete."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text if text.rstrip().endswith("}") else ""
