"""Ctrl-C during a cell calls a callback once there is one; it is never lost and never interrupts a step halfway."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from mhnb.cluster.interrupts import SigintHandler


def press() -> None:
    """Send SIGINT, as a terminal or a kernel's stop button does."""
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_calls_the_act_and_raises_nothing() -> None:
    """Submitting a cell is not interrupted halfway."""
    called: list[int] = []
    with SigintHandler() as ctrl_c:
        ctrl_c.set_callback(lambda: called.append(1))
        press()
        press()
    assert called == [1, 1]


def test_one_that_came_before_there_was_anything_to_call_is_called_then() -> None:
    """An interrupt during submission reaches the cell as soon as the cell has a number."""
    called: list[int] = []
    with SigintHandler() as ctrl_c:
        press()
        assert called == []
        ctrl_c.set_callback(lambda: called.append(1))
    assert called == [1]


def test_one_that_nobody_took_is_raised_at_the_end() -> None:
    """An interrupt without a callback is raised at the end, so that it is not lost."""
    with pytest.raises(KeyboardInterrupt), SigintHandler():
        press()


def test_an_error_inside_is_the_one_that_is_raised() -> None:
    """Ctrl-C does not hide the reason why a cell was refused."""

    def hand_in() -> None:
        with SigintHandler():
            press()
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        hand_in()


def test_afterwards_ctrl_c_is_what_it_was() -> None:
    """Later, Ctrl-C interrupts a plain cell as before."""
    before = signal.getsignal(signal.SIGINT)
    with SigintHandler():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_changes_nothing() -> None:
    """Only the main thread receives Ctrl-C, and only it may set the handler."""
    before, seen = signal.getsignal(signal.SIGINT), []

    def wait() -> None:
        with SigintHandler():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert seen == [before]
