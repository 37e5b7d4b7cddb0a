"""The escalation step that disconnects ranks stuck in a collective that no signal ends: when it happens, and its effects."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from msgspec.structs import replace

from mhnb.core.guard.launch_report import LaunchPlace, LaunchReport
from mhnb.core.guard.launches import STILL_ABANDONED
from mhnb.core.messages import (
    CallbackFailed,
    InterruptDelivered,
    OutputProduced,
    RankExited,
    RankReady,
    RankSpawned,
    RankStatus,
    RunCell,
)
from mhnb.core.output.events import ErrorRaised
from mhnb.core.output.results import LEFT_WAITING
from mhnb.core.state.events import (
    Accepted,
    Command,
    DisconnectRanks,
    InterruptRequested,
    KillRanks,
    NotifyUser,
    SendToRank,
    SignalRanks,
    StopBeforeLaunch,
    TimePassed,
)
from mhnb.core.state.interrupt import INTERRUPT_DISCONNECT_S, INTERRUPT_KILL_S
from mhnb.errors import CellFailed
from tests.unit.core.state.test_machine import GUARD, Driver, ended, error, finished

CAN_DISCONNECT = GUARD | {"frees": True}


def start_cell(*facts: dict[str, Any]) -> Driver:
    """Start a cell on two ranks; unless `facts` differ, both know which connections carry their collectives."""
    driver = Driver()
    for rank, known in enumerate(facts or (CAN_DISCONNECT, CAN_DISCONNECT)):
        driver(RankSpawned(rank, 100 + rank), RankReady(rank, known))
    driver.submit(guard="off")
    return driver


def sample(
    rank: int,
    participants: list[int] | None,
    number: int | None = None,
    *,
    launched: bool = True,
    program: str = "jit(f)",
) -> RankStatus:
    """Return a rank's sample of itself; `participants` are those of the launch that it is in."""
    return RankStatus(
        rank, 1, "waiting", program, 1, "", 2.0, [], participants, number, program=program, is_launched=launched
    )


def run_escalation(driver: Driver, until_s: float, *samples: RankStatus) -> list[float]:
    """Interrupt, record the samples, let time pass, and return the times at which connections were closed."""
    driver(InterruptRequested())
    began_at, closed_at = driver.now, []
    driver(*samples)
    while driver.now - began_at < until_s:
        if DisconnectRanks() in driver(TimePassed()):
            closed_at.append(driver.now - began_at)
    return closed_at


def sent_guards(commands: list[Command]) -> list[str]:
    """Return the guard mode that was sent to each rank."""
    sent = [command.message for command in commands if isinstance(command, SendToRank)]
    return [message.guard for message in sent if isinstance(message, RunCell)]


def test_stuck_rank_is_disconnected_once() -> None:
    """Connections are closed after the signals had their time, and before any rank is killed."""
    driver = start_cell()
    driver(ended(1))
    (closed_at,) = run_escalation(driver, INTERRUPT_KILL_S - 0.2, sample(0, [0, 1]))
    assert INTERRUPT_DISCONNECT_S <= closed_at < INTERRUPT_DISCONNECT_S + 0.25


@pytest.mark.parametrize(
    ("facts", "seen"),
    [((CAN_DISCONNECT, CAN_DISCONNECT), None), ((CAN_DISCONNECT, GUARD), [0, 1])],
    ids=["in no collective", "one rank does not know its connections"],
)
def test_connections_stay_open_if_closing_cannot_help(
    facts: tuple[dict[str, Any], ...], seen: list[int] | None
) -> None:
    """Connections stay open if no rank is stuck in a collective, or closing them is not possible; the escalation goes on."""
    driver = start_cell(*facts)
    driver(ended(1))
    assert run_escalation(driver, INTERRUPT_KILL_S - 0.2, sample(0, seen)) == []
    assert driver(TimePassed(), after=0.3) == [KillRanks((0,))]


@pytest.mark.parametrize(
    "looks",
    [
        [sample(0, [0, 1], 7), sample(0, [0, 1], 8)],
        [sample(0, [0, 1]), replace(sample(0, [0, 1]), line=2)],
        [sample(0, [0, 1], 7), sample(0, None)],
        [sample(0, [0, 1], 7, launched=False), sample(0, [0, 1], 7, launched=False)],
    ],
    ids=["it makes progress", "it makes progress without a record", "it has come out", "it waits to agree"],
)
def test_slow_rank_is_not_stuck(looks: list[RankStatus]) -> None:
    """A slow, overloaded machine must not cost the collectives of a cluster that is about to be clean."""
    driver = start_cell()
    assert run_escalation(driver, INTERRUPT_KILL_S - 0.2, *looks) == []


def test_rank_waiting_for_computation_is_not_disconnected() -> None:
    """A rank that has ended its code still computes its part of the launch; once it stops computing, the launch hangs."""
    driver = start_cell()
    computing = replace(sample(1, [0, 1], launched=False), activity="computing")
    assert run_escalation(driver, INTERRUPT_KILL_S - 1.0, sample(0, [0, 1]), computing) == []
    assert DisconnectRanks() in driver(sample(0, [0, 1]), sample(1, [0, 1]), sample(1, [0, 1]), TimePassed())


@pytest.mark.parametrize(
    ("number", "is_freed"), [(7, True), (None, False)], ids=["a launch", "a call without a record"]
)
def test_handler_in_an_unrecorded_call_is_not_disconnected(number: int | None, is_freed: bool) -> None:  # noqa: FBT001
    """A signal reaches such a rank, and only for a recorded launch is it known that no other rank will join it."""
    driver = start_cell()
    driver(ended(1), InterruptRequested(), InterruptDelivered(0, 1, is_delivered=True))
    assert bool(run_escalation(driver, INTERRUPT_KILL_S - 0.2, sample(0, [0, 1], number))) is is_freed


def test_rank_that_ended_its_code_is_not_killed_at_once() -> None:
    """The rank received its interrupt late and waits for its launches, which end by themselves."""
    driver = start_cell()
    driver(
        InterruptRequested(),
        *(InterruptDelivered(rank, 1, is_delivered=is_delivered) for is_delivered in (True, False) for rank in (0, 1)),
    )
    driver.now += INTERRUPT_KILL_S - 0.5
    assert not [command for command in driver(TimePassed()) if isinstance(command, KillRanks)]


def test_samples_before_the_interrupt_do_not_count() -> None:
    """The signal may have ended the wait since then, and the rank's next sample is late."""
    driver = start_cell()
    driver(sample(0, [0, 1], 7), sample(0, [0, 1], 7))
    assert run_escalation(driver, INTERRUPT_KILL_S - 0.2) == []


def test_a_rank_that_has_ended_the_cell_is_not_stuck() -> None:
    """Its latest sample was in a collective that has ended since."""
    driver = start_cell()
    driver(InterruptRequested(), sample(1, [0, 1]), ended(1))
    assert run_escalation(driver, INTERRUPT_KILL_S - 0.5) == []


def test_disconnected_cluster_is_tainted_with_reason() -> None:
    """The cluster is not dead because the variables remain; the reason names the stuck rank and what no longer works."""
    driver = start_cell()
    driver(ended(1))
    run_escalation(driver, INTERRUPT_DISCONNECT_S + 0.2, sample(0, [0, 1]))
    result = finished(driver(ended(0, outcome="error", events=[error("JaxRuntimeError")]))).result
    assert (result.state, result.how) == ("tainted", "interrupted")
    assert driver.machine.reason.startswith("rank 0 was stuck in a collective that cannot be interrupted")
    assert "new collectives will fail" in driver.machine.reason
    assert "%mhjax restart --replay" in result.notes[-1]


@pytest.mark.parametrize(
    ("number", "left", "note"),
    [
        (7, None, "rank 0 abandoned jit(f) (line 1) before it completed"),
        (None, None, "rank 0 abandoned a collective (line 1) before it completed"),
        (7, LaunchPlace("jit(g) f32[8]", 3), "rank 0 abandoned jit(g) (line 3) before it completed"),
    ],
    ids=["of its looks", "of looks at a call without a record", "of its own record"],
)
def test_abandoned_launch_is_named_at_the_end(number: int | None, left: LaunchPlace | None, note: str) -> None:
    """The live hang report has disappeared by then; the rank's own record is newer than its samples, so it takes precedence."""
    driver = start_cell()
    driver(ended(1))
    run_escalation(driver, INTERRUPT_DISCONNECT_S + 0.2, sample(0, [0, 1], number), sample(0, [0, 1], number))
    driver(sample(0, [0, 1], number, launched=False))
    report = LaunchReport(abandoned_count=1, abandoned_launch=left)
    end = replace(ended(0, outcome="error", events=[error("JaxRuntimeError")]), launches=report)
    assert finished(driver(end)).result.notes[1] == note


@pytest.mark.parametrize("is_stuck", [True, False])
def test_result_of_a_stopped_cell_has_where_its_ranks_were_stuck(*, is_stuck: bool) -> None:
    """It is as the first stop found them. A cell that made progress has nothing of the kind."""
    driver = start_cell()
    for line in (2, 2 if is_stuck else 3):
        waits = RankStatus(0, 1, "agreement", "jit(f)", line, "", 2.0, [], [0, 1], 1)
        driver(
            waits if is_stuck else replace(waits, activity="python"), RankStatus(1, 1, "sleep", "", line, "", 2.0, [])
        )
    driver(InterruptRequested())
    driver(RankStatus(1, 1, "python", "", 9, "", 2.0, []))
    where = finished(driver(ended(0, outcome="interrupted"), ended(1, outcome="interrupted"))).result.where
    assert (where is not None) == is_stuck
    if where is not None:
        assert (where.waiting, where.absent, where.lines[1]) == ((0,), (1,), 2)


def test_rank_that_is_still_stuck_is_killed() -> None:
    """A rank that is stuck even after its connections were closed is killed: the escalation goes on to its last step."""
    driver = start_cell()
    driver(ended(1))
    run_escalation(driver, INTERRUPT_KILL_S - 0.2, sample(0, [0, 1]))
    assert driver(TimePassed(), after=0.3) == [KillRanks((0,))]
    driver(OutputProduced(0, 1, [error("KeyboardInterrupt")]))
    result = finished(driver(RankExited(0, None, 9, []))).result
    assert result.state == "dead"
    assert "did not stop after the interrupt and was killed" in result.notes[0]
    assert "memory" not in result.notes[0], "it was us"


def test_crash_after_interrupt_is_reported_as_crash() -> None:
    """A crash in native code is reported as a crash, also after an interrupt."""
    driver = start_cell()
    driver(ended(1), InterruptRequested())
    result = finished(driver(RankExited(0, None, 11, []))).result
    assert "a crash in native code" in result.notes[0]
    assert result[0].outcome == "died"


@pytest.mark.parametrize(("said", "state"), [("Gloo all-reduce failed: closed", "tainted"), ("no such name", "clean")])
def test_failed_collective_after_accept_taints_again(said: str, state: str) -> None:
    """Otherwise a replay, which has intact connections, would treat the error as the cell's own."""
    driver = start_cell()
    driver(ended(1))
    run_escalation(driver, INTERRUPT_DISCONNECT_S + 0.2, sample(0, [0, 1]))
    driver(ended(0, outcome="error"), Accepted())
    driver.submit(2, guard="off")
    ends = [ended(rank, 2, "error", events=[ErrorRaised("E", said, ["line"], 1, "x", 0.1)]) for rank in (0, 1)]
    assert finished(driver(*ends)).result.state == state


def test_refused_launch_after_accept_taints_again() -> None:
    """Nothing was launched, but the collective is still there; a replay, which does not have it, must skip the cell."""
    driver = start_cell()
    driver.submit(2, guard="lockstep")
    driver(ended(0), ended(1))
    text = f"nothing was launched\n  {STILL_ABANDONED} jit(g) of cell 1. jit(f) could join it and give wrong results."
    events = [ErrorRaised("OrderMismatch", text, ["line"], 1, "x", 0.1)]
    result = finished(driver(ended(0, 2, "error", events=events), ended(1, 2, "error"))).result
    assert result.state == "tainted"
    assert driver.machine.reason == "a collective of an earlier cell may still be waiting"
    assert driver.machine.reason not in result.notes, "the error says so"
    assert result.notes[-1].startswith("tainted (results may be wrong) · %mhjax restart --replay")
    assert "accept" not in result.notes[-1]


FAILED = ErrorRaised("ValueError", "too large\nin a callback of jit(f), In [3], line 9", ["line"], 9, "raise", 0.1)
CLOSED = ErrorRaised("JaxRuntimeError", "Gloo all-reduce failed: closed", ["line"], 2, "f(x)", 3.0)
REPORTED = ErrorRaised(
    "JaxRuntimeError", "INTERNAL: CpuCallback error:\nValueError: too large", ["line"], 2, "f(x)", 3.0
)


def fail_callback(driver: Driver, rank: int, *samples: RankStatus, shared: str = "jit(f)") -> list[Command]:
    """Let a callback of a rank fail, record the samples that follow, and let time pass."""
    return driver(CallbackFailed(rank, 1, FAILED, shared), *samples, TimePassed())


@pytest.mark.parametrize("end", [None, (), (REPORTED,)], ids=["running", "handled", "raised again by its program"])
def test_failed_callback_frees_the_ranks_that_hang(end: tuple[ErrorRaised, ...] | None) -> None:
    """The ranks that wait for the rest of the program are freed, its error is the cause, and the cluster is tainted."""
    driver = start_cell()
    if end is not None:
        driver(CallbackFailed(1, 1, FAILED, "jit(f)"), ended(1, outcome="error" if end else "ok", events=list(end)))
        commands = driver(sample(0, [0, 1], 7), sample(0, [0, 1], 7), TimePassed())
    else:
        commands = fail_callback(driver, 1, *(sample(rank, [0, 1], 7) for rank in (0, 1, 0, 1)))
    running = (0, 1) if end is None else (0,)
    assert commands == [StopBeforeLaunch(1), SignalRanks(running, signal.SIGINT)]
    assert DisconnectRanks() in driver(*(sample(rank, [0, 1], 7) for rank in running), TimePassed())
    ends = [ended(rank, outcome="interrupted" if rank else "error", events=[CLOSED]) for rank in running]
    result = finished(driver(*ends)).result
    assert [(rank.outcome, rank.error and rank.error.ename) for rank in result] == [
        ("error", LEFT_WAITING),
        ("error", "ValueError"),
    ]
    assert (result.how, result.state) == ("", "tainted")
    with pytest.raises(CellFailed, match="ValueError on rank 1 · rank 0 left waiting"):
        result.check()


def test_failed_callback_is_shown_while_the_cell_runs() -> None:
    """The running result has the error from the first second."""
    driver = start_cell()
    fail_callback(driver, 1)
    assert driver.machine.current is not None
    error = driver.machine.current.result(driver.now, 2)[1].error
    assert error is not None
    assert (error.ename, error.line) == ("ValueError", 9)


@pytest.mark.parametrize(
    "samples",
    [
        [sample(0, [0, 1], 7), sample(0, [0, 1], 7), sample(1, None)],
        [sample(0, [0, 1], 7), sample(0, [0, 1], 8), sample(1, [0, 1], 7), sample(1, [0, 1], 8)],
        [sample(0, [0, 1], 7, launched=False)] * 2 + [sample(1, [0, 1], 7, launched=False)],
    ],
    ids=["its code handles the error", "both make progress", "both wait to agree"],
)
def test_failed_callback_without_a_hang_frees_no_rank(samples: list[RankStatus]) -> None:
    """Code that handles the error goes on: nothing is closed while a rank may still come."""
    driver = start_cell()
    assert fail_callback(driver, 1, *samples) == []
    assert finished(driver(ended(0), ended(1))).result.ok


@pytest.mark.parametrize("shared", ["", "jit(g)"])
def test_failed_callback_of_another_program_frees_no_rank(shared: str) -> None:
    """Code that has handled the error waits for another program as long as that takes, and an interrupt is not blamed on it."""
    driver = start_cell()
    assert fail_callback(driver, 1, *(sample(rank, [0, 1], 7) for rank in (0, 1, 0, 1)), shared=shared) == []
    assert driver.machine.current is not None
    assert driver.machine.current.parts[1].describe_samples()[-1].what == "jit(f)"
    driver(InterruptRequested())
    result = finished(driver(*(ended(rank, outcome="interrupted") for rank in (0, 1)))).result
    assert {rank.outcome for rank in result} == {"interrupted"}


def test_freed_ranks_are_not_killed() -> None:
    """No one asked to stop the cell, so a rank that handles the interrupt has its time, until the user interrupts it."""
    driver = start_cell()
    fail_callback(driver, 1, *(sample(rank, [0, 1], 7) for rank in (0, 1, 0, 1)))
    for _ in range(100):
        assert not any(isinstance(command, KillRanks) for command in driver(TimePassed()))
    driver(InterruptRequested())
    commands = [command for _ in range(int(INTERRUPT_KILL_S / 0.1) + 5) for command in driver(TimePassed())]
    assert KillRanks((0, 1)) in commands


@pytest.mark.parametrize(
    ("available", "limit"),
    [
        (True, "launches of rank 0 with other ranks are refused while a collective may still be waiting there"),
        (False, "nothing keeps launches from a collective that may still be waiting on rank 0"),
    ],
)
def test_accept_names_the_ranks_with_an_abandoned_collective(available: bool, limit: str) -> None:  # noqa: FBT001
    """The warning of `accept` names the ranks that may have abandoned a collective, and what is checked from then on."""
    driver = start_cell()
    driver.machine.guard_available = available
    driver(replace(ended(0), launches=LaunchReport(may_have_abandoned=True), facts={"left": 1}), ended(1))
    assert driver.machine.state == "tainted"
    assert driver(Accepted()) == [NotifyUser(f"results may be wrong until the next restart, and {limit}")]


@pytest.mark.parametrize("guard", ["parity", "off"])
def test_abandoned_collective_forces_lockstep(guard: str) -> None:
    """Without agreement only the rank that abandoned it would refuse; after the collective ends, the requested guard is back."""
    driver = start_cell()
    driver(
        *(
            replace(ended(rank), facts={"left": 1 - rank}, launches=LaunchReport(abandoned_count=1 - rank))
            for rank in (0, 1)
        ),
        Accepted(),
    )
    assert sent_guards(driver.submit(2, guard=guard)) == ["lockstep"] * 2
    result = finished(driver(replace(ended(0, 2), facts={"left": 0}), ended(1, 2))).result
    reason = "a collective of an earlier cell may still be waiting on rank 0"
    assert result.notes == (f"guard lockstep instead of {guard}: {reason}, so all ranks must agree on each launch",)
    assert sent_guards(driver.submit(3, guard=guard)) == [guard] * 2


def test_cell_forced_to_lockstep_is_judged_by_its_record() -> None:
    """The cell requested guard off; a rank that raised has launched the same as the other, so the state is not split."""
    driver = start_cell()
    driver(
        *(
            replace(ended(rank), facts={"left": 1 - rank}, launches=LaunchReport(abandoned_count=1 - rank))
            for rank in (0, 1)
        ),
        Accepted(),
    )
    driver.submit(2, guard="off")
    assert finished(driver(ended(0, 2), ended(1, 2, "error", events=[error("ValueError")]))).result.state == "clean"
    driver.submit(3, guard="off")
    assert finished(driver(ended(0, 3), ended(1, 3, "error", events=[error("ValueError")]))).result.state == "clean"
