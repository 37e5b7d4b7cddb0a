"""Ctrl-C during a cell calls a callback once there is one; it is never lost and never interrupts a step halfway."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from mhnb.cluster.interrupts import SigintHandler


def press_ctrl_c() -> None:
    """Send SIGINT, as a terminal or a kernel's stop button does."""
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_calls_the_callback_and_raises_nothing() -> None:
    """Submitting a cell is not interrupted halfway."""
    called: list[int] = []
    with SigintHandler() as ctrl_c:
        ctrl_c.set_callback(lambda: called.append(1))
        press_ctrl_c()
        press_ctrl_c()
    assert called == [1, 1]


def test_early_ctrl_c_calls_the_callback_once_it_is_set() -> None:
    """An interrupt during submission reaches the cell as soon as the cell has a number."""
    called: list[int] = []
    with SigintHandler() as ctrl_c:
        press_ctrl_c()
        assert called == []
        ctrl_c.set_callback(lambda: called.append(1))
    assert called == [1]


def test_ctrl_c_without_callback_is_raised_at_the_end() -> None:
    """An interrupt without a callback is raised at the end, so that it is not lost."""
    with pytest.raises(KeyboardInterrupt), SigintHandler():
        press_ctrl_c()


def test_error_inside_is_raised_instead_of_ctrl_c() -> None:
    """Ctrl-C does not hide the reason why a cell was refused."""

    def submit() -> None:
        with SigintHandler():
            press_ctrl_c()
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        submit()


def test_previous_handler_is_restored() -> None:
    """Later, Ctrl-C interrupts a plain cell as before."""
    before = signal.getsignal(signal.SIGINT)
    with SigintHandler():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_other_thread_does_not_change_the_handler() -> None:
    """Only the main thread receives Ctrl-C, and only it may set the handler."""
    before, seen = signal.getsignal(signal.SIGINT), []

    def wait() -> None:
        with SigintHandler():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert seen == [before]
