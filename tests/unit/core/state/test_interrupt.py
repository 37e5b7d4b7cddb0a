"""A cell whose code has got its interrupt is left to it, until the user asks again; one that nobody watches is not."""

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
    """Let time go on, each rank looking at itself once a second and seeing the same, and give all that was done."""
    until_s, done, looked_at = driver.now + for_s, [], driver.now - 1.0
    while driver.now < until_s:
        if driver.now - looked_at >= 1.0:
            looked_at = driver.now
            done += driver(*looks, after=0.01)
        done += driver(TimePassed())
    return done


def test_who_handles_the_interrupt_is_neither_signalled_nor_killed() -> None:
    """An `except KeyboardInterrupt` that saves for a minute."""
    driver = begin()
    assert driver(InterruptRequested()) == [StopBeforeLaunch(1), BOTH]
    driver(*TAKEN)
    assert go_on(driver, 60.0) == []
    assert finished(driver(ended(0), ended(1, outcome="interrupted"))).result.how == "interrupted"


def test_who_has_not_got_it_is_signalled_alone() -> None:
    """And killed when the others, which cannot outlive it, have ended what they do about theirs."""
    driver = begin()
    driver(InterruptRequested(), TAKEN[0])
    assert set(go_on(driver, 60.0, look(1, None))) == {SignalRanks((1,), signal.SIGINT)}
    driver(ended(0, outcome="interrupted"))
    assert KillRanks((1,)) in go_on(driver, 0.2)


def test_a_second_interrupt_begins_anew_where_one_has_not_got_the_first() -> None:
    """Who saves has time to stop by himself."""
    driver = begin()
    driver(InterruptRequested(), TAKEN[0])
    go_on(driver, 30.0, look(1, None))
    driver(InterruptRequested())
    assert set(go_on(driver, INTERRUPT_KILL_S - 0.5)) == {BOTH}
    assert KillRanks((0, 1)) in go_on(driver, 1.0)


def test_nobody_is_spared_who_waits_for_the_one_that_has_not_got_it() -> None:
    """A collective in the handling, which that one never comes to."""
    driver = begin()
    driver(InterruptRequested(), TAKEN[0])
    assert KillRanks((0, 1)) in go_on(driver, INTERRUPT_KILL_S + 2.5, look(0, [0, 1], 7), look(1, None))


@pytest.mark.parametrize("late_s", [0.3, 3.6])
def test_a_second_interrupt_ends_the_handling(late_s: float) -> None:
    """Signals again, and every rung from there: not from the first one, which was heard, however late."""
    driver = begin()
    driver(InterruptRequested(), TAKEN[0])
    go_on(driver, late_s)
    driver(TAKEN[1])
    go_on(driver, 30.0)
    assert driver(InterruptRequested()) == [BOTH]
    assert set(go_on(driver, INTERRUPT_KILL_S - 0.5)) == {BOTH}
    assert KillRanks((0, 1)) in go_on(driver, 1.0)


def test_a_second_interrupt_of_ranks_that_hang_changes_no_rung() -> None:
    """Who has not got the first one has had his time."""
    driver = begin()
    driver(InterruptRequested())
    go_on(driver, INTERRUPT_KILL_S - 1.0)
    driver(InterruptRequested())
    assert KillRanks((0, 1)) in go_on(driver, 1.2)


def test_a_key_pressed_twice_is_no_second_interrupt() -> None:
    """People press it twice to be sure."""
    driver = begin()
    driver(InterruptRequested(), *TAKEN)
    driver(InterruptRequested())
    assert go_on(driver, 20.0) == []


def test_handling_that_hangs_on_all_ranks_is_freed() -> None:
    """Nobody is left who could come to what they wait in."""
    driver = begin()
    driver(InterruptRequested(), *TAKEN)
    go_on(driver, 10.0)
    waiting = [look(0, [0, 1], 7), look(1, [0, 1], 8)]
    assert DisconnectRanks() in go_on(driver, INTERRUPT_DISCONNECT_S + 0.5, *waiting)


def test_handling_in_one_collective_of_all_ranks_is_left_alone() -> None:
    """What saves a sharded checkpoint may gather for long: everybody has come to it. A second interrupt ends that too."""
    driver = begin()
    driver(InterruptRequested(), *TAKEN)
    saving = [look(0, [0, 1], 7), look(1, [0, 1], 7)]
    assert go_on(driver, 60.0, *saving) == []
    driver(InterruptRequested())
    assert DisconnectRanks() in go_on(driver, INTERRUPT_DISCONNECT_S + 0.5, *saving)


def test_one_may_wait_in_a_collective_for_another_that_still_saves() -> None:
    """It is not cut off for that."""
    driver = begin()
    driver(InterruptRequested(), *TAKEN)
    assert go_on(driver, 30.0, look(0, None), look(1, [0, 1], 7)) == []


def test_an_interrupt_that_went_nowhere_is_sent_again() -> None:
    """The rank says so."""
    driver = begin()
    driver(InterruptRequested(), *TAKEN)
    assert go_on(driver, 5.0) == []
    driver(InterruptDelivered(1, 1, is_delivered=False))
    assert SignalRanks((1,), signal.SIGINT) in go_on(driver, 1.0)


@pytest.mark.parametrize("interrupted_before", [False, True])
def test_a_time_limit_waits_for_nobody(interrupted_before: bool) -> None:  # noqa: FBT001
    """There is no one who would ask a second time. It holds also where the user had asked before."""
    driver = Driver().ready()
    driver.submit(timeout_s=10.0)
    if interrupted_before:
        driver(InterruptRequested(), *TAKEN)
    assert not [command for command in go_on(driver, 9.0) if isinstance(command, KillRanks)]
    driver(TimePassed(), *TAKEN, after=1.5)
    assert KillRanks((0, 1)) in go_on(driver, INTERRUPT_KILL_S + 1.0)


def test_the_running_cell_says_who_handles_it_and_what_ends_that() -> None:
    """Else one would wait for something that has been heard."""
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
    """It came late."""
    driver = begin()
    driver(InterruptRequested(), InterruptDelivered(0, 7), InterruptDelivered(1, 7))
    assert BOTH in go_on(driver, 1.0)
