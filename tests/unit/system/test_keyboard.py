"""A line is read from a real terminal; Ctrl-C and another thread end the read, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from mhnb.cluster.interrupts import SigintHandler
from mhnb.system.keyboard import Cancelled, Keyboard, can_type
from tests.support.terminal import CTRL_C, CTRL_D, Terminal

PLAIN = {"TERM": "dumb", "INPUTRC": os.devnull}
HEAD = """
import signal, sys, threading
from mhnb.cluster.interrupts import SigintHandler
from mhnb.system.keyboard import Cancelled, Keyboard, can_type
keyboard = Keyboard()
"""


@pytest.fixture
def start_program() -> Iterator[Callable[[str], Terminal]]:
    """Start a program that reads lines, in a terminal of its own; it is ended after the test."""
    with ExitStack() as stack:
        yield lambda source: stack.enter_context(Terminal(source=HEAD + source, environ=PLAIN))


def test_line_is_read(start_program: Callable[[str], Terminal]) -> None:
    """The prompt follows what was printed before, and the user can edit the line."""
    terminal = start_program("""
assert can_type()
print("before ", end="")
print(repr(keyboard.read("a> ")), repr(keyboard.read("b> ")))
""")
    terminal.read_until("before a> ")
    terminal.press("p x\x7fy\n")
    terminal.read_until("b> ")
    terminal.press("\n")
    assert "'p y' ''" in terminal.read_to_end()


@pytest.mark.parametrize(("keys", "error"), [(CTRL_C, "KeyboardInterrupt"), (CTRL_D, "EOFError")])
def test_ctrl_c_and_end_of_input_are_raised(start_program: Callable[[str], Terminal], keys: str, error: str) -> None:
    """Within the read, although Ctrl-C calls a function around it; afterwards it calls that function again."""
    terminal = start_program("""
calls = []
with SigintHandler() as ctrl_c:
    ctrl_c.set_callback(lambda: calls.append("called"))
    try:
        keyboard.read("a> ")
    except (EOFError, KeyboardInterrupt) as error:
        print(type(error).__name__, calls)
    signal.raise_signal(signal.SIGINT)
    print("then", calls)
    print(keyboard.read("b> "))
""")
    terminal.read_until("a> ")
    terminal.wait_until_blocked()
    terminal.press(keys)
    terminal.read_until(f"{error} []")
    terminal.read_until("then ['called']")
    terminal.read_until("b> ")
    terminal.press("line\n")
    assert "line\nline\n" in terminal.read_to_end()


def test_another_thread_ends_the_read(start_program: Callable[[str], Terminal]) -> None:
    """The read raises, and so does every later one; Ctrl-C is handled as before."""
    terminal = start_program("""
before = signal.getsignal(signal.SIGINT)
def cancel():
    go.wait()
    keyboard.cancel()
    keyboard.cancel()
go = threading.Event()
thread = threading.Thread(target=cancel)
thread.start()
class Waking:
    def __str__(self):
        go.set()  # input() formats the prompt when it has begun
        return "a> "
for prompt in (Waking(), "b> "):
    try:
        keyboard.read(prompt)
    except Cancelled:
        print("cancelled", signal.getsignal(signal.SIGINT) is before)
thread.join()
""")
    text = terminal.read_to_end()
    assert text.count("cancelled True\n") == 2
    assert "b> " not in text


@pytest.mark.parametrize("count", [300])
def test_late_signal_ends_no_other_code(start_program: Callable[[str], Terminal], count: int) -> None:
    """A cancel at the moment when the line is there either ends the read or does nothing."""
    terminal = start_program(f"""
import builtins
ends = []
for number in range({count}):
    keyboard, go = Keyboard(), threading.Event()
    thread = threading.Thread(target=lambda: (go.wait(), keyboard.cancel()))
    thread.start()
    builtins.input = lambda prompt: go.set() or sum(range(number * 20)) and "line"
    try:
        ends.append(keyboard.read("a> "))
    except Cancelled:
        ends.append("cancelled")
    thread.join()
print("survived", len(ends))
""")
    assert f"survived {count}" in terminal.read_to_end()


def test_late_ctrl_c_is_for_the_code_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the moment after the line calls the function that was to be called without the read."""
    keyboard, calls = Keyboard(), []

    def end_read() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        end()

    end = keyboard._end_read  # the moment that no user can hit on purpose
    monkeypatch.setattr(keyboard, "_end_read", end_read)
    monkeypatch.setattr("builtins.input", lambda _: "line")
    with SigintHandler() as ctrl_c:
        ctrl_c.set_callback(lambda: calls.append("called"))
        assert keyboard.read("a> ") == "line"
    assert calls == ["called"]


def test_read_of_a_cancelled_keyboard_ends_at_once() -> None:
    """The cell may end before the read of its line begins."""
    keyboard = Keyboard()
    keyboard.cancel()
    with pytest.raises(Cancelled):
        keyboard.read("a> ")


def test_other_thread_cannot_read() -> None:
    """Ctrl-C would not reach it."""
    errors: list[RuntimeError] = []

    def read() -> None:
        assert not can_type()
        try:
            Keyboard().read("a> ")
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_program_without_terminal_cannot_type(start_program: Callable[[str], Terminal]) -> None:
    """The user cannot answer a prompt that is not seen, and a kernel's `input` is not the terminal's."""
    terminal = start_program("""
import builtins
found = [can_type()]
for name in ("stdin", "stdout"):
    stream = getattr(sys, name)
    with open("/dev/null", "r+") as null:
        setattr(sys, name, null)
        found.append(can_type())
    setattr(sys, name, stream)
builtins.input = lambda prompt: ""
print("found", *found, can_type())
""")
    assert "found True False False False" in terminal.read_to_end()
