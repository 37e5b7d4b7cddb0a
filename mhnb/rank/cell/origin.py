"""Track to which cell a piece of output belongs, and in which of the cell's threads or tasks code runs.

Tasks of the event loop carry the cell in their context, threads on their thread object, work for a pool with the work itself.
A thread or task is identified by what started it and by its count among those of its kind. These are the same on every rank;
names and ids are not.
"""

from __future__ import annotations

import asyncio
import functools
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from mhnb.core.guard.threads import MAIN_THREAD, UNKNOWN_THREAD, number_thread

__all__ = ["CELL_NUMBER", "CellThread", "current_cell", "current_thread", "propagate_to_threads"]

CELL_NUMBER: ContextVar[int] = ContextVar("mhnb_cell_seq", default=0)
"""The cell whose code runs in this context; 0 if unknown, as in threads that C++ code has started."""

_OWN_FOLDER = str(Path(__file__).parents[2])
_COUNTER = re.compile(r"[-_ ]*\d+")
"""The numbers in a name: Python's own count, a rank, a worker."""
_DEFAULT_NAME = re.compile(r"(?:Thread|Dummy|Timer)-\d+(?: \(.*\))?")


class CellThread:
    """A thread or task: its label, and what it has started itself.

    Args:
        number: the same on every rank, see `core/guard/threads.py`.
        label: the label of its kind.
    """

    __slots__ = ("_children", "_seq", "host_data_counts", "label", "number")

    def __init__(self, number: int, label: str) -> None:
        self.number, self.label = number, label
        self.host_data_counts: Counter[tuple[Any, ...]] = Counter()
        """How many arrays of host data it has made, by line, placement and kind; counted by the guard."""
        self._children: Counter[str] = Counter()
        self._seq = 0

    def begin_child(self, kind: str, label: str) -> CellThread:
        """Return the next thread or task of a kind that this one starts in the current cell."""
        if self.number == UNKNOWN_THREAD:
            return self
        if (seq := current_cell()) != self._seq:
            self._seq = seq
            self._children.clear()
        self._children[kind] += 1
        return CellThread(number_thread(self.number, seq, kind, self._children[kind]), label)


_MAIN, _UNKNOWN = CellThread(MAIN_THREAD, "the main thread"), CellThread(UNKNOWN_THREAD, "")


class _Pooled(threading.local):
    work: CellThread | None = None
    """The work that a thread of a pool runs."""


_pooled = _Pooled()
_tasks: WeakKeyDictionary[Any, CellThread] = WeakKeyDictionary()
"""Tasks of event loops that code of cells has created."""


def current_cell() -> int:
    """Return the number of the cell that the calling code belongs to; 0 if unknown."""
    return CELL_NUMBER.get() or getattr(threading.current_thread(), "_mhnb_seq", 0)


def current_thread() -> CellThread:
    """Return the thread or task of a cell in which the calling code runs."""
    if asyncio._get_running_loop() is not None and (task := asyncio.current_task()) in _tasks:
        return _tasks[task]
    if _pooled.work is not None:
        return _pooled.work
    thread = threading.current_thread()
    return _MAIN if thread is threading.main_thread() else getattr(thread, "_mhnb_thread", _UNKNOWN)


def propagate_to_threads() -> None:
    """Make threads, tasks and pools remember the cell that started them. Does so once per process."""
    if not hasattr(threading.Thread.start, "__wrapped__"):
        _wrap(threading.Thread, "start", _start)
        _wrap(ThreadPoolExecutor, "submit", _submit)
        _wrap(asyncio.BaseEventLoop, "create_task", _create_task)
    _wrap(asyncio.BaseEventLoop, "call_at", _call_at)


def _wrap(cls: type, name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(cls, name)

    @functools.wraps(original)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return replacement(original, self, *args, **kwargs)

    setattr(cls, name, method)


def _start(original: Callable[..., None], thread: threading.Thread) -> None:
    thread._mhnb_seq = current_cell()  # type: ignore[attr-defined]
    thread._mhnb_thread = _begin_thread(thread)  # type: ignore[attr-defined]
    original(thread)


def _begin_thread(thread: threading.Thread) -> CellThread:
    target = getattr(thread, "_target", None)
    if getattr(target, "__module__", "") == "multiprocessing.pool":
        # A ThreadPool: which of its threads takes a piece of work is chance, so the work itself is identified.
        _hook_thread_pools()
        return _UNKNOWN
    called = _name_of(target if target is not None else getattr(thread, "function", None) or type(thread))
    plain = _DEFAULT_NAME.fullmatch(thread.name) is not None
    name = "" if plain else _COUNTER.sub("", thread.name)
    counted = plain or name != thread.name
    label = f"thread {name or called.rpartition('.')[2]}{' #' if counted else ''}"
    return current_thread().begin_child(f"thread {name} {called}", label)


def _name_of(function: Any) -> str:
    """Return the name of what a thread or a piece of work calls, without functions that only pass it on."""
    while isinstance(function, functools.partial):
        # `asyncio.to_thread` calls it through a context.
        passes_on = getattr(function.func, "__name__", "") == "run" and function.args
        function = function.args[0] if passes_on else function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', '')}.{named.__qualname__}"


def _submit(
    original: Callable[..., Future[Any]],
    pool: ThreadPoolExecutor,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Future[Any]:
    # A pool's threads outlive the cell that created them; the work belongs to the cell that submits it. Which of the
    # threads takes it does not matter: it is identified by the order of submission.
    seq = current_cell()
    if not seq:
        return original(pool, function, *args, **kwargs)
    return original(pool, _run_as, seq, _begin_work(function), function, *args, **kwargs)


def _run_as(seq: int, work: CellThread, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    token, before = CELL_NUMBER.set(seq), _pooled.work
    _pooled.work = work
    try:
        return function(*args, **kwargs)
    finally:
        _pooled.work = before
        CELL_NUMBER.reset(token)


def _hook_thread_pools() -> None:
    from multiprocessing.pool import ThreadPool

    if "apply_async" not in vars(ThreadPool):
        _wrap(ThreadPool, "apply_async", _apply_async)
        for name in ("_map_async", "imap", "imap_unordered"):
            _wrap(ThreadPool, name, _map_numbered)


def _apply_async(
    original: Callable[..., Any], pool: Any, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    return original(pool, functools.partial(_run_as, current_cell(), _begin_work(function), function), *args, **kwargs)


def _map_numbered(
    original: Callable[..., Any], pool: Any, function: Callable[..., Any], iterable: Any, *args: Any, **kwargs: Any
) -> Any:
    # The pool takes the items one by one, in a thread of its own: each is numbered as it is taken.
    seq, parent = current_cell(), _begin_work(function)
    called = _name_of(function).rpartition(".")[2]
    starred = bool(args) and getattr(args[0], "__name__", "") == "starmapstar"
    numbered = ((parent.begin_child("item", f"task {called} #"), item) for item in iterable)

    def work(*given: Any) -> Any:
        number, item = given if starred else given[0]
        return _run_as(seq, number, function, *(item if starred else (item,)))

    return original(pool, work, numbered, *args, **kwargs)


def _begin_work(function: Callable[..., Any]) -> CellThread:
    called = _name_of(function)
    return current_thread().begin_child(f"work {called}", f"task {called.rpartition('.')[2]} #")


def _create_task(original: Callable[..., Any], loop: Any, coroutine: Any, **kwargs: Any) -> Any:
    task = original(loop, coroutine, **kwargs)
    code = getattr(coroutine, "cr_code", None)
    if current_cell() and not (code is not None and code.co_filename.startswith(_OWN_FOLDER)):
        called = str(getattr(coroutine, "__qualname__", type(coroutine).__qualname__))
        name = "" if kwargs.get("name") is None else _COUNTER.sub("", str(kwargs["name"]))
        counted = not name or name != str(kwargs["name"])
        label = f"task {name or called.rpartition('.')[2]}{' #' if counted else ''}"
        _tasks[task] = current_thread().begin_child(f"task {name} {called}", label)
    return task


def _call_at(
    original: Callable[..., Any], loop: Any, when: float, callback: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    # `call_later` ends here, too. asyncio's own callbacks wake tasks, which are identified themselves.
    seq = current_cell()
    if not seq or str(getattr(callback, "__module__", "")).startswith("asyncio"):
        return original(loop, when, callback, *args, **kwargs)
    return original(loop, when, _run_as, seq, _begin_work(callback), callback, *args, **kwargs)
