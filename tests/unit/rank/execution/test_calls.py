"""A call that a pool or a task makes is identified by its function and its arguments, whichever thread makes it, and when."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mhnb.core.guard.threads import MAIN_THREAD
from mhnb.rank.execution import streams
from mhnb.rank.execution.streams import CELL_NUMBER, CellThread, current_thread, propagate_to_threads

found: dict[str, CellThread] = {}


def load(*args: Any, key: str = "") -> None:
    """Record the thread in which it is called."""
    found[key or str(args)] = current_thread()


@pytest.fixture(autouse=True)
def _cell() -> Iterator[None]:
    """Run each test as code of a cell of its own."""
    propagate_to_threads()
    found.clear()
    token = CELL_NUMBER.set(next(_numbers))
    yield
    CELL_NUMBER.reset(token)


_numbers = itertools.count(10**6)


def run_in_pool(*calls: tuple[Any, ...]) -> None:
    """Make the calls, one after another."""
    with ThreadPoolExecutor(1) as pool:
        for call in calls:
            pool.submit(*call).exception()


def start_again() -> None:
    """Count calls and threads as another rank does, which begins the same cell."""
    current_thread()._seq = streams._UNKNOWN._seq = 0


def test_order_of_different_calls_does_not_matter() -> None:
    """Calls with other arguments have the same numbers in another order, and equal calls are counted."""
    run_in_pool((load, 1), (load, 2), (partial(load, key="again"), 1))
    before = {name: thread.call_number for name, thread in found.items()}
    start_again()
    run_in_pool((partial(load, key="again"), 1), (load, 2), (load, 1))
    assert {name: thread.call_number for name, thread in found.items()} == before
    assert len(set(before.values())) == 3


def test_equal_calls_are_counted() -> None:
    """Two equal calls are two calls, and the counts of different calls do not depend on each other."""
    with ThreadPoolExecutor(1) as pool:
        numbers = [pool.submit(lambda _n: current_thread().call_number, n).result() for n in (1, 2, 1)]
    assert len({*numbers, 0}) == 4


def test_call_that_failed_is_the_same_call_when_it_is_made_again() -> None:
    """A call that takes the place of a failed one has both its numbers, and the calls after it have theirs."""
    with ThreadPoolExecutor(1) as pool:
        threads = [pool.submit(lambda _n: current_thread(), n).result() for n in (1, 2, 3)]
        start_again()
        again: list[CellThread] = []

        def get(n: int) -> CellThread:
            if n == 2 and not again:
                again.append(current_thread())
                raise OSError("no file")
            return current_thread()

        get.__qualname__ = "<lambda>"
        first = pool.submit(get, 1).result()
        pool.submit(get, 2).exception()
        retried, last = pool.submit(get, 2).result(), pool.submit(get, 3).result()
    assert (retried.number, retried.call_number) == (again[0].number, again[0].call_number)
    assert len({first.number, retried.number, last.number}) == 3
    assert last.number - first.number == threads[2].number - threads[0].number == 2


@pytest.mark.parametrize(
    ("args", "is_known"),
    [
        ((1, "a", None, Path("a"), (1.5, {"k": [True]}), np.int64(3)), True),
        ((), False),
        ((object(),), False),
        (([object()],), False),
        ((np.ones(1),), False),
        ((np.longdouble(1),), False),
        (([0] * 2000,), False),
        ((10**6000,), True),
    ],
)
def test_only_plain_arguments_identify_a_call(args: tuple[Any, ...], *, is_known: bool) -> None:
    """A call without arguments, or with others than plain values, is not identified by them."""
    run_in_pool((partial(load, key="it") if not args else load, *args))
    run_in_pool((partial(_see, *args),))
    assert bool(found["seen"].call_number) is is_known


def _see(*_args: object) -> None:
    found["seen"] = current_thread()


def test_thread_of_the_users_own_is_not_a_call() -> None:
    """A thread is not identified by its arguments, but the calls that it gives to a pool are."""

    def work() -> None:
        _see()
        run_in_pool((load, 1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not found["seen"].call_number
    assert found["(1,)"].call_number


def test_items_of_a_thread_pool_are_identified() -> None:
    """The items of a pool of multiprocessing are calls, too."""
    with ThreadPool(2) as pool:
        pool.map(load, [1, 2])
        pool.apply(load, (3,))
    assert len({0, *(thread.call_number for thread in found.values())}) == 4


def test_callback_of_a_future_belongs_to_what_has_added_it() -> None:
    """A callback has one number, whether the future has ended before or another thread ends it."""
    numbers = []
    for is_early in (True, False):
        start_again()
        future: Future[None] = Future()
        if is_early:
            future.set_result(None)
        future.add_done_callback(lambda _future: numbers.append(current_thread().number))
        if not is_early:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(future.set_result, None).result()
    assert len({*numbers, MAIN_THREAD}) == 2


def _call_without_task(see: Callable[[str], None], name: str, _task: object) -> None:
    see(name)


async def _sleep(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def test_callbacks_of_tasks_and_loops_are_numbered() -> None:
    """Callbacks belong to the task or the code that has scheduled them, in whichever order they run; a wait changes nothing."""

    async def run() -> dict[str, int]:
        loop, seen = asyncio.get_running_loop(), {"before": current_thread().number}

        def see(name: str) -> None:
            seen[name] = current_thread().number

        tasks = [loop.create_task(_sleep(turns)) for turns in (3, 1)]
        for name, task in zip("ab", tasks, strict=True):
            task.add_done_callback(partial(_call_without_task, see, name))
        loop.call_soon(see, "c")
        loop.call_soon_threadsafe(see, "d")
        await asyncio.gather(*tasks)
        await _sleep(2)
        seen["after"] = current_thread().number
        return seen

    seen = asyncio.run(run())
    assert seen.pop("before") == seen["after"]
    assert len({*seen.values(), MAIN_THREAD}) == 6


def test_task_is_identified_by_its_arguments() -> None:
    """A task is a call of its coroutine function; the object whose method it is does not count."""

    class Loader:
        turns = 1

        async def load(self, n: int) -> int:
            await _sleep(self.turns + n)
            return current_thread().call_number

    def run(order: tuple[int, ...]) -> dict[int, int]:
        async def load_all() -> dict[int, int]:
            loader = Loader()
            tasks = {n: asyncio.create_task(loader.load(n)) for n in order}
            return {n: await task for n, task in tasks.items()}

        start_again()
        return asyncio.run(load_all())

    numbers = run((1, 2))
    assert run((2, 1)) == numbers
    assert len({0, *numbers.values()}) == 3
