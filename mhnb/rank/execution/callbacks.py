"""Run the functions that compiled programs call back, so that an interrupt can give one up and an error is known at once.

XLA calls such a function while the main thread is blocked in C until the program ends, where no signal reaches it. If the function does
not return, neither does the program. If it raises, a part of the program on another device may wait for it forever, and the error
comes last. So each call runs in a thread of this module, and XLA's thread waits for that one in Python, where the wait can be ended.

A call that was given up may still be in a function in C. When that returns, its thread ends.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

from mhnb.rank.execution.exceptions import is_a, is_runtime_error, text_of
from mhnb.rank.execution.streams import current_cell, current_thread, run_as

_NESTED_LAUNCH = "its callback runs in the middle of that launch, on which all ranks have agreed"


class CallbackInterrupted(Exception):
    """Raised into a program in place of the callback that an interrupt has given up."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is an interrupt, or the failure of a program whose callback was given up for one."""
    if is_a(error, KeyboardInterrupt):
        return True
    # Only JAX's own errors have a text that is safe to read: another one is computed by the user's code.
    return is_runtime_error(error) and f"{CallbackInterrupted.__name__}: " in text_of(error)


class _Call:
    """One call of a function by a program."""

    def __init__(self, program: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.program = program
        self.seq, self.thread = current_cell(), current_thread()
        self._function, self._args = function, args
        self.replies: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._lock = threading.Lock()
        self.worker_id = 0
        """The thread that runs it; 0 before and after."""
        self.is_given_up = self._has_ended = False

    def run(self, report: Callable[[BaseException, str], None]) -> None:
        """Call the function and pass on what it returns or raises."""
        with self._lock:
            self._has_ended = self.is_given_up
            self.worker_id = 0 if self._has_ended else threading.get_ident()
        if self._has_ended:
            return
        result, error = None, None
        try:
            result = run_as(self.seq, self.thread, self._function, *self._args)
        except BaseException as raised:  # noqa: BLE001 - it is raised into the program
            error = raised
        with self._lock:
            self.worker_id, self._has_ended = 0, True
        try:
            if error is not None and not self.is_given_up:
                report(error, self.program)
        finally:
            self.replies.put((result, error))

    def give_up(self) -> None:
        """Let the program go on without the function, which is interrupted as soon as it runs Python code."""
        with self._lock:
            if self._has_ended or self.is_given_up:
                return
            self.is_given_up = True
            if self.worker_id:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.worker_id), ctypes.py_object(KeyboardInterrupt)
                )
            self.replies.put((None, CallbackInterrupted("interrupted")))


class CallbackThread(threading.Thread):
    """A thread that runs one call after another."""

    def __init__(self, callbacks: ProgramCallbacks) -> None:
        super().__init__(name="mhnb-callback", daemon=True)
        self._callbacks = callbacks
        self.calls: SimpleQueue[_Call] = SimpleQueue()

    def run(self) -> None:
        """Run calls until one is given up: the interrupt may come at any later time in this thread."""
        # It belongs to no cell: each call says whose work it is.
        self._mhnb_seq = 0
        try:
            while not self._callbacks.run_next(self):
                continue
        except KeyboardInterrupt:
            return


class ProgramCallbacks:
    """The calls that the programs of this rank make."""

    def __init__(self) -> None:
        self.report: Callable[[BaseException, str], None] = lambda *_: None
        """Called in the thread of a call, with the error that the function raised and the name of the program."""
        self.forbid_launches: Callable[[str], Any] = lambda _: nullcontext()
        """Returns a context in which no launch may be made, for this reason."""
        self.is_in_launch: Callable[[], bool] = lambda: False
        """Returns whether the calling thread is in the middle of a launch."""
        self._idle: list[CallbackThread] = []
        self._running: dict[int, _Call] = {}

    def wrap(self, function: Callable[..., Any], program: str) -> Callable[..., Any]:
        """Return the function that a program calls in place of another one."""

        def call_back(*args: Any) -> Any:
            return self._call(program, function, args)

        return call_back

    def _call(self, program: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self.is_in_launch():
            function, args = self._call_without_launches, (function, args)
        call = _Call(program, function, args)
        self._running[id(call)] = call
        try:
            try:
                worker = self._idle.pop()
            except IndexError:
                worker = CallbackThread(self)
                worker.start()
            worker.calls.put(call)
            result, error = call.replies.get()
        except KeyboardInterrupt as interrupt:
            # The program runs in the main thread, which waits here.
            call.give_up()
            raise CallbackInterrupted("interrupted") from interrupt
        except BaseException:
            # As above: the user's own signal handler has raised.
            call.give_up()
            raise
        finally:
            del self._running[id(call)]
        if error is not None:
            raise error
        return result

    def _call_without_launches(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        with self.forbid_launches(_NESTED_LAUNCH):
            return function(*args)

    def run_next(self, worker: CallbackThread) -> bool:
        """Run a worker's next call; return whether it was given up."""
        call = worker.calls.get()
        call.run(self.report)
        if not call.is_given_up:
            self._idle.append(worker)
        return call.is_given_up

    def find_oldest(self) -> tuple[int, str] | None:
        """Return the thread of the call that has run longest, and the name of its program; None if none runs. From any thread."""
        for call in tuple(self._running.values()):
            if worker_id := call.worker_id:
                return worker_id, call.program
        return None

    def give_up(self) -> None:
        """Give up all calls, so that their programs end. From any thread."""
        for call in tuple(self._running.values()):
            call.give_up()
