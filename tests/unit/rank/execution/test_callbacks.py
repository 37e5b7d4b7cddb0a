"""Functions that programs call back run in threads of their own: their results, their errors, and how an interrupt gives them up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import pytest

from mhnb.rank.execution.callbacks import CallbackInterrupted, ProgramCallbacks, is_interrupt
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.execution.streams import CELL_NUMBER, current_cell, current_thread, propagate_to_threads

WAIT_S = 60.0


class Program:
    """A program that calls functions from threads of XLA's."""

    def __init__(self) -> None:
        self.callbacks = ProgramCallbacks()
        self.reports: list[tuple[BaseException, str]] = []
        self.callbacks.report = lambda error, program: self.reports.append((error, program))
        self.pool = ThreadPoolExecutor(4)

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function as a running program does."""
        return self.pool.submit(self.callbacks.wrap(function, "jit(f)"), *args)


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
    made.pool.shutdown()


def test_result_and_error_reach_the_program(program: Program) -> None:
    """A program gets what the function returns or raises, and only an error is reported, with the program's name."""
    assert program.call(divmod, 7, 2).result(WAIT_S) == (3, 1)
    assert program.reports == []
    error = program.call(divmod, 7, 0).exception(WAIT_S)
    assert isinstance(error, ZeroDivisionError)
    assert program.reports == [(error, "jit(f)")]


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


@pytest.mark.parametrize(("raised", "expected"), [(KeyboardInterrupt, CallbackInterrupted), (TimeoutError,) * 2])
def test_signal_handler_in_the_main_thread_ends_the_program(
    raised: type[BaseException], expected: type[BaseException]
) -> None:
    """If the program runs in the main thread, a signal handler that raises there gives the call up."""
    main, hang = threading.main_thread().ident, Hanging()
    assert main is not None

    def ring(*_: object) -> None:
        raise raised

    def hang_and_ring() -> None:
        signal.pthread_kill(main, signal.SIGUSR1)
        hang()

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(expected):
            ProgramCallbacks().wrap(hang_and_ring, "jit(f)")()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert hang.started.wait(WAIT_S)
    hang.can_return.set()
    hang.join()
    assert not hang.went_on


def test_failure_of_a_given_up_program_is_an_interrupt() -> None:
    """JAX shows the reason in the text of its own error, which no user's error is likely to contain."""
    text = f"INTERNAL: CpuCallback error: {CallbackInterrupted.__name__}: interrupted"
    assert is_interrupt(KeyboardInterrupt())
    assert is_interrupt(jax.errors.JaxRuntimeError(text))
    assert not is_interrupt(jax.errors.JaxRuntimeError("INTERNAL: no"))
    assert not is_interrupt(RuntimeError(text))


def test_call_keeps_the_thread_of_its_caller(program: Program) -> None:
    """What the function launches belongs to the thread of the cell whose program calls it."""
    assert program.callbacks.wrap(current_thread, "jit(f)")() is current_thread()


def test_thread_of_an_earlier_cell_belongs_to_no_cell(program: Program) -> None:
    """What a program prints later, in a thread of XLA's, is not taken for late output of the cell that started the thread."""
    propagate_to_threads()
    token = CELL_NUMBER.set(3)
    try:
        assert program.callbacks.wrap(current_cell, "jit(f)")() == 3
    finally:
        CELL_NUMBER.reset(token)
    assert program.call(current_cell).result(WAIT_S) == 0


def test_call_in_the_middle_of_a_launch_may_not_launch(program: Program) -> None:
    """A function that a program calls while the rank is still in its launch is refused launches: they would wait forever."""
    reasons: list[str] = []

    @contextmanager
    def forbid(reason: str) -> Iterator[None]:
        reasons.append(reason)
        yield

    program.callbacks.forbid_launches, program.callbacks.is_in_launch = forbid, lambda: True
    assert program.call(divmod, 7, 2).result(WAIT_S) == (3, 1)
    assert reasons == ["its callback runs in the middle of that launch, on which all ranks have agreed"]


class Requests:
    """The supervisor's request to stop a cell."""

    interrupted_seq = 0


@pytest.mark.parametrize("is_delivered", [False, True])
def test_only_an_interrupt_that_cannot_be_delivered_gives_calls_up(program: Program, *, is_delivered: bool) -> None:
    """A call is given up a second after the request, unless the cell's code has received the interrupt: then it handles it."""
    now, requests, hang = [0.0], Requests(), Hanging()
    interrupts = InterruptDelivery(requests, clock=lambda: now[0])
    interrupts.callbacks = program.callbacks
    interrupts.begin_cell(3)
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
