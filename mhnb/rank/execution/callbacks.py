"""Run the functions that compiled programs call back.

XLA calls such a function while the main thread is blocked in C until the program ends, where no signal reaches it. If the function does
not return, neither does the program. If it raises, a part of the program on another device may wait for it forever, and the error
comes last. So a call in a thread of XLA's runs in a thread of this module, and XLA's thread waits for that one
in Python: there an interrupt can end the wait, and an error is reported at once. A call that was given up may still be
in a function in C. When that returns, its thread ends.

A small program of one device runs in the thread that launches it, and so does its callback, with the settings of that thread:
`jax.enable_x64`, `np.errstate`, context variables. Signals reach it there.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

from mhnb.rank.execution.exceptions import Reading, is_a, is_runtime_error, read_error, text_of
from mhnb.rank.execution.tracebacks import hide_own_frames


class CallbackInterrupted(Exception):
    """Raised into a program whose callback an interrupt has given up."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is an interrupt or an interrupted callback's failure."""
    if is_a(error, KeyboardInterrupt):
        return True
    # Only JAX's own errors have a text that is safe to read: another one is computed by the user's code.
    return is_runtime_error(error) and f"{CallbackInterrupted.__name__}: " in text_of(error)


class CallingProgram(NamedTuple):
    """A program that calls functions back."""

    name: str
    is_shared: bool
    """Whether other ranks have a part in it, which may wait for this one."""


class _Call:
    """One call of a function by a program."""

    def __init__(self, program: CallingProgram, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.program = program
        self._function, self._args = function, args
        self.replies: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._lock = threading.Lock()
        self.thread_id = 0
        """The thread that runs it; 0 before and after."""
        self.is_given_up = self._has_ended = False

    def run_here(self) -> Any:
        """Call the function in the program's thread; only signals interrupt it."""
        self._has_ended, self.thread_id = True, threading.get_ident()
        try:
            return self._function(*self._args)
        except KeyboardInterrupt as interrupt:
            raise CallbackInterrupted("interrupted") from interrupt

    def run(self) -> None:
        """Call the function and pass on what it returns or raises."""
        with self._lock:
            self._has_ended = self.is_given_up
            self.thread_id = 0 if self._has_ended else threading.get_ident()
        if self._has_ended:
            return
        result, error = None, None
        try:
            result = self._function(*self._args)
        except BaseException as raised:  # noqa: BLE001 - it is raised into the program
            error = raised
        with self._lock:
            self.thread_id, self._has_ended = 0, True
        self.replies.put((result, error))

    def give_up(self) -> None:
        """End the program's wait; interrupt the function once it runs Python code."""
        with self._lock:
            if self._has_ended or self.is_given_up:
                return
            self.is_given_up = True
            if self.thread_id:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread_id), ctypes.py_object(KeyboardInterrupt)
                )
            self.replies.put((None, CallbackInterrupted("interrupted")))


class CallbackThread(threading.Thread):
    """A thread that runs one call after another."""

    def __init__(self, callbacks: ProgramCallbacks) -> None:
        super().__init__(name="mhnb-callback", daemon=True)
        self._callbacks = callbacks
        self.calls: SimpleQueue[_Call] = SimpleQueue()

    def run(self) -> None:
        """Run calls until one is given up: its interrupt may arrive later."""
        try:
            while not self._callbacks.run_next(self):
                continue
        except KeyboardInterrupt:
            return


class ProgramCallbacks:
    """The calls that the programs of this rank make."""

    def __init__(self) -> None:
        self.report: Callable[[Reading, CallingProgram], None] = lambda *_: None
        """Called in the program's thread, with the error that a function raised, before the program gets it."""
        self._idle: list[CallbackThread] = []
        self._running: dict[int, _Call] = {}

    def wrap(self, function: Callable[..., Any], program: CallingProgram) -> Callable[..., Any]:
        """Return the function that a program calls in place of another one."""

        def call_back(*args: Any) -> Any:
            return self._call(program, function, args)

        return call_back

    def _call(self, program: CallingProgram, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        call = _Call(program, function, args)
        self._running[id(call)] = call
        try:
            if type(threading.current_thread()) is not threading._DummyThread:
                return call.run_here()
            return self._run_in_worker(call)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failed = read_error(error, hide_own_frames)
        finally:
            del self._running[id(call)]
        if not is_a(failed.error, CallbackInterrupted):
            self.report(failed, program)
        # XLA aborts the process if the text of an error cannot be computed.
        raise failed.error if failed.is_ordinary else failed.plain

    def _run_in_worker(self, call: _Call) -> Any:
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = CallbackThread(self)
            worker.start()
        worker.calls.put(call)
        result, error = call.replies.get()
        if error is not None:
            raise error
        return result

    def run_next(self, worker: CallbackThread) -> bool:
        """Run a worker's next call; return whether it was given up."""
        call = worker.calls.get()
        call.run()
        if not call.is_given_up:
            self._idle.append(worker)
        return call.is_given_up

    def find_oldest(self) -> tuple[int, str] | None:
        """Return the oldest running call's thread and program, or None (thread-safe)."""
        for call in tuple(self._running.values()):
            if thread_id := call.thread_id:
                return thread_id, call.program.name
        return None

    def give_up(self) -> None:
        """Give up all calls, so that their programs end. From any thread."""
        for call in tuple(self._running.values()):
            call.give_up()


INLINE_CODE = (_Call.run_here.__code__,)
"""Runs a function in the thread of its program."""
CALL_CODES = (_Call.run.__code__, *INLINE_CODE)
"""Run a function that a program calls, in whichever thread."""
