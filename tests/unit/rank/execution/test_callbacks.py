"""Functions that programs call back run in threads of their own: their results, their errors, and how an interrupt gives them up."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import jax
import pytest

from mhnb.core.guard.threads import UNKNOWN_THREAD
from mhnb.rank.execution.callbacks import CallbackInterrupted, CallingProgram, ProgramCallbacks, is_interrupt
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.execution.streams import CELL_NUMBER, current_cell, current_thread

WAIT_S = 60.0
PROGRAM = CallingProgram("jit(f)", is_shared=True)


class Program:
    """A program that calls functions from threads of XLA's."""

    def __init__(self) -> None:
        self.callbacks = ProgramCallbacks()
        self.reports: list[tuple[BaseException, CallingProgram]] = []
        self.callbacks.report = lambda failed, program: self.reports.append((failed.error, program))

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function as a running program does, in a thread that Python has not started."""
        done: Future[Any] = Future()

        def work() -> None:
            try:
                done.set_result(self.call_here(function, *args))
            except BaseException as error:  # noqa: BLE001 - it is the program's
                done.set_exception(error)

        _thread.start_new_thread(work, ())
        return done

    def call_here(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as a small program does, which runs in the thread that launches it."""
        return self.callbacks.wrap(function, PROGRAM)(*args)


class Hanging:
    """A function that waits in C until it may return, or runs in Python forever."""

    def __init__(self, *, in_python: bool = False) -> None:
        self.started, self.can_return, self._in_python = threading.Event(), threading.Event(), in_python
        self.thread: threading.Thread | None = None
        self.went_on = False

    def __call__(self) -> None:
        self.thread = threading.current_thread()
        self.started.set()
        while self._in_python:
            continue
        self.can_return.wait()
        self.went_on = True

    def join(self) -> None:
        """Wait until its thread has ended."""
        assert self.thread is not None
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def program() -> Iterator[Program]:
    """A program whose calls have all ended after the test."""
    made = Program()
    yield made
    made.callbacks.give_up()


def test_result_and_error_reach_the_program(program: Program) -> None:
    """A program gets what the function returns or raises, and only an error is reported, with the program."""
    assert program.call(divmod, 7, 2).result(WAIT_S) == (3, 1)
    assert program.reports == []
    error = program.call(divmod, 7, 0).exception(WAIT_S)
    assert isinstance(error, ZeroDivisionError)
    assert program.reports == [(error, PROGRAM)]


def test_error_whose_text_cannot_be_computed_is_replaced(program: Program) -> None:
    """XLA computes the text, and aborts the process if that raises."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise LookupError

    def fail() -> None:
        raise Odd

    for call in (lambda: program.call(fail).result(WAIT_S), lambda: program.call_here(fail)):
        with pytest.raises(Exception, match="its __str__ raised LookupError") as raised:
            call()
        assert type(raised.value).__name__ == "Odd"


@pytest.mark.parametrize("in_python", [False, True])
def test_given_up_call_ends_its_program_and_its_thread(program: Program, *, in_python: bool) -> None:
    """The program ends at once, and the thread when it runs Python code; nothing is reported as the function's error."""
    hang = Hanging(in_python=in_python)
    done = program.call(hang)
    assert hang.started.wait(WAIT_S)
    program.callbacks.give_up()
    assert isinstance(done.exception(WAIT_S), CallbackInterrupted)
    hang.can_return.set()
    hang.join()
    assert (hang.went_on, program.reports) == (False, [])
    assert program.call(divmod, 7, 2).result(WAIT_S) == (3, 1)


def test_small_program_calls_in_the_thread_that_launches_it(program: Program) -> None:
    """There the function sees that thread's settings, as `jax.enable_x64`; its error is reported like any other."""
    program.call(divmod, 7, 2).result(WAIT_S)
    assert program.call_here(threading.current_thread) is threading.current_thread()
    with pytest.raises(ZeroDivisionError) as raised:
        program.call_here(divmod, 7, 0)
    assert program.reports == [(raised.value, PROGRAM)]


@pytest.mark.parametrize(("raised", "expected"), [(KeyboardInterrupt, CallbackInterrupted), (TimeoutError,) * 2])
def test_signal_handler_in_the_main_thread_ends_the_program(
    program: Program, raised: type[BaseException], expected: type[BaseException]
) -> None:
    """If the program runs in the main thread, a signal handler that raises there ends the call."""

    def ring(*_: object) -> None:
        raise raised

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(expected):
            program.call_here(signal.raise_signal, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert program.callbacks.find_oldest() is None


def test_failure_of_a_given_up_program_is_an_interrupt() -> None:
    """JAX shows the reason in the text of its own error, which no user's error is likely to contain."""
    text = f"INTERNAL: CpuCallback error: {CallbackInterrupted.__name__}: interrupted"
    assert is_interrupt(KeyboardInterrupt())
    assert is_interrupt(jax.errors.JaxRuntimeError(text))
    assert not is_interrupt(jax.errors.JaxRuntimeError("INTERNAL: no"))
    assert not is_interrupt(RuntimeError(text))


def test_thread_of_a_call_belongs_to_no_cell(program: Program) -> None:
    """What a function prints in a later cell belongs to that one, so its thread remembers neither a cell nor a thread."""
    token = CELL_NUMBER.set(3)
    try:
        assert program.call_here(current_cell) == 3
        assert program.call(lambda: (current_cell(), current_thread().number)).result(WAIT_S) == (0, UNKNOWN_THREAD)
    finally:
        CELL_NUMBER.reset(token)


class Requests:
    """The supervisor's request to stop a cell."""

    interrupted_seq, report_count = -1, 0


@pytest.mark.parametrize("is_delivered", [False, True])
def test_only_an_interrupt_that_cannot_be_delivered_gives_calls_up(program: Program, *, is_delivered: bool) -> None:
    """A call is given up a second after the request, unless the cell's code has received the interrupt: then it handles it."""
    now, requests, hang = [0.0], Requests(), Hanging()
    interrupts = InterruptDelivery(requests, clock=lambda: now[0])
    interrupts.callbacks = program.callbacks
    interrupts.reset(3)
    done = program.call(hang)
    assert hang.started.wait(WAIT_S)
    interrupts.give_up_callbacks()
    now[0], requests.interrupted_seq = 5.0, 3
    if is_delivered:
        interrupts._mark_delivered()
    for now[0] in (5.0, 5.9):
        interrupts.give_up_callbacks()
        assert not done.done()
    now[0] = 6.1
    interrupts.give_up_callbacks()
    hang.can_return.set()
    assert isinstance(done.exception(WAIT_S), CallbackInterrupted) == (not is_delivered)


@pytest.mark.parametrize(("now", "is_ended"), [(5.9, False), (6.1, True)])
def test_signal_ends_an_overdue_call_in_the_middle_of_a_launch(program: Program, now: float, *, is_ended: bool) -> None:
    """In the main thread an interrupt waits for the launch, but its callback, which is a part of it, has a second like any other."""
    clock, requests = [5.0], Requests()
    interrupts = InterruptDelivery(requests, clock=lambda: clock[0])
    before = signal.getsignal(signal.SIGINT)
    interrupts.install((Program.call_here.__code__,))
    try:
        interrupts.reset(3)
        interrupts.is_launching, requests.interrupted_seq = True, 3
        interrupts.give_up_callbacks()
        clock[0] = now
        if is_ended:
            with pytest.raises(CallbackInterrupted):
                program.call_here(signal.raise_signal, signal.SIGINT)
        else:
            program.call_here(signal.raise_signal, signal.SIGINT)
        assert interrupts.is_pending != is_ended
    finally:
        interrupts.close()
        signal.signal(signal.SIGINT, before)
