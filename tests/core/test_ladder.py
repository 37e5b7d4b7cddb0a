"""A cell whose code has got its interrupt is left to it, until the user asks again; one that nobody watches is not."""

from __future__ import annotations

import signal
from dataclasses import replace

from mhnb.core.events import AskInterrupt, Command, FreeRanks, InterruptRequested, KillRanks, SignalRanks, Ticked
from mhnb.core.ladder import AGAIN_AFTER_S, INTERRUPT_FREE_S, INTERRUPT_KILL_S
from mhnb.core.protocol import RankStatus
from mhnb.view.digest import heading
from tests.core.test_freeing import begin, look
from tests.core.test_machine import Driver, ended, finished

BOTH = SignalRanks((0, 1), signal.SIGINT)


def handles(rank: int, participants: list[int] | None = None, number: int | None = None) -> RankStatus:
    """What a rank says whose code got the interrupt and runs on."""
    return replace(look(rank, participants, number), interrupted=True)


def go_on(driver: Driver, for_s: float, *says: RankStatus) -> list[Command]:
    """Let time go on, the ranks saying the same all the while, and give all that was done."""
    until_s, done = driver.now + for_s, []
    while driver.now < until_s:
        done += driver(*says, Ticked())
    return done


def test_who_handles_the_interrupt_is_neither_signalled_nor_killed() -> None:
    """An `except KeyboardInterrupt` that saves for a minute."""
    driver = begin()
    assert driver(InterruptRequested()) == [AskInterrupt(1), BOTH]
    assert go_on(driver, 60.0, handles(0), handles(1)) == []
    assert finished(driver(ended(0), ended(1, outcome="interrupted"))).result.how == "interrupted"


def test_who_has_not_got_it_is_signalled_alone() -> None:
    """And killed at the end of the ladder, which the others cannot outlive."""
    driver = begin()
    driver(InterruptRequested())
    done = go_on(driver, INTERRUPT_KILL_S + 0.5, handles(0), look(1, None))
    assert {command for command in done if isinstance(command, SignalRanks)} == {SignalRanks((1,), signal.SIGINT)}
    assert [command for command in done if isinstance(command, KillRanks)][:1] == [KillRanks((0, 1))]


def test_a_second_interrupt_ends_the_handling() -> None:
    """Signals again, and the rungs from there: not from the first one, which was heard."""
    driver = begin()
    driver(InterruptRequested())
    go_on(driver, 30.0, handles(0), handles(1))
    assert driver(InterruptRequested()) == [BOTH]
    done = go_on(driver, INTERRUPT_KILL_S - 1.0, handles(0), handles(1))
    assert set(done) == {BOTH}
    assert KillRanks((0, 1)) in go_on(driver, 2.0, handles(0), handles(1))


def test_a_key_pressed_twice_is_no_second_interrupt() -> None:
    """People press it twice to be sure."""
    driver = begin()
    driver(InterruptRequested())
    driver(handles(0), handles(1))
    assert driver.now < AGAIN_AFTER_S
    driver(InterruptRequested())
    assert go_on(driver, 20.0, handles(0), handles(1)) == []


def test_handling_that_hangs_on_all_ranks_is_freed() -> None:
    """Nobody is left who could come to what they wait in."""
    driver = begin()
    driver(InterruptRequested())
    go_on(driver, 10.0, handles(0), handles(1))
    waiting = [handles(0, [0, 1], 7), handles(1, [0, 1], 8)]
    assert FreeRanks() in go_on(driver, INTERRUPT_FREE_S + 0.5, *waiting)


def test_one_may_wait_in_a_collective_for_another_that_still_saves() -> None:
    """It is not cut off for that."""
    driver = begin()
    driver(InterruptRequested())
    assert go_on(driver, 30.0, handles(0), handles(1, [0, 1], 7)) == []


def test_a_time_limit_waits_for_nobody() -> None:
    """There is no one who would ask a second time."""
    driver = Driver().ready()
    driver.submit(timeout_s=2.0)
    driver(Ticked(), after=2.5)
    assert KillRanks((0, 1)) in go_on(driver, INTERRUPT_KILL_S + 0.5, handles(0), handles(1))


def test_the_running_cell_says_who_handles_it_and_what_ends_that() -> None:
    """Else one would wait for something that has been heard."""
    driver = begin()
    driver(InterruptRequested(), handles(1))
    cell = driver.machine.current
    assert cell is not None
    assert heading(cell.result(driver.now, 2)).endswith(
        " · interrupted, rank 1 cleaning up · interrupt again to end that"
    )
    driver(ended(0))
    assert heading(cell.result(driver.now, 2)).endswith(" · interrupted, cleaning up · interrupt again to end that")
