"""Code that handles its interrupt may finish, until the user interrupts again; a cell that a time limit ends may not."""

from __future__ import annotations

import signal

import pytest

from mhnb.core.launch.environment import NotebookEnvironment
from mhnb.core.messages import DebugPrompt, InterruptDelivered, RankExited, RankStatus
from mhnb.core.state.cell import HANDLING_AFTER_S
from mhnb.core.state.events import (
    Command,
    DisconnectRanks,
    InterruptRequested,
    KillRanks,
    NotifyUser,
    RefuseCell,
    RequestsInterrupted,
    SendToRank,
    SignalRanks,
    StopBeforeLaunch,
    TimePassed,
)
from mhnb.core.state.interrupt import INTERRUPT_DISCONNECT_S, INTERRUPT_KILL_S, SILENCE_NOTE_AFTER_S
from mhnb.view.cell.summary import format_heading
from tests.unit.core.state.test_disconnect import sample, start_cell
from tests.unit.core.state.test_machine import Driver, ended, finished

BOTH = SignalRanks((0, 1), signal.SIGINT)
DELIVERED = InterruptDelivered(0, 1), InterruptDelivered(1, 1)


def advance(driver: Driver, for_s: float, *samples: RankStatus) -> list[Command]:
    """Let time pass while each rank sends the same sample once per second; return all commands."""
    until_s, commands, sampled_at = driver.now + for_s, [], driver.now - 1.0
    while driver.now < until_s:
        if driver.now - sampled_at >= 1.0:
            sampled_at = driver.now
            commands += driver(*samples, after=0.01)
        commands += driver(TimePassed())
    return commands


def test_rank_handling_the_interrupt_is_left_alone() -> None:
    """An example is an `except KeyboardInterrupt` that saves for a minute."""
    driver = start_cell()
    assert driver(InterruptRequested()) == [StopBeforeLaunch(1), BOTH]
    driver(*DELIVERED)
    assert advance(driver, 60.0) == []
    assert finished(driver(ended(0), ended(1, outcome="interrupted"))).result.how == "interrupted"


def test_only_ranks_without_the_interrupt_are_signalled() -> None:
    """It is killed once the other ranks, which cannot outlive it, have handled their interrupt."""
    driver = start_cell()
    driver(InterruptRequested(), DELIVERED[0])
    assert set(advance(driver, 60.0, sample(1, None))) == {SignalRanks((1,), signal.SIGINT)}
    driver(ended(0, outcome="interrupted"))
    assert KillRanks((1,)) in advance(driver, 0.2)


def test_second_interrupt_restarts_if_one_rank_missed_the_first() -> None:
    """A rank that saves gets time to stop by itself."""
    driver = start_cell()
    driver(InterruptRequested(), DELIVERED[0])
    advance(driver, 30.0, sample(1, None))
    driver(InterruptRequested())
    assert set(advance(driver, INTERRUPT_KILL_S - 0.5)) == {BOTH}
    assert KillRanks((0, 1)) in advance(driver, 1.0)


def test_handler_waiting_for_an_uninterrupted_rank_is_killed() -> None:
    """The handler waits in a collective that the other rank never reaches."""
    driver = start_cell()
    driver(InterruptRequested(), DELIVERED[0])
    assert KillRanks((0, 1)) in advance(driver, INTERRUPT_KILL_S + 2.5, sample(0, [0, 1], 7), sample(1, None))


@pytest.mark.parametrize("late_s", [0.3, 3.6])
def test_second_interrupt_stops_waiting_for_handlers(late_s: float) -> None:
    """Signals and later steps restart from the second interrupt, because the ranks received the first, however late."""
    driver = start_cell()
    driver(InterruptRequested(), DELIVERED[0])
    advance(driver, late_s)
    driver(DELIVERED[1])
    advance(driver, 30.0)
    assert driver(InterruptRequested()) == [BOTH]
    assert set(advance(driver, INTERRUPT_KILL_S - 0.5)) == {BOTH}
    assert KillRanks((0, 1)) in advance(driver, 1.0)


def test_second_interrupt_of_hanging_ranks_changes_no_deadline() -> None:
    """Ranks that did not receive the first interrupt have already had their time."""
    driver = start_cell()
    driver(InterruptRequested())
    advance(driver, INTERRUPT_KILL_S - 1.0)
    driver(InterruptRequested())
    assert KillRanks((0, 1)) in advance(driver, 1.2)


def test_double_press_is_not_a_second_interrupt() -> None:
    """Users press the key twice to be sure."""
    driver = start_cell()
    driver(InterruptRequested(), *DELIVERED)
    driver(InterruptRequested())
    assert advance(driver, 20.0) == []


def test_handlers_that_hang_on_all_ranks_are_disconnected() -> None:
    """No other rank remains that could reach the collective that they wait in."""
    driver = start_cell()
    driver(InterruptRequested(), *DELIVERED)
    advance(driver, 10.0)
    waiting = [sample(0, [0, 1], 7), sample(1, [0, 1], 8)]
    assert DisconnectRanks() in advance(driver, INTERRUPT_DISCONNECT_S + 0.5, *waiting)


def test_handlers_in_one_collective_may_finish() -> None:
    """Saving a sharded checkpoint may take long, and every rank has reached it; a second interrupt ends it too."""
    driver = start_cell()
    driver(InterruptRequested(), *DELIVERED)
    saving = [sample(0, [0, 1], 7), sample(1, [0, 1], 7)]
    assert advance(driver, 60.0, *saving) == []
    driver(InterruptRequested())
    assert DisconnectRanks() in advance(driver, INTERRUPT_DISCONNECT_S + 0.5, *saving)


def test_handler_may_wait_for_a_rank_that_still_saves() -> None:
    """The waiting rank is not disconnected for that."""
    driver = start_cell()
    driver(InterruptRequested(), *DELIVERED)
    assert advance(driver, 30.0, sample(0, None), sample(1, [0, 1], 7)) == []


def test_undelivered_interrupt_is_sent_again() -> None:
    """The rank reports that it did not receive the interrupt."""
    driver = start_cell()
    driver(InterruptRequested(), *DELIVERED)
    assert advance(driver, 5.0) == []
    driver(InterruptDelivered(1, 1, is_delivered=False))
    assert SignalRanks((1,), signal.SIGINT) in advance(driver, 1.0)


@pytest.mark.parametrize("interrupted_before", [False, True])
def test_time_limit_does_not_wait_for_handlers(interrupted_before: bool) -> None:  # noqa: FBT001
    """No user is there to interrupt a second time; this also holds if the user had interrupted before."""
    driver = Driver().ready()
    driver.submit(timeout_s=10.0)
    if interrupted_before:
        driver(InterruptRequested(), *DELIVERED)
    assert not [command for command in advance(driver, 9.0) if isinstance(command, KillRanks)]
    driver(TimePassed(), *DELIVERED, after=1.5)
    assert KillRanks((0, 1)) in advance(driver, INTERRUPT_KILL_S + 1.0)


def test_running_cell_names_ranks_that_clean_up() -> None:
    """Otherwise the user would wait without knowing that the interrupt was received."""
    driver = start_cell()
    driver(InterruptRequested(), DELIVERED[1])
    cell = driver.machine.current
    assert cell is not None
    advance(driver, HANDLING_AFTER_S - 0.2)
    assert "cleaning up" not in format_heading(cell.result(driver.now, 2)), "what does not handle it ends by now"
    advance(driver, 0.3)
    assert format_heading(cell.result(driver.now, 2)).endswith(
        " · interrupted, rank 1 cleaning up · interrupt again to end that"
    )
    driver(InterruptDelivered(1, 1, is_delivered=False))
    assert "cleaning up" not in format_heading(cell.result(driver.now, 2))
    driver(ended(0), DELIVERED[1])
    advance(driver, HANDLING_AFTER_S)
    assert format_heading(cell.result(driver.now, 2)).endswith(
        " · interrupted, cleaning up · interrupt again to end that"
    )


def test_delivery_for_another_cell_changes_nothing() -> None:
    """The message arrived late."""
    driver = start_cell()
    driver(InterruptRequested(), InterruptDelivered(0, 7), InterruptDelivered(1, 7))
    assert BOTH in advance(driver, 1.0)


# -- requests between cells


def ask(driver: Driver, *ranks: int) -> None:
    """Record a request to each of these ranks, numbered by the rank."""
    for rank in ranks:
        driver.machine.begin_request(rank, rank, "vars", driver.now)


def answer(driver: Driver, rank: int) -> list[Command]:
    """Record the reply of a rank."""
    return driver.machine.end_request(rank, driver.now)


def test_cell_waits_for_earlier_requests() -> None:
    """A cell is sent once the requests from before it are answered, and says for what it waits; a later request does not hold it."""
    driver = Driver().ready()
    ask(driver, 1)
    assert driver.submit(ticket=1) == []
    ask(driver, 0)
    assert driver.machine.describe_wait(1, driver.now + 3.0) == "waiting for rank 1 to answer 'vars' (3 s)"
    assert {type(command) for command in answer(driver, 1)} == {SendToRank}
    assert driver.machine.describe_wait(1, driver.now) == ""


def wait_silently(driver: Driver, for_s: float = SILENCE_NOTE_AFTER_S + 1.0) -> list[str]:
    """Let time pass, and return what the user is told."""
    return [command.text for command in driver(TimePassed(), after=for_s) if isinstance(command, NotifyUser)]


def test_silent_rank_is_named_once() -> None:
    """The user reads once which ranks have not answered, and again only if one is silent after an answer."""
    driver = Driver().ready()
    ask(driver, 0, 1)
    assert wait_silently(driver, SILENCE_NOTE_AFTER_S / 2) == []
    answer(driver, 0)
    unknown = "it may still be working, or be in a long call that blocks other code"
    assert wait_silently(driver) == [
        f"rank 1 has not answered for 5 s: {unknown}\n  Fix: press Ctrl-C to end the wait; variables do not change"
    ]
    assert wait_silently(driver) == []
    answer(driver, 1)
    ask(driver, 1)
    assert len(wait_silently(driver)) == 1


def test_note_on_a_silent_rank_has_the_reason() -> None:
    """It is suspended, or its cell is at a debugger's prompt, or runs; each reason has its way out."""
    driver = Driver(4).ready()
    driver.submit()
    driver(DebugPrompt(2, 1, 1, "(Pdb) ", "", line=2, is_new=True))
    driver.machine.registry.entries[3].is_halted = True
    ask(driver, 0, 1, 2, 3)
    driver(ended(0))
    answer(driver, 0)
    (note,) = wait_silently(driver)
    assert note == (
        "ranks 1-3 have not answered for 5 s: rank 3 (host3, pid 103) is suspended (SIGSTOP or a debugger); "
        "rank 2 is at the debugger's prompt in cell 1; rank 1 is running cell 1\n"
        "  Fix: kill -CONT 103\n"
        "  Or: c at the debugger's prompt continues the cell, and q ends it"
    )


def test_suspended_ranks_of_other_machines_are_continued_there() -> None:
    """A process id belongs to a machine, so each machine has its own command."""
    driver = Driver(4, environment=NotebookEnvironment(is_local=False)).ready()
    for entry in driver.machine.registry.entries[1:]:
        entry.is_halted = True
        entry.facts = {**entry.facts, "hostname": "b" if entry.rank > 1 else "a"}
    ask(driver, 0, 1, 2, 3)
    (note,) = wait_silently(driver)
    assert note.splitlines()[1] == "  Fix: on a: kill -CONT 101; on b: kill -CONT 102 103"


def test_no_note_on_requests_that_the_user_does_not_wait_for() -> None:
    """Nobody waits for a completion, or after Ctrl-C."""
    driver = Driver().ready()
    driver.machine.begin_request(1, 1, "complete", driver.now)
    assert wait_silently(driver) == []
    ask(driver, 0)
    driver(RequestsInterrupted())
    assert wait_silently(driver) == []


def test_cell_that_waits_for_a_suspended_rank_says_so() -> None:
    """The line of the cell has the reason too."""
    driver = Driver().ready()
    driver.machine.registry.entries[1].is_halted = True
    ask(driver, 1)
    driver.submit(ticket=1)
    assert driver.machine.describe_wait(1, driver.now + 3.0) == (
        "waiting for rank 1 to answer 'vars' (3 s); rank 1 (host1, pid 101) is suspended (SIGSTOP or a debugger)"
    )


def test_cell_interrupts_an_endless_completion() -> None:
    """The code of a value that completion runs may be endless, and nobody waits for its answer."""
    driver = Driver().ready()
    driver.machine.begin_request(1, 1, "complete", driver.now)
    ask(driver, 0)
    assert driver.submit(ticket=1) == []
    assert advance(driver, 0.2) == [StopBeforeLaunch(0), SignalRanks((1,), signal.SIGINT)]


def test_interrupted_requests_are_signalled_until_they_are_answered() -> None:
    """No rank is killed, however long it takes, and the number of the last cell protects the next one from a late signal."""
    driver = start_cell()
    driver(ended(0), ended(1))
    ask(driver, 0, 1)
    assert driver(RequestsInterrupted()) == [StopBeforeLaunch(1), BOTH]
    answer(driver, 0)
    assert set(advance(driver, 60.0)) == {StopBeforeLaunch(1), SignalRanks((1,), signal.SIGINT)}
    answer(driver, 1)
    assert advance(driver, 60.0) == []


def test_interrupt_of_a_cell_that_waits_for_a_request() -> None:
    """The cell is withdrawn, and the request is interrupted, so that the next cell need not wait."""
    driver = Driver().ready()
    ask(driver, 1)
    driver.submit(ticket=1)
    refused, *stop = driver(InterruptRequested(1))
    assert isinstance(refused, RefuseCell)
    assert stop == [StopBeforeLaunch(0), SignalRanks((1,), signal.SIGINT)]
    answer(driver, 1)
    assert {type(command) for command in driver.submit(ticket=2)} == {SendToRank}


def test_requests_are_not_signalled_while_a_cell_runs() -> None:
    """The signal would hit the cell. An interrupted request is signalled once the cell has ended."""
    driver = start_cell()
    ask(driver, 1)
    assert [*driver(RequestsInterrupted()), *advance(driver, 5.0)] == []
    driver(ended(0), ended(1))
    assert advance(driver, 0.2) == [StopBeforeLaunch(1), SignalRanks((1,), signal.SIGINT)]


def test_rank_is_signalled_for_its_first_request_only() -> None:
    """A rank answers in order: it may not have begun the one that is interrupted."""
    driver = Driver().ready()
    driver.machine.begin_request(1, 0, "vars", driver.now)
    driver(RequestsInterrupted())
    driver.machine.begin_request(2, 0, "vars", driver.now)
    driver.machine.end_request(1, driver.now)
    assert advance(driver, 4.0) == []


def test_dead_cluster_refuses_a_cell_that_waits_for_a_request() -> None:
    """The rank will never answer."""
    driver = Driver().ready()
    ask(driver, 1)
    driver.submit(ticket=1)
    driver(RankExited(1, 1, None, []))
    (refused,) = answer(driver, 1)
    assert isinstance(refused, RefuseCell)
