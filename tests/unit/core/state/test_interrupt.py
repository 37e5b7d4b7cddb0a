"""Code that handles its interrupt may finish, until the user interrupts again; a cell that a time limit ends may not."""

from __future__ import annotations

import signal

import pytest

from mhnb.core.messages import InterruptDelivered, RankStatus
from mhnb.core.state.cell import HANDLING_AFTER_S
from mhnb.core.state.events import (
    Command,
    DisconnectRanks,
    InterruptRequested,
    KillRanks,
    SignalRanks,
    StopBeforeLaunch,
    TimePassed,
)
from mhnb.core.state.interrupt import INTERRUPT_DISCONNECT_S, INTERRUPT_KILL_S
from mhnb.view.cell.summary import format_heading
from tests.unit.core.state.test_disconnect import begin, look
from tests.unit.core.state.test_machine import Driver, ended, finished

BOTH = SignalRanks((0, 1), signal.SIGINT)
TAKEN = InterruptDelivered(0, 1), InterruptDelivered(1, 1)


def go_on(driver: Driver, for_s: float, *looks: RankStatus) -> list[Command]:
    """Let time pass while each rank sends the same sample once per second; return all commands."""
    until_s, done, looked_at = driver.now + for_s, [], driver.now - 1.0
    while driver.now < until_s:
        if driver.now - looked_at >= 1.0:
            looked_at = driver.now
            done += driver(*looks, after=0.01)
        done += driver(TimePassed())
    return done


def test_who_handles_the_interrupt_is_neither_signalled_nor_killed() -> None:
    """An example is an `except KeyboardInterrupt` that saves for a minute."""
    driver = begin()
    assert driver(InterruptRequested()) == [StopBeforeLaunch(1), BOTH]
    driver(*TAKEN)
    assert go_on(driver, 60.0) == []
    assert finished(driver(ended(0), ended(1, outcome="interrupted"))).result.how == "interrupted"


def test_who_has_not_got_it_is_signalled_alone() -> None:
    """It is killed once the other ranks, which cannot outlive it, have handled their interrupt."""
    driver = begin()
    driver(InterruptRequested(), TAKEN[0])
    assert set(go_on(driver, 60.0, look(1, None))) == {SignalRanks((1,), signal.SIGINT)}
    driver(ended(0, outcome="interrupted"))
    assert KillRanks((1,)) in go_on(driver, 0.2)


def test_a_second_interrupt_begins_anew_where_one_has_not_got_the_first() -> None:
    """A rank that saves gets time to stop by itself."""
    driver = begin()
    driver(InterruptRequested(), TAKEN[0])
    go_on(driver, 30.0, look(1, None))
    driver(InterruptRequested())
    assert set(go_on(driver, INTERRUPT_KILL_S - 0.5)) == {BOTH}
    assert KillRanks((0, 1)) in go_on(driver, 1.0)


def test_nobody_is_spared_who_waits_for_the_one_that_has_not_got_it() -> None:
    """The handler waits in a collective that the other rank never reaches."""
    driver = begin()
    driver(InterruptRequested(), TAKEN[0])
    assert KillRanks((0, 1)) in go_on(driver, INTERRUPT_KILL_S + 2.5, look(0, [0, 1], 7), look(1, None))


@pytest.mark.parametrize("late_s", [0.3, 3.6])
def test_a_second_interrupt_ends_the_handling(late_s: float) -> None:
    """Signals and later steps restart from the second interrupt, because the ranks received the first, however late."""
    driver = begin()
    driver(InterruptRequested(), TAKEN[0])
    go_on(driver, late_s)
    driver(TAKEN[1])
    go_on(driver, 30.0)
    assert driver(InterruptRequested()) == [BOTH]
    assert set(go_on(driver, INTERRUPT_KILL_S - 0.5)) == {BOTH}
    assert KillRanks((0, 1)) in go_on(driver, 1.0)


def test_a_second_interrupt_of_ranks_that_hang_changes_no_rung() -> None:
    """Ranks that did not receive the first interrupt have already had their time."""
    driver = begin()
    driver(InterruptRequested())
    go_on(driver, INTERRUPT_KILL_S - 1.0)
    driver(InterruptRequested())
    assert KillRanks((0, 1)) in go_on(driver, 1.2)


def test_a_key_pressed_twice_is_no_second_interrupt() -> None:
    """Users press the key twice to be sure."""
    driver = begin()
    driver(InterruptRequested(), *TAKEN)
    driver(InterruptRequested())
    assert go_on(driver, 20.0) == []


def test_handling_that_hangs_on_all_ranks_is_freed() -> None:
    """No other rank remains that could reach the collective that they wait in."""
    driver = begin()
    driver(InterruptRequested(), *TAKEN)
    go_on(driver, 10.0)
    waiting = [look(0, [0, 1], 7), look(1, [0, 1], 8)]
    assert DisconnectRanks() in go_on(driver, INTERRUPT_DISCONNECT_S + 0.5, *waiting)


def test_handling_in_one_collective_of_all_ranks_is_left_alone() -> None:
    """Saving a sharded checkpoint may take long, and every rank has reached it; a second interrupt ends it too."""
    driver = begin()
    driver(InterruptRequested(), *TAKEN)
    saving = [look(0, [0, 1], 7), look(1, [0, 1], 7)]
    assert go_on(driver, 60.0, *saving) == []
    driver(InterruptRequested())
    assert DisconnectRanks() in go_on(driver, INTERRUPT_DISCONNECT_S + 0.5, *saving)


def test_one_may_wait_in_a_collective_for_another_that_still_saves() -> None:
    """The waiting rank is not disconnected for that."""
    driver = begin()
    driver(InterruptRequested(), *TAKEN)
    assert go_on(driver, 30.0, look(0, None), look(1, [0, 1], 7)) == []


def test_an_interrupt_that_went_nowhere_is_sent_again() -> None:
    """The rank reports that it did not receive the interrupt."""
    driver = begin()
    driver(InterruptRequested(), *TAKEN)
    assert go_on(driver, 5.0) == []
    driver(InterruptDelivered(1, 1, is_delivered=False))
    assert SignalRanks((1,), signal.SIGINT) in go_on(driver, 1.0)


@pytest.mark.parametrize("interrupted_before", [False, True])
def test_a_time_limit_waits_for_nobody(interrupted_before: bool) -> None:  # noqa: FBT001
    """No user is there to interrupt a second time; this also holds if the user had interrupted before."""
    driver = Driver().ready()
    driver.submit(timeout_s=10.0)
    if interrupted_before:
        driver(InterruptRequested(), *TAKEN)
    assert not [command for command in go_on(driver, 9.0) if isinstance(command, KillRanks)]
    driver(TimePassed(), *TAKEN, after=1.5)
    assert KillRanks((0, 1)) in go_on(driver, INTERRUPT_KILL_S + 1.0)


def test_the_running_cell_says_who_handles_it_and_what_ends_that() -> None:
    """Otherwise the user would wait without knowing that the interrupt was received."""
    driver = begin()
    driver(InterruptRequested(), TAKEN[1])
    cell = driver.machine.current
    assert cell is not None
    go_on(driver, HANDLING_AFTER_S - 0.2)
    assert "cleaning up" not in format_heading(cell.result(driver.now, 2)), "what does not handle it ends by now"
    go_on(driver, 0.3)
    assert format_heading(cell.result(driver.now, 2)).endswith(
        " · interrupted, rank 1 cleaning up · interrupt again to end that"
    )
    driver(InterruptDelivered(1, 1, is_delivered=False))
    assert "cleaning up" not in format_heading(cell.result(driver.now, 2))
    driver(ended(0), TAKEN[1])
    go_on(driver, HANDLING_AFTER_S)
    assert format_heading(cell.result(driver.now, 2)).endswith(
        " · interrupted, cleaning up · interrupt again to end that"
    )


def test_what_is_of_another_cell_changes_nothing() -> None:
    """The message arrived late."""
    driver = begin()
    driver(InterruptRequested(), InterruptDelivered(0, 7), InterruptDelivered(1, 7))
    assert BOTH in go_on(driver, 1.0)
