"""Callbacks of an event loop are identified by the order in which they were scheduled."""

from __future__ import annotations

import asyncio

from mhnb.core.guard.threads import MAIN_THREAD
from mhnb.rank.execution.streams import CELL_NUMBER, current_thread, propagate_to_threads


def test_reordered_callbacks_have_different_numbers() -> None:
    """Callbacks have different numbers, because two launches of `loop.call_later` may run in another order on another rank."""
    propagate_to_threads()

    async def call(first: float, second: float) -> dict[str, int]:
        loop, found, done = asyncio.get_running_loop(), dict[str, int](), asyncio.Event()

        def see(name: str) -> None:
            found[name] = current_thread().number
            if len(found) == 2:
                done.set()

        loop.call_at(loop.time() + first, see, "a")
        loop.call_at(loop.time() + second, see, "b")
        await done.wait()
        return found

    token = CELL_NUMBER.set(10**6)
    try:
        one = asyncio.run(call(0, 0.01))
        CELL_NUMBER.set(10**6 + 1)
        again = asyncio.run(call(0, 0.01))
        other = asyncio.run(call(0.01, 0))
    finally:
        CELL_NUMBER.reset(token)
    assert list(again) != list(other)
    for found in (one, again, other):
        assert len({*found.values(), MAIN_THREAD}) == 3
