"""Streams and native output of a rank, and their cells.

`sys.stdout` and `sys.stderr` are text streams that pass what is written to the capture, a line at a time. The text side is
Python's own, in C: printing a line costs one call into Python, not one for each of its pieces.
A forked child of a cell has no capture: its streams write to the file descriptors, like any process's.

C code and subprocesses write to file descriptors 1 and 2. The descriptors point to files, so that a crash loses nothing. What
is added to the files is read here.

Tasks of the event loop carry the cell in their context, threads on their thread object, work for a pool with the work itself.
A thread or task is identified by what started it and by its count among those of its kind. These are the same on every rank;
names and ids are not. A task, or a call that a pool makes, is also identified by its function and its arguments, if those are plain
values. A call that is made again after it has failed keeps its identity.

Code that runs between cells, whose output belongs to no cell, can capture what its own thread prints.
"""

from __future__ import annotations

import asyncio
import codecs
import ctypes
import functools
import io
import os
import re
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from hashlib import blake2b
from inspect import CO_VARARGS, CO_VARKEYWORDS, getcoroutinelocals, iscoroutine
from os import fstat, pread
from os import write as write_to
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TextIO
from weakref import WeakKeyDictionary

import numpy as np

from mhnb.core.guard.threads import MAIN_THREAD, UNKNOWN_THREAD, format_thread, kind_of, number_thread
from mhnb.system.private_files import open_private

CELL_NUMBER: ContextVar[int] = ContextVar("mhnb_cell_seq", default=0)
"""The cell whose code runs in this context; 0 if unknown, as in threads that C++ code has started."""

_OWN_FOLDER = str(Path(__file__).parents[2])
_COUNTER = re.compile(r"[-_ ]*\d+")
"""The numbers in a name: Python's own count, a rank, a worker."""
_LIBRARIES = ("asyncio.", "_asyncio.", "concurrent.", "mhnb.")
_DEFAULT_NAME = re.compile(r"(?:Thread|Dummy|Timer)-\d+(?: \(.*\))?")


_PLAIN_TYPES = (bool, float, complex, str, bytes, type(None))
_MOST_VALUES, _LONGEST_TEXT = 1000, 10_000
"""Larger arguments are not described: that would take longer than the call."""


def describe_plain_values(value: Any) -> str | None:
    """Describe plain values identically in every process; None for others.

    Plain are numbers, texts, paths, None, and tuples, lists and dictionaries of them, of moderate size.

    >>> describe_plain_values((1, Path("a"), {"k": None})), describe_plain_values([object()])
    ("tuple of 3 1 PosixPath('a') dict of 2 'k' None", None)
    """
    described: list[str] = []
    pending = [value]
    while pending:
        each = pending.pop()
        # Types are compared exactly, so that no user code runs.
        if type(each) in (tuple, list, dict) and len(each) <= _MOST_VALUES:
            items = [part for item in each.items() for part in item] if type(each) is dict else list(each)
            pending += reversed(items)
            text: str | None = f"{type(each).__name__} of {len(items)}"
        else:
            text = _describe_one(each)
        if text is None or len(described) + len(pending) > _MOST_VALUES:
            return None
        described.append(text)
    return " ".join(described)


def _describe_one(value: Any) -> str | None:
    if isinstance(value, np.generic) and type(value).__module__ == "numpy":
        value = value.item()
    kind = type(value)
    if kind is int:
        # In decimal, Python limits its length.
        return f"{value:x}"
    if kind in (str, bytes) and len(value) > _LONGEST_TEXT:
        return None
    is_path = isinstance(value, PurePath) and kind.__module__.startswith("pathlib")
    return repr(value) if kind in _PLAIN_TYPES or is_path else None


class _Call(NamedTuple):
    """What a pool, a task or a callback calls."""

    function: str
    """Module and name."""
    arguments: str
    """Hash of the arguments; empty without arguments, or if one is not a plain value."""

    @property
    def label(self) -> str:
        return f"task {self.function.rpartition('.')[2]} #"


def _describe_call(function: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> _Call:
    """Describe a call, without functions that only pass it on."""
    named = dict(kwargs or {})
    while isinstance(function, functools.partial):
        # `asyncio.to_thread` calls it through a context.
        passes_on = getattr(function.func, "__name__", "") == "run" and function.args
        args, named = (*function.args, *args), {**function.keywords, **named}
        function, args = (args[0], args[1:]) if passes_on else (function.func, args)
    owner = function if hasattr(function, "__qualname__") else type(function)
    return _Call(f"{getattr(owner, '__module__', '')}.{owner.__qualname__}", _hash_arguments(args, named))


def _hash_arguments(args: tuple[Any, ...], named: dict[str, Any]) -> str:
    described = describe_plain_values((args, dict(sorted(named.items())))) if args or named else None
    return "" if described is None else blake2b(described.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class CellThread:
    """A thread or task: its label, and what it has started itself.

    Args:
        number: the same on every rank, see `core/guard/threads.py`.
        label: the label of its kind.
        call_number: the same for the same function, arguments and caller; 0 if those do not identify it.
    """

    def __init__(self, number: int, label: str, call_number: int = UNKNOWN_THREAD) -> None:
        self.number, self.label, self.call_number = number, label, call_number
        self.host_data_counts: Counter[tuple[Any, ...]] = Counter()
        """How many arrays of host data it has made, by line, placement and kind; counted by the guard."""
        self.host_data_rows: dict[tuple[Any, ...], Any] = {}
        """What the guard compares of these arrays at the end of a cell, by the same."""
        self.is_call = False
        """Whether it is a call of a pool, a task or a callback, and not a thread of the user's own."""
        self._children: Counter[str] = Counter()
        self._calls: Counter[_Call] = Counter()
        self._failed: dict[_Call, list[tuple[int, int]]] = {}
        """Both numbers of calls that have raised an error."""
        self._call: tuple[CellThread, _Call] | None = None
        """What it makes, and who counts it."""
        self._seq = 0

    def begin_child(self, kind: str, label: str, call: _Call | None = None) -> CellThread:
        """Return this thread's next child of a kind in the current cell.

        Args:
            call: what it calls. A call that is made again after an equal one has failed is the same call.
        """
        with _lock:
            if call is None or not call.arguments:
                if self.number == UNKNOWN_THREAD:
                    return self
                child = CellThread(self._number_child(kind), self._extend(label))
            else:
                child = self._begin_known_call(kind, label, call)
            child.is_call = call is not None
            return child

    def _begin_known_call(self, kind: str, label: str, call: _Call) -> CellThread:
        # Which of several threads of the user's own makes a call may be chance.
        counting = self if self.call_number else _UNKNOWN
        counting._enter_cell()
        if failed := counting._failed.get(call):
            number, call_number = failed.pop(0)
        else:
            counting._calls[call] += 1
            number = self._number_child(kind)
            call_number = number_thread(counting.call_number, counting._seq, repr(call), counting._calls[call])
        child = CellThread(number, self._extend(label), call_number)
        child._call, child._seq = (counting, call), counting._seq
        return child

    def fail(self) -> None:
        """Record that the call which it makes has raised an error."""
        if self._call is not None:
            with _lock:
                counting, call = self._call
                if counting._seq == self._seq:
                    counting._failed.setdefault(call, []).append((self.number, self.call_number))

    def _number_child(self, kind: str) -> int:
        if self.number == UNKNOWN_THREAD:
            return UNKNOWN_THREAD
        self._enter_cell()
        self._children[kind] += 1
        return number_thread(self.number, self._seq, kind, self._children[kind])

    def _extend(self, label: str) -> str:
        if self.number in (MAIN_THREAD, UNKNOWN_THREAD):
            return label
        return f"{format_thread(self.number, {kind_of(self.number): self.label})} / {label}"

    def _enter_cell(self) -> None:
        if (seq := current_cell()) != self._seq:
            self._seq = seq
            self._children.clear()
            self._calls.clear()
            self._failed.clear()


# A user's finalizer may start a thread wherever Python runs it, even while its own thread holds the lock.
_lock = threading.RLock()
_MAIN, _UNKNOWN = CellThread(MAIN_THREAD, "the main thread", MAIN_THREAD), CellThread(UNKNOWN_THREAD, "")


class _Pooled(threading.local):
    work: CellThread | None = None
    """The work that a thread of a pool runs."""


_pooled = _Pooled()
_tasks: WeakKeyDictionary[Any, CellThread] = WeakKeyDictionary()
"""Tasks of event loops that code of cells has created."""


def current_cell() -> int:
    """Return the calling code's cell number; 0 if unknown."""
    return CELL_NUMBER.get() or getattr(threading.current_thread(), "_mhnb_seq", 0)


def current_thread() -> CellThread:
    """Return the cell's thread or task that runs the calling code."""
    if asyncio._get_running_loop() is not None and (task := asyncio.current_task()) in _tasks:
        return _tasks[task]
    if _pooled.work is not None:
        return _pooled.work
    thread = threading.current_thread()
    return _MAIN if thread is threading.main_thread() else getattr(thread, "_mhnb_thread", _UNKNOWN)


def propagate_to_threads() -> None:
    """Make threads, tasks and pools remember their cell, once per process."""
    if not hasattr(threading.Thread.start, "__wrapped__"):
        _wrap(threading.Thread, "start", _start)
        _wrap(ThreadPoolExecutor, "submit", _submit)
        _wrap(Future, "add_done_callback", _add_done_callback)
        _wrap(asyncio.BaseEventLoop, "create_task", _create_task)
        # Also for callbacks of futures and tasks of asyncio.
        _wrap(asyncio.BaseEventLoop, "call_soon", _call_soon)
        _wrap(asyncio.BaseEventLoop, "call_soon_threadsafe", _call_soon)
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
    called = _describe_call(
        target if target is not None else getattr(thread, "function", None) or type(thread)
    ).function
    plain = _DEFAULT_NAME.fullmatch(thread.name) is not None
    name = "" if plain else _COUNTER.sub("", thread.name)
    counted = plain or name != thread.name
    label = f"thread {name or called.rpartition('.')[2]}{' #' if counted else ''}"
    return current_thread().begin_child(f"thread {name} {called}", label)


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
    return original(pool, _run_as, seq, _begin_work(function, args, kwargs), function, *args, **kwargs)


def _run_as(seq: int, work: CellThread, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    token, before = CELL_NUMBER.set(seq), _pooled.work
    _pooled.work = work
    try:
        return function(*args, **kwargs)
    except BaseException:
        work.fail()
        raise
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
    given, named = kwargs.get("args", args[0] if args else ()), kwargs.get("kwds", args[1] if len(args) > 1 else {})
    work = _begin_work(function, tuple(given), named)
    return original(pool, functools.partial(_run_as, current_cell(), work, function), *args, **kwargs)


def _map_numbered(
    original: Callable[..., Any], pool: Any, function: Callable[..., Any], iterable: Any, *args: Any, **kwargs: Any
) -> Any:
    # The pool takes the items one by one, in a thread of its own: each is numbered as it is taken.
    seq, parent, label = current_cell(), _begin_work(function), _describe_call(function).label
    parent.call_number = parent.number
    starred = bool(args) and getattr(args[0], "__name__", "") == "starmapstar"
    calls = ((_describe_call(function, tuple(item) if starred else (item,)), item) for item in iterable)
    numbered = ((parent.begin_child("item", label, call), item) for call, item in calls)

    def work(*given: Any) -> Any:
        number, item = given if starred else given[0]
        return _run_as(seq, number, function, *(item if starred else (item,)))

    return original(pool, work, numbered, *args, **kwargs)


def _begin_work(
    function: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> CellThread:
    call = _describe_call(function, args, kwargs)
    return current_thread().begin_child(f"work {call.function}", call.label, call)


def _create_task(original: Callable[..., Any], loop: Any, coroutine: Any, **kwargs: Any) -> Any:
    task = original(loop, coroutine, **kwargs)
    code = getattr(coroutine, "cr_code", None)
    if current_cell() and not (code is not None and code.co_filename.startswith(_OWN_FOLDER)):
        called = str(getattr(coroutine, "__qualname__", type(coroutine).__qualname__))
        name = "" if kwargs.get("name") is None else _COUNTER.sub("", str(kwargs["name"]))
        counted = not name or name != str(kwargs["name"])
        label = f"task {name or called.rpartition('.')[2]}{' #' if counted else ''}"
        call = _Call(called, _hash_arguments((), _read_arguments(coroutine)))
        _tasks[task] = current_thread().begin_child(f"task {name} {called}", label, call)
    return task


def _read_arguments(coroutine: Any) -> dict[str, Any]:
    """Return the arguments of a coroutine not yet begun, without `self`."""
    if not iscoroutine(coroutine):
        return {}
    code, found = coroutine.cr_code, getcoroutinelocals(coroutine)
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
    names = code.co_varnames[: count + bool(code.co_flags & CO_VARKEYWORDS)]
    return {name: found[name] for name in names if name in found and name != "self"}


def _add_done_callback(original: Callable[..., Any], future: Any, callback: Callable[..., Any]) -> Any:
    # It runs in the thread that ends the future, or in the caller's if that has ended: which one is chance.
    return original(future, callback if _is_librarys(callback) else _bind_work(callback))


def _call_soon(original: Callable[..., Any], loop: Any, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if _is_librarys(callback):
        return original(loop, callback, *args, **kwargs)
    return original(loop, _bind_work(callback, args), *args, **kwargs)


def _call_at(
    original: Callable[..., Any], loop: Any, when: float, callback: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    # `call_later` ends here, too.
    if _is_librarys(callback):
        return original(loop, when, callback, *args, **kwargs)
    return original(loop, when, _bind_work(callback, args), *args, **kwargs)


def _is_librarys(callback: Any) -> bool:
    """Return whether a callback is asyncio's own or otherwise not a cell's.

    Asyncio's own callbacks wake tasks, which are identified themselves.
    """
    return (
        not current_cell()
        or asyncio.isfuture(getattr(callback, "__self__", None))
        or _describe_call(callback).function.startswith(_LIBRARIES)
    )


def _bind_work(callback: Callable[..., Any], args: tuple[Any, ...] = ()) -> Callable[..., Any]:
    """Bind a callback to the calling thread or task as its work."""
    seq, work = current_cell(), _begin_work(callback, args)

    # Logs of asyncio name the user's function.
    @functools.wraps(callback)
    def run(*given: Any) -> Any:
        return _run_as(seq, work, callback, *given)

    return run


# -- output that bypasses Python


_READ_NBYTES = 1 << 20
_IOLBF = 1
_GLOO_LINE = r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. Expected number of connected peer ranks is : \d+"
_GLOO_PREFIX = "[Gloo]"
_GLOO_FRAGMENTS = (
    r"(?:\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : |\d)+"
)
_GLOO_MARKER = r"(?=.*(?:\[Gloo\] Rank|is connected to|peer ranks))"
# Each device has a thread that prints this line in six pieces, which are sometimes interleaved.
_GLOO = re.compile(rf"^{_GLOO_LINE}(?:\n|\Z)|^{_GLOO_MARKER}{_GLOO_FRAGMENTS}(?:\n|\Z)(?:^\d*\n)*", re.MULTILINE)

_ABSL = re.compile(
    r"^(?:[IW]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./-]+\.(?:cc|cpp|h):\d+\] .*"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR)(?:\n|\Z)",
    re.MULTILINE,
)
"""I and W are information and warning. E and F are shown to the user: they report what went wrong."""


class NativeFile:
    """The file behind a descriptor, read from where the last read ended."""

    def __init__(self, path: Path) -> None:
        self._fd = open_private(path, os.O_RDONLY | os.O_CREAT)
        self._offset = 0
        self._partial_greeting = ""
        """The beginning of a greeting of Gloo's that was not complete."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def offset(self) -> int:
        """Number of bytes that have been read."""
        return self._offset

    def read_new(self) -> str:
        """Return text written since the last call, except an incomplete Gloo greeting."""
        size = fstat(self._fd).st_size
        if size <= self._offset:
            unfinished, self._partial_greeting = self._partial_greeting, ""
            return unfinished
        parts = [self._partial_greeting]
        while self._offset < size and (data := pread(self._fd, _READ_NBYTES, self._offset)):
            self._offset += len(data)
            parts.append(self._decoder.decode(data))
        text = "".join(parts)
        last = text[text.rfind("\n") + 1 :]
        self._partial_greeting = last if last.startswith(_GLOO_PREFIX) else ""
        return text.removesuffix(self._partial_greeting)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def split_library_noise(text: str) -> tuple[str, str]:
    r"""Split native output into text for the user and library noise.

    Noise is the line that Gloo prints for each new set of devices, and absl's messages below the level of an error.

    >>> split_library_noise("[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\nhere\n")[0]
    'here\n'
    """
    noise: list[str] = []

    def collect(found: re.Match[str]) -> str:
        noise.append(found[0])
        return ""

    shown = _ABSL.sub(collect, _GLOO.sub(collect, text))
    return shown, "".join(noise)


@functools.cache
def _c_stdout() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """Return the C library and its `stdout` (macOS: `__stdoutp`), or None."""
    library = ctypes.CDLL(None)
    for name in ("stdout", "__stdoutp"):
        try:
            return library, ctypes.c_void_p.in_dll(library, name)
        except ValueError:
            continue
    return None


def line_buffer_c_stdout() -> None:
    """Line-buffer C's stdout; to a file it would wait for 4 KiB."""
    if (found := _c_stdout()) is not None:
        library, stdout = found
        library.setvbuf(stdout, None, _IOLBF, ctypes.c_size_t(0))


def flush_c_stdout() -> None:
    """Write out an unfinished line of C's stdout.

    Only that stream is flushed: flushing all of them would wait for a thread that reads from one.
    """
    if (found := _c_stdout()) is not None:
        found[0].fflush(found[1])


def hook_subprocesses(before_start: Callable[[], None]) -> Callable[[], None]:
    """Call `before_start` before Python starts a subprocess; return an undo function."""
    init, system = subprocess.Popen.__init__, os.system

    @functools.wraps(init)
    def popen(self: Any, *args: Any, **kwargs: Any) -> None:
        before_start()
        init(self, *args, **kwargs)

    @functools.wraps(system)
    def run(command: Any) -> int:
        before_start()
        return system(command)

    def undo() -> None:
        subprocess.Popen.__init__ = init  # type: ignore[method-assign]
        os.system = system

    subprocess.Popen.__init__ = popen  # type: ignore[method-assign]
    os.system = run
    return undo


# -- `sys.stdout` and `sys.stderr` of a rank


# Imported by name, here and in the neighbouring modules: a cell may replace a function of `os`.


class _BinarySide(io.BufferedIOBase):
    """`sys.stdout.buffer`: passes bytes to the capture."""

    def __init__(self, on_write: Callable[[bytes, str], None], fd: int, name: str) -> None:
        self._on_write, self._fd, self.name = on_write, fd, name
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.is_forked = False

    def write(self, data: Any, /) -> int:
        """Write bytes; they are shown as UTF-8."""
        if data.__class__ is not bytes:
            data = bytes(data)
        if self.is_forked:
            self._write_through(data)
        else:
            self._on_write(data, self._decode(data))
        return len(data)

    def _write_through(self, data: bytes) -> None:
        while data:
            data = data[write_to(self._fd, data) :]

    def flush(self) -> None:
        """Do nothing: no bytes are buffered here."""

    def fileno(self) -> int:
        """Return the descriptor that C code and subprocesses use for this stream."""
        return self._fd

    def writable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Stay open."""


class RankStream(io.TextIOWrapper):
    """A complete text stream: descriptor, encoding, binary side; never a terminal.

    Args:
        on_write: called with each finished line, or with what was flushed, as bytes and as text.
        unbuffered: pass on every piece at once, as for stderr, so that the two streams keep their order.
    """

    def __init__(self, name: str, fd: int, on_write: Callable[[bytes, str], None], *, unbuffered: bool) -> None:
        self._binary_side = _BinarySide(on_write, fd, f"<{name}>")
        super().__init__(
            self._binary_side,
            encoding="utf-8",
            errors="backslashreplace",
            newline="",
            line_buffering=not unbuffered,
            write_through=unbuffered,
        )

    @property
    def mode(self) -> str:
        """The mode that a program sees."""
        return "w"

    def adapt_to_fork(self) -> None:
        """Write straight to the descriptor from now on."""
        self._binary_side.is_forked = True

    def flush_to_capture(self) -> None:
        """Flush, even if a cell has replaced `flush`."""
        io.TextIOWrapper.flush(self)

    def isatty(self) -> bool:
        """Return False."""
        return False

    def detach(self) -> io.BufferedIOBase:  # type: ignore[override]  # its type promises what no program needs
        """Return the binary side without detaching it."""
        self.flush()
        return self._binary_side

    def reconfigure(self, **_: Any) -> None:
        """Only flush: a rank always shows UTF-8, line by line."""
        self.flush()

    def is_wrapped_by(self, stream: object) -> bool:
        """Return whether another stream wraps this one or its binary side."""
        parts = [getattr(stream, name, None) for name in ("buffer", "stream", "raw")]
        parts += vars(stream).values() if hasattr(stream, "__dict__") else []
        parts += [each for part in parts if isinstance(part, list | tuple) for each in part]
        return any(part is self or part is self._binary_side for part in parts)

    def close(self) -> None:
        """Stay open: the stream belongs to the rank, not to a cell."""
        self.flush()


# -- capture what one thread prints


class ThreadOutput:
    """The text captured so far.

    Args:
        limit: the most characters that are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._text = ""
        self._is_cut = False

    @property
    def text(self) -> str:
        """The text; if it was cut, a last line says so."""
        return f"{self._text}\n… (cut)\n" if self._is_cut else self._text

    def add(self, text: str) -> None:
        """Append text, up to the limit."""
        room = self._limit - len(self._text)
        self._is_cut = self._is_cut or len(text) > room
        self._text += text[:room]


class _Tee(io.TextIOBase):
    """Captures its own thread's text, and passes on other threads' text."""

    def __init__(self, output: ThreadOutput, other_threads: TextIO) -> None:
        self._output, self._other_threads, self._thread = output, other_threads, threading.get_ident()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return self._other_threads.write(text)
        self._output.add(text)
        return len(text)

    def flush(self) -> None:
        self._other_threads.flush()


@contextmanager
def capture_thread_output(*, limit: int = 4000) -> Iterator[ThreadOutput]:
    """Capture what this thread prints, to either stream, within the block."""
    output = ThreadOutput(limit)
    with redirect_stdout(_Tee(output, sys.stdout)), redirect_stderr(_Tee(output, sys.stderr)):
        yield output


# -- callbacks for a forked child of a rank


def weak_callback(method: Callable[[], None]) -> Callable[[], None]:
    """Return a callback that calls the method while its object lives.

    Fork callbacks need this, because they cannot be unregistered.
    """
    known = weakref.WeakMethod(method)

    def call() -> None:
        if (found := known()) is not None:
            found()

    return call
