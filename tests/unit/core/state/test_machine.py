"""The state machine returns exact commands for events; invariants are checked after every event."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from mhnb.cluster.status import describe_ranks
from mhnb.core.debugging import DebugRequest, DebugUpdate
from mhnb.core.flight import FlightEvent
from mhnb.core.guard.launch_report import LaunchReport, LaunchRow, PendingPlace
from mhnb.core.journal import CellRecord, Record, StartRecord
from mhnb.core.launch.environment import NotebookEnvironment
from mhnb.core.messages import (
    CellEnded,
    CellRefused,
    DebugInput,
    DebugMode,
    DebugPrompt,
    DebugResumed,
    HubExited,
    OutputProduced,
    PhaseReached,
    RankExited,
    RankReady,
    RankSpawned,
    RankStatus,
    RunCell,
    SkipCell,
    StartFailed,
)
from mhnb.core.output.events import DisplayData, ErrorRaised, OutputEvent, Stream, UpdateDisplayData
from mhnb.core.state.events import (
    Accepted,
    CellRequest,
    CellSubmitted,
    Command,
    DebugLineTyped,
    Event,
    FailStart,
    FinishCell,
    HostExited,
    InterruptRequested,
    KillRanks,
    NotifyUser,
    RefuseCell,
    ReportReady,
    SendToRank,
    ShowDebugger,
    ShowLateOutput,
    SignalRanks,
    StopBeforeLaunch,
    StopRequested,
    TimePassed,
)
from mhnb.core.state.interrupt import INTERRUPT_AGREE_S, INTERRUPT_KILL_S, KILLED_AFTER_INTERRUPT
from mhnb.core.state.machine import ClusterStateMachine
from mhnb.core.state.rank_registry import RankRegistry
from mhnb.core.stragglers import ARRIVAL, ArrivalLog
from mhnb.errors import (
    BreakpointRefused,
    CellFailed,
    CellInterrupted,
    CellTimeout,
    EnginesMissing,
    LaunchError,
    NotClean,
    NotStarted,
)
from mhnb.types import Outcome

GUARD = {"guard": {"available": True, "reason": ""}}
PSUM = LaunchRow("f1", "jit(f)", (0, 1), 1, 1)
PMAX = LaunchRow("f2", "jit(g)", (0, 1), 1, 1)
NO_ARRIVALS = ArrivalLog()


_LOCAL = NotebookEnvironment()


class Driver:
    """A state machine with its own clock; checks the invariants after every event."""

    def __init__(
        self,
        ranks: int = 2,
        *,
        start_timeout_s: float = 60.0,
        supervisors: list[int] | None = None,
        environment: NotebookEnvironment = _LOCAL,
    ) -> None:
        hosts = [f"host{rank}" for rank in range(ranks)]
        logs = [f"/log/rank{rank}.log" for rank in range(ranks)]
        registry = RankRegistry(hosts, logs, supervisors)
        if supervisors is not None:
            registry.mark_takeover("kept.1.1")
        self.machine = ClusterStateMachine(
            registry, generation=1, now=0.0, start_timeout_s=start_timeout_s, environment=environment
        )
        self.machine.history = self.history = list[Record]()
        self.now = 0.0
        self.sent: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
        self.answered: list[int] = []

    def __call__(self, *events: Event, after: float = 0.1) -> list[Command]:
        commands: list[Command] = []
        for event in events:
            self.now += after
            new = self.machine.handle(event, self.now)
            # As the journal does when it writes a record.
            self.history += [each.record for each in new if isinstance(each, FinishCell) and each.record is not None]
            commands += new
        self._check(commands)
        return commands

    def _check(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, SendToRank) and not isinstance(command.message, DebugInput):
                seq = command.message.seq
                self.sent[command.rank] += range(seq, seq + getattr(command.message, "count", 1))
            if isinstance(command, FinishCell | RefuseCell):
                self.answered.append(command.ticket)
        for rank, seqs in self.sent.items():
            assert seqs == list(range(1, len(seqs) + 1)), (
                f"rank {rank} was sent {seqs}: every seq reaches every rank, in order"
            )
        assert len(self.answered) == len(set(self.answered)), "a ticket was answered twice"
        assert (self.machine.current is not None) <= (self.machine.state in ("running", "stopped"))

    def ready(self, **facts: str) -> Driver:
        for rank in self.sent:
            self(RankSpawned(rank, 100 + rank), RankReady(rank, GUARD | facts))
        return self

    def submit(self, ticket: int = 1, source: str = "x = 1", **flags: object) -> list[Command]:
        return self(CellSubmitted(ticket, CellRequest(source, **flags)))  # type: ignore[arg-type]


@pytest.fixture
def driver() -> Iterator[Driver]:
    """Two ranks, ready; after the test, stopping the cluster must end every cell."""
    driver = Driver().ready()
    yield driver
    driver(StopRequested())
    assert driver.machine.current is None


def ended(
    rank: int,
    seq: int = 1,
    outcome: Outcome = "ok",
    launches: Sequence[LaunchRow] = (),
    *,
    events: Sequence[OutputEvent] = (),
    notes: Sequence[str] = (),
    abandoned: int = 0,
    interrupted_before: int | None = None,
    arrivals: ArrivalLog = NO_ARRIVALS,
) -> CellEnded:
    """Return a rank's final reply to a cell."""
    report = LaunchReport(
        list(launches), abandoned_count=abandoned, interrupted_before=interrupted_before, arrivals=arrivals
    )
    return CellEnded(rank, seq, outcome, list(events), 0.1, report, list(notes))


def error(name: str = "ValueError", at_s: float = 0.1) -> ErrorRaised:
    """The event of an exception on line 3."""
    return ErrorRaised(name, "bad", ["line"], 3, "x = y", at_s)


def finished(commands: list[Command]) -> FinishCell:
    """Return the one result among the commands."""
    (finish,) = [c for c in commands if isinstance(c, FinishCell)]
    return finish


def test_start_completes_when_every_rank_is_ready() -> None:
    """The start is complete when the last rank is ready, and not before."""
    driver = Driver()
    states = []
    for rank, commands in ((0, []), (1, [ReportReady()])):
        assert driver(RankReady(rank, GUARD)) == commands
        states.append(driver.machine.state)
    assert states == ["starting", "clean"]


def test_late_message_does_not_reset_a_phase() -> None:
    """The supervisor's `spawned` may arrive after the rank's own `connected`."""
    driver = Driver()
    driver(PhaseReached(0, "connected", {}), RankSpawned(0, 7))
    assert driver.machine.registry.entries[0].phase == "connected"


def test_cells_submitted_while_starting_run_once_ready() -> None:
    """The user may run a cell before the ranks are ready."""
    driver = Driver()
    assert driver.submit() == []
    commands = driver(RankReady(0, GUARD), RankReady(1, GUARD))
    assert [type(c) for c in commands] == [ReportReady, SendToRank, SendToRank]


def test_failed_rank_is_named_with_phase_and_cause() -> None:
    """The error of a start names rank, phase and cause."""
    driver = Driver()
    driver(PhaseReached(1, "jax", {}))
    (command,) = driver(StartFailed(1, "jax", "RuntimeError", "no devices", ""))
    assert isinstance(command, FailStart)
    assert isinstance(command.error, EnginesMissing)
    assert (command.error.rank, command.error.phase) == (1, "jax")
    assert "rank 1 (host1" in str(command.error)
    assert "RuntimeError: no devices" in str(command.error)


def test_rank_that_dies_while_starting_is_named_with_signal() -> None:
    """A death during the start is a failed start; the error has the signal's name and the last output."""
    driver = Driver()
    (command,) = driver(RankExited(0, None, signal.SIGSEGV, ["Fatal error"]))
    assert isinstance(command, FailStart)
    assert "SIGSEGV" in str(command.error)
    assert "Fatal error" in str(command.error)


def test_start_timeout_names_the_rank_furthest_behind() -> None:
    """Only the clock's ticks check the time limit of a start."""
    driver = Driver(start_timeout_s=5.0)
    driver(RankReady(0, GUARD), PhaseReached(1, "connected", {}))
    assert driver(TimePassed()) == []
    (command,) = driver(TimePassed(), after=5.0)
    assert isinstance(command, FailStart)
    assert "rank 1" in str(command.error)
    assert "connected" in str(command.error)


def test_different_software_on_the_ranks_fails_the_start() -> None:
    """JAX does not notice mixed versions, so the machine does."""
    driver = Driver()
    facts = [GUARD | {"versions": {"jax": version}} for version in ("0.10.1", "0.10.2")]
    commands = driver(*(RankReady(rank, f) for rank, f in enumerate(facts)))
    assert isinstance(commands[-1], FailStart)
    assert "(jax 0.10.1 on rank 0, 0.10.2 on rank 1)" in str(commands[-1].error)


def test_every_seq_reaches_every_rank(driver: Driver) -> None:
    """A rank that is not selected gets a skip message, so that all ranks count the same cells."""
    assert driver.submit(ranks=(1,)) == [
        SendToRank(0, SkipCell(1, 1)),
        SendToRank(1, RunCell(1, 1, "x = 1", "parity", [1])),
    ]


def test_next_cell_is_sent_after_the_first_ends(driver: Driver) -> None:
    """The second of two cells is sent when the first has ended on every rank."""
    driver.submit(1)
    assert driver.submit(2) == []
    assert driver(ended(0)) == []
    commands = driver(ended(1))
    assert [type(c) for c in commands] == [FinishCell, SendToRank, SendToRank]
    assert finished(commands).result.ok


def test_live_and_final_output_are_joined_in_order(driver: Driver) -> None:
    """Output sent while the cell ran, and output sent with its end, make one text."""
    driver.submit()
    driver(OutputProduced(0, 1, [Stream("stdout", "a\n")]))
    result = finished(driver(ended(0, events=[Stream("stdout", "b\n")]), ended(1))).result
    assert result[0].stdout == "a\nb\n"
    assert result[1].stdout == ""


def test_error_on_one_rank_is_noted_on_this_and_the_next_cell(driver: Driver) -> None:
    """Only some ranks raised, and the launches are equal: the state is clean, with a note on this cell and on the next."""
    driver.submit(source="def f(n):\n    g(n)\nx = f(1)")
    result = finished(driver(ended(0, outcome="error", events=[error()]), ended(1))).result
    assert driver.machine.state == "clean"
    assert result.failed[0].error is not None
    assert result.failed[0].error.line == 3
    assert result.notes
    driver.submit(2)
    second = finished(driver(ended(0, 2), ended(1, 2))).result
    assert (second.notes, str(second.carried)) == ((), "cell 1 finished on rank 1 only: variables may differ")
    assert second.carried is not None
    assert second.carried.details == (
        "ValueError on rank 0 · rank 1 finished; the ranks are still in sync, but variables set in it may differ"
    )
    driver.submit(3)
    third = finished(driver(ended(0, 3), ended(1, 3))).result
    assert (third.notes, third.carried) == ((), None)


@pytest.mark.parametrize("source", ["g(\n    x\n)", "x = 1\n\ncheck(x)", "print('a')\n\nf(y)\n[i for i in x]"])
def test_cell_that_leaves_no_difference_has_no_note(driver: Driver, source: str) -> None:
    """All ranks have assigned what is above the line that raised; a cell that assigns nothing from there on leaves no difference."""
    driver.submit(source=source)
    result = finished(driver(ended(0, outcome="error", events=[error()]), ended(1))).result
    assert (driver.machine.state, result.notes) == ("clean", ())
    driver.submit(2)
    assert finished(driver(ended(0, 2), ended(1, 2))).result.carried is None


def test_interrupted_cell_that_assigns_nothing_leaves_no_difference(driver: Driver) -> None:
    """The note says only where the ranks were."""
    driver.submit(source="while True: sleep(1)")
    driver(InterruptRequested())
    result = finished(driver(ended(0), ended(1, outcome="interrupted"))).result
    assert result.notes == ("Interrupted while no rank was in a launch · clean",)
    driver.submit(2)
    assert finished(driver(ended(0, 2), ended(1, 2))).result.carried is None


def test_carried_note_has_no_ranks_if_none_finished(driver: Driver) -> None:
    """If one rank raised and the other was interrupted, no rank ended the cell."""
    driver.submit()
    driver(InterruptRequested())
    ends = (ended(0, outcome="error", events=[error()]), ended(1, outcome="interrupted", interrupted_before=3))
    assert len(finished(driver(*ends)).result.notes) == 2
    driver.submit(2)
    second = finished(driver(ended(0, 2), ended(1, 2))).result
    assert str(second.carried) == "cell 1 ended differently on the ranks: variables may differ"


def test_notes_say_once_that_variables_may_differ(driver: Driver) -> None:
    """The note on an interrupt gives the reason, so the general one is left out; the next cell has its mark all the same."""
    driver.submit()
    driver(InterruptRequested())
    result = finished(driver(ended(0), ended(1, outcome="interrupted"))).result
    assert [note.count("may differ") for note in result.notes] == [1]
    driver.submit(2)
    second = finished(driver(ended(0, 2), ended(1, 2))).result
    assert str(second.carried) == "cell 1 finished on rank 0 only: variables may differ"


def test_first_failed_rank_comes_first(driver: Driver) -> None:
    """The order of failures follows the ranks' own clocks since the cell began."""
    driver.submit()
    done = driver(
        ended(0, outcome="error", events=[error("KeyError", 0.9)]),
        ended(1, outcome="error", events=[error("OSError", 0.2)]),
    )
    assert [r.rank for r in finished(done).result.failed] == [1, 0]
    with pytest.raises(CellFailed, match="OSError on rank 1"):
        finished(done).result.check()


def test_different_launches_taint_and_the_next_cell_is_refused(driver: Driver) -> None:
    """With guard parity, different launches make later values doubtful, so no further cell is sent."""
    driver.submit()
    assert finished(driver(ended(0, launches=[PSUM]), ended(1, launches=[PMAX]))).result.state == "tainted"
    (refused,) = driver.submit(2)
    assert isinstance(refused, RefuseCell)
    assert isinstance(refused.error, NotClean)
    assert "tainted" in str(refused.error)


def test_accept_makes_a_tainted_cluster_clean(driver: Driver) -> None:
    """With `accept` the user decides that the cluster may go on, and is warned in one sentence."""
    driver.submit()
    driver(ended(0, launches=[PSUM]), ended(1))
    assert driver(Accepted()) == [NotifyUser("results may be wrong until the next restart")]
    assert driver.machine.state == "clean"
    assert [type(c) for c in driver.submit(2)] == [SendToRank, SendToRank]


def test_waiting_cells_are_refused_after_taint(driver: Driver) -> None:
    """The state is checked when the cell's turn comes, not when the user submitted it."""
    driver.submit(1)
    driver.submit(2)
    commands = driver(ended(0, launches=[PSUM]), ended(1))
    assert [type(c) for c in commands] == [FinishCell, RefuseCell]


def test_guard_off_and_different_outcomes_split(driver: Driver) -> None:
    """Without a record it is unknown whether the ranks are in step."""
    driver.submit(guard="off")
    driver(ended(0, outcome="error", events=[error()]), ended(1))
    assert driver.machine.state == "split"


def test_an_interrupt_signals_only_ranks_that_still_run(driver: Driver) -> None:
    """Ctrl-C goes only to the ranks that have not ended the cell."""
    driver.submit()
    driver(ended(0))
    assert driver(InterruptRequested()) == [StopBeforeLaunch(1), SignalRanks((1,), signal.SIGINT)]
    done = finished(driver(ended(1, outcome="interrupted")))
    assert done.result.how == "interrupted"
    assert not done.result.ok


def test_an_interrupt_between_cells_does_nothing(driver: Driver) -> None:
    """There is no cell to stop, and the state stays clean."""
    assert driver(InterruptRequested()) == []
    assert driver.machine.state == "clean"


def test_lockstep_ranks_are_signalled_after_agreement_fails(driver: Driver) -> None:
    """While they make launches, all ranks stop before the same one; the signal is for ranks that make none."""
    driver.submit(guard="lockstep")
    assert driver(InterruptRequested()) == [StopBeforeLaunch(1)]
    assert driver(TimePassed()) == []
    assert driver(TimePassed(), after=INTERRUPT_AGREE_S) == [SignalRanks((0, 1), signal.SIGINT)]
    assert driver(TimePassed()) == []
    # The signal is repeated, because it may arrive when the rank cannot handle it.
    assert driver(TimePassed(), after=0.6) == [SignalRanks((0, 1), signal.SIGINT)]


def test_equal_notes_of_ranks_appear_once(driver: Driver) -> None:
    """A note appears once, however many ranks report it."""
    driver.submit()
    ends = [ended(rank, notes=["a callback still runs"]) for rank in (0, 1)]
    assert finished(driver(*ends)).result.notes == ("a callback still runs · clean",)
    driver.submit(2)
    assert finished(driver(ended(0, 2), ended(1, 2))).result.notes == ()


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        ((812, 812), ["Interrupted before launch 812 on every rank · clean"]),
        ((812, None), ["Interrupted before launch 812 on rank 0 · clean"]),
        ((3, 41), ["Interrupted before launch 3 on rank 0 · clean", "Interrupted before launch 41 on rank 1 · clean"]),
        (
            (None, None),
            ["Interrupted while no rank was in a launch, so variables set in this cell may differ · clean"],
        ),
    ],
)
def test_note_names_the_launch_before_the_interrupt(
    driver: Driver, stops: tuple[int | None, ...], expected: list[str]
) -> None:
    """For a mesh of some ranks only those are named; if no rank was about to launch, the note says so."""
    driver.submit()
    driver(InterruptRequested())
    ends = [ended(rank, outcome="interrupted", interrupted_before=stop) for rank, stop in enumerate(stops)]
    assert list(finished(driver(*ends)).result.notes) == expected


@pytest.mark.parametrize(
    ("came_to", "expected"),
    [
        ((PendingPlace(1, 2), None), "rank 0 waited before launch 1 (line 2) for other ranks"),
        (
            (PendingPlace(1, None), PendingPlace(4, 3)),
            "rank 0 waited before launch 1 and rank 1 waited before launch 4 (line 3) for other ranks",
        ),
    ],
)
def test_note_names_ranks_that_waited_before_a_launch(
    driver: Driver, came_to: tuple[PendingPlace | None, ...], expected: str
) -> None:
    """In lockstep the rank had reached a launch that the others had not reached: nothing was launched, and it waited there."""
    driver.submit()
    driver(InterruptRequested())
    ends = [
        replace(ended(rank, outcome="interrupted"), launches=LaunchReport(pending_launch=place))
        for rank, place in enumerate(came_to)
    ]
    note = f"Interrupted while {expected}, so variables set in this cell may differ · clean"
    assert finished(driver(*ends)).result.notes == (note,)


def test_interrupting_a_waiting_cell_withdraws_it(driver: Driver) -> None:
    """Interrupting a cell that still waits for its turn does not stop the cell that runs."""
    driver.submit(1)
    driver.submit(2)
    (refused,) = driver(InterruptRequested(2))
    assert isinstance(refused, RefuseCell)
    assert (refused.ticket, type(refused.error)) == (2, CellInterrupted)
    assert [type(c) for c in driver(ended(0), ended(1))] == [FinishCell]


def test_waiting_cell_is_told_who_is_stopped_in_the_debugger(driver: Driver) -> None:
    """A rank that is stopped does not count as running; once it goes on, or has ended, it does not count as stopped."""
    driver.submit(ticket=1)
    driver.submit(ticket=2)

    def waited_for() -> str:
        return driver.machine.describe_wait(2, 12.0).partition("to end ")[2]

    driver(DebugPrompt(1, 1, 1, "(Pdb) ", "", line=2, is_new=True))
    assert waited_for() == "(rank 1 stopped in the debugger; rank 0 running 12 s)"
    driver(DebugPrompt(0, 1, 1, "(Pdb) ", "", line=2, is_new=True))
    assert waited_for() == "(ranks 0-1 stopped in the debugger)"
    driver(DebugResumed(0, 1, ""), DebugResumed(1, 1, ""))
    assert waited_for() == "(ranks 0-1 running 12 s)"
    driver(DebugPrompt(0, 1, 2, "(Pdb) ", "", line=3, is_new=True), ended(0))
    assert waited_for() == "(rank 1 running 12 s)"


def test_an_interrupt_of_a_cell_that_has_ended_does_nothing(driver: Driver) -> None:
    """The interrupt came too late, and the next cell is a different one."""
    driver.submit(1)
    driver(ended(0), ended(1))
    driver.submit(2)
    assert driver(InterruptRequested(1)) == []
    assert driver(InterruptRequested(2)) == [StopBeforeLaunch(2), SignalRanks((0, 1), signal.SIGINT)]


def test_rank_that_does_not_stop_is_killed(driver: Driver) -> None:
    """The escalation ends, and the result says what it cost."""
    driver.submit()
    driver(InterruptRequested())
    assert driver(TimePassed()) == []
    assert driver(TimePassed(), after=INTERRUPT_KILL_S) == [KillRanks((0, 1))]
    commands = driver(RankExited(0, None, 9, []), RankExited(1, None, 9, []))
    assert finished(commands).result.state == "dead"
    assert {r.outcome for r in finished(commands).result} == {"killed"}
    # Each rank failed to stop by itself: none was stopped because of another.
    assert [r.error.evalue if r.error else "" for r in finished(commands).result] == [
        f"rank {n} {KILLED_AFTER_INTERRUPT}" for n in (0, 1)
    ]
    # The note below them says the same.
    first, others = finished(commands).result.notes[0].splitlines()
    assert KILLED_AFTER_INTERRUPT in first
    assert others == "  rank 1 ended in the same way. %mhjax restart --replay"


def test_status_describes_how_ranks_ended(driver: Driver) -> None:
    """Killed ranks did not end after the interrupt; ranks of a lost host are lost, and the others stopped because of it."""
    driver.submit()
    driver(InterruptRequested(), TimePassed())
    assert driver(TimePassed(), after=INTERRUPT_KILL_S) == [KillRanks((0, 1))]
    driver(RankExited(0, None, 9, []), RankExited(1, None, 9, []))
    assert {rank.state for rank in describe_ranks(driver.machine)} == {
        "did not stop after the interrupt and was killed"
    }
    other = Driver().ready()
    other.machine.registry.entries[1].supervisor = 1
    other(HostExited(1, "host1 is gone"), RankExited(0, None, 9, []))
    assert [rank.state for rank in describe_ranks(other.machine)] == [
        "stopped because a host was lost",
        "lost with its host",
    ]


def test_cause_of_a_kill_is_remembered(driver: Driver) -> None:
    """The later ends of the other ranks change nothing: the next cell's refusal and the status show the same cause."""
    driver.submit()
    driver(ended(1), InterruptRequested(), TimePassed())
    assert driver(TimePassed(), after=INTERRUPT_KILL_S) == [KillRanks((0,))]
    note = finished(driver(RankExited(0, None, 9, []))).result.notes[0]
    assert "  rank 1 was stopped with it." in note
    driver(RankExited(1, None, 9, []))
    assert [rank.state for rank in describe_ranks(driver.machine)] == [KILLED_AFTER_INTERRUPT, "stopped with rank 0"]
    (refused,) = driver.submit(2)
    assert isinstance(refused, RefuseCell)
    text = str(refused.error)
    assert KILLED_AFTER_INTERRUPT in text
    assert "memory limit" not in text
    assert text.count("%mhjax restart --replay") == 1


def test_ranks_that_all_crash_are_all_named(driver: Driver) -> None:
    """Ranks that crash in the same way are all named, because no crash is the consequence of another; a later kill is one."""
    driver.submit()
    result = finished(driver(RankExited(1, None, 11, []), RankExited(0, None, 11, []))).result
    assert {part.outcome for part in result} == {"died"}
    assert "rank 0 ended in the same way. %mhjax" in result.notes[0]
    assert "stopped with it" not in result.notes[0]


def test_timeout_interrupts_and_raises_cell_timeout(driver: Driver) -> None:
    """`--timeout` starts the same escalation, and ends in CellTimeout."""
    driver.submit(timeout_s=2.0)
    assert driver(TimePassed()) == []
    assert driver(TimePassed(), after=2.5) == [StopBeforeLaunch(1), SignalRanks((0, 1), signal.SIGINT)]
    done = finished(driver(ended(0, outcome="interrupted"), ended(1, outcome="interrupted")))
    with pytest.raises(CellTimeout, match=r"^--timeout ended it · interrupted on ranks 0-1"):
        done.result.check()


def test_first_death_is_the_cause_and_stops_the_others(driver: Driver) -> None:
    """The first rank to die is the cause; the others were stopped because of it."""
    driver.submit()
    assert driver(RankExited(1, None, 9, ["loading shard 3"])) == [KillRanks((0,))]
    result = finished(driver(RankExited(0, None, 9, []))).result
    assert (result[1].outcome, result[0].outcome) == ("died", "killed")
    assert result.state == "dead"
    states = [(rank.state, rank.last_cell) for rank in describe_ranks(driver.machine)]
    assert states == [
        ("stopped with rank 1", "1 killed"),
        ("was killed by SIGKILL (often by the memory limit)", "1 died"),
    ]
    assert any("rank 1" in note and "SIGKILL" in note for note in result.notes)


STEP = FlightEvent(7, 0, "proposal", 1, line=12, launch=2, program="jit(step)", participants="0-1")


@pytest.mark.parametrize(
    ("event", "quoted"),
    [
        (STEP, " · last event: waited for agreement on jit(step), line 12 of cell 1 · log "),
        (FlightEvent(7, 0, "cell", 1, program="lockstep"), " · log "),
        (FlightEvent(7, 0, "end", 1, program="ok"), " · log "),
        (None, " · log "),
    ],
)
def test_death_quotes_the_last_event(driver: Driver, event: FlightEvent | None, quoted: str) -> None:
    """It is quoted with its cell; that a cell began or ended is no news."""
    driver.submit()
    driver(RankExited(1, None, 9, ["loading"], event))
    note = finished(driver(RankExited(0, None, 9, []))).result.notes[0]
    assert f'· last line: "loading"{quoted}/log/rank1.log' in note


def test_hang_report_has_the_last_events_of_missing_ranks(driver: Driver) -> None:
    """Only events of the running cell count, and a supervisor's heartbeat brings those of another machine."""
    driver.submit()
    driver(ended(0), ended(1))
    driver.submit(2)
    driver.machine.record_last_events({0: STEP})
    driver.machine.record_last_events({1: replace(STEP, cell=2)})
    report = driver.machine.build_hang_report(driver.now)
    assert report is not None
    assert list(report.last_events) == [1]


def arrive(*late_ms: float, ahead_ms: float = 0.0, last_ms: float = 50.0) -> ArrivalLog:
    """Return what a rank noted of launches 100 ms apart, to each of which it came so late, and the last rank by `last_ms`."""
    times = [(100 * n + late + ahead_ms, 100 * n + last_ms + 1 + ahead_ms) for n, late in enumerate(late_ms)]
    packed = [ARRIVAL.pack(0, n, round(come * 1e6), round(end * 1e6)) for n, (come, end) in enumerate(times, 1)]
    return ArrivalLog(["0-1"], b"".join(packed))


@pytest.mark.parametrize("late_ms", [50.0, 1.0])
def test_cell_names_the_rank_that_the_others_wait_for(late_ms: float) -> None:
    """A rank that comes late to each launch is named once the cell has ended; without one there is no note."""
    driver = Driver().ready(clock="of this machine")
    driver.submit()
    logs = {0: arrive(*[0.0] * 10), 1: arrive(*[late_ms] * 10)}
    notes = finished(driver(*(ended(rank, arrivals=log) for rank, log in logs.items()))).result.notes
    expected = ("rank 1 came last at 10 of 10 launches; the others waited 0.5 s, 53% of the time · %mhjax flight",)
    assert notes == (expected if late_ms == 50.0 else ())
    stragglers = driver.machine.added_parts.arrivals.measure()
    assert stragglers is not None
    assert (stragglers.cell_name, stragglers.agreement_count, stragglers.named) == ("cell 1", 10, (1,) if notes else ())


def test_late_host_is_named_by_the_launches_of_earlier_cells() -> None:
    """A host that is late at all launches of a cell has a clock that the cell before it has bounded."""
    driver = Driver()
    for rank in (0, 1):
        driver(RankSpawned(rank, 100 + rank), RankReady(rank, GUARD | {"clock": f"clock {rank}"}))
    for cell, late_ms in enumerate((0.0, 50.0), 1):
        driver.submit(cell)
        logs = [
            arrive(*[0.0] * 10, last_ms=late_ms),
            arrive(*[late_ms] * 10, ahead_ms=3.6e6, last_ms=late_ms),
        ]
        notes = finished(driver(*(ended(rank, cell, arrivals=log) for rank, log in enumerate(logs)))).result.notes
        assert [note.split(";")[0] for note in notes] == (["rank 1 came last at 10 of 10 launches"] if late_ms else [])
    stragglers = driver.machine.added_parts.arrivals.measure()
    assert stragglers is not None
    assert 0 < stragglers.clock_error_s < 0.005


def test_stragglers_are_of_the_last_cell_with_launches(driver: Driver) -> None:
    """A later cell without launches leaves it; before the first cell with launches there is none."""
    driver.submit()
    driver(ended(0), ended(1))
    assert driver.machine.added_parts.arrivals.measure() is None
    driver.submit(2)
    driver(*(ended(rank, 2, arrivals=arrive(0.0)) for rank in (0, 1)))
    driver.submit(3)
    driver(ended(0, 3), ended(1, 3))
    stragglers = driver.machine.added_parts.arrivals.measure()
    assert stragglers is not None
    assert stragglers.cell_name == "cell 2"


def test_duplicate_process_id_is_explained(driver: Driver) -> None:
    """The note quotes JAX's reason instead of the line below it, and the error has the hint."""
    fatal = "F1122 23:44:07.924468   97 client.h:80] It ends. absl::Status: ALREADY_EXISTS: Aborted connect attempt."
    driver.submit()
    driver(RankExited(1, None, signal.SIGABRT, [fatal, "RPC: /xla.coordination.CoordinationService/RegisterTask"]))
    result = finished(driver(RankExited(0, None, 9, []))).result
    assert ' · last line: "client.h:80] … ALREADY_EXISTS: Aborted connect attempt." · log ' in result.notes[0]
    assert result[1].error is not None
    assert "initialize() reads each rank's from its environment" in (result[1].error.hint or "")


@pytest.mark.parametrize(("signum", "hinted"), [(signal.SIGABRT, True), (signal.SIGKILL, False)])
def test_last_output_of_an_abort_gets_a_hint(driver: Driver, signum: int, hinted: bool) -> None:  # noqa: FBT001
    """Native code that aborts raises no exception, so its last output is searched for a hint; after other signals it is not."""
    driver.submit()
    driver(RankExited(1, None, signum, ["terminate called", "what(): Received data size doesn't match expected size."]))
    result = finished(driver(RankExited(0, None, 9, []))).result
    assert result[1].error is not None
    assert ("same size" in (result[1].error.hint or "")) is hinted


def test_death_between_cells_notifies_at_once(driver: Driver) -> None:
    """No cell is running that could report the death, so the user is notified."""
    notification, kill = driver(RankExited(1, 3, None, []))
    assert isinstance(notification, NotifyUser)
    assert "rank 1" in notification.text
    assert "exit code 3" in notification.text
    assert kill == KillRanks((0,))
    assert isinstance(driver.submit()[0], RefuseCell)


def test_lost_hub_notifies_and_ends_the_cluster(driver: Driver) -> None:
    """The hub is part of the cluster, so the user is notified."""
    (notification,) = driver(HubExited(None, 9))
    assert isinstance(notification, NotifyUser)
    assert "hub" in notification.text
    assert driver.machine.state == "dead"


def test_a_hub_lost_in_a_cell_is_judged_when_the_cell_ends(driver: Driver) -> None:
    """The ranks can finish the cell without the hub."""
    driver.submit()
    assert len(driver(HubExited(None, 9))) == 1
    result = finished(driver(ended(0), ended(1))).result
    assert (result.state, result.notes[-1]) == ("dead", "%mhjax restart --replay")


def test_a_lost_host_ends_the_cell(driver: Driver) -> None:
    """Without a supervisor the ends of its ranks would not be reported."""
    driver.submit()
    result = finished(driver(HostExited(0, "the supervisor ended"))).result
    assert {r.outcome for r in result} == {"died"}
    assert result.state == "dead"


def test_host_lost_between_cells_remains_the_cause(driver: Driver) -> None:
    """The ranks of other hosts are ended because of it, so their end is neither reported nor a cause."""
    driver.machine.registry.entries[1].supervisor = 1
    driver(HostExited(1, "host1 (beta) is lost: it has not answered for 21 s"))
    assert driver(RankExited(0, None, 9, [])) == [KillRanks(())]
    assert driver.machine.reason.startswith("host1 (beta) is lost")


def test_a_lost_host_while_starting_fails_the_start() -> None:
    """If a supervisor cannot start, the error quotes its output."""
    (command,) = Driver()(HostExited(0, "ended with exit code 1"))
    assert isinstance(command, FailStart)
    assert isinstance(command.error, LaunchError)


def test_late_output_goes_to_its_own_cell(driver: Driver) -> None:
    """A thread may print after its cell has ended, also while another cell runs."""
    driver.submit(1)
    driver(ended(0), ended(1))
    driver.submit(2)
    (late,) = driver(OutputProduced(1, 1, [Stream("stdout", "late\n")]))
    assert isinstance(late, ShowLateOutput)
    assert (late.result.seq, late.result[1].stdout) == (1, "late\n")
    assert driver.machine.current is not None


def test_display_update_changes_the_older_cell(driver: Driver) -> None:
    """Display ids are valid across cells."""
    driver.submit(1)
    driver(ended(0, events=[DisplayData({"text/plain": "1"}, {}, "bar")]), ended(1))
    driver.submit(2)
    commands = driver(ended(0, 2, events=[UpdateDisplayData({"text/plain": "2"}, {}, "bar")]), ended(1, 2))
    (late,) = [c for c in commands if isinstance(c, ShowLateOutput)]
    assert late.result.seq == 1
    assert late.result[0].outputs[0]["data"]["text/plain"] == "2"


def test_refused_cell_has_outcome_refused(driver: Driver) -> None:
    """A rank that counts cells differently must not run them."""
    driver.submit()
    driver(ended(0))
    result = finished(driver(CellRefused(1, 1, "expected 2"))).result
    assert result[1].outcome == "refused"
    assert not result.ok


def test_a_reply_of_another_cell_is_ignored(driver: Driver) -> None:
    """Only the cell in flight can end."""
    driver.submit()
    assert driver(ended(0, seq=7)) == []
    assert driver.machine.state == "running"


def test_stop_ends_all_waiting_cells() -> None:
    """No caller waits forever."""
    driver = Driver().ready()
    driver.submit(1)
    driver.submit(2)
    commands = driver(StopRequested())
    assert [type(c) for c in commands] == [FinishCell, RefuseCell]
    (refused,) = driver.submit(3)
    assert isinstance(refused, RefuseCell)
    assert isinstance(refused.error, NotStarted)


# -- replay


def test_a_replayed_cell_has_its_old_number(driver: Driver) -> None:
    """One message makes a rank skip the numbers before it, so that each rank receives every number; then the count goes on."""
    run = RunCell(1, 3, "x = 1", "parity", None, debug=DebugMode(is_replay=True))
    skips = [SendToRank(rank, SkipCell(1, 1, count=2)) for rank in (0, 1)]
    assert driver.submit(1, replayed_seq=3) == [*skips, SendToRank(0, run), SendToRank(1, run)]
    assert driver(*(CellEnded(rank, 2, "skipped", [], 0.0) for rank in (0, 1))) == []
    (finished,) = driver(ended(0, 3), ended(1, 3))
    assert isinstance(finished, FinishCell)
    assert finished.record is not None
    assert (finished.record.seq, finished.record.replayed) == (3, True)
    assert isinstance(driver.submit(2)[0], SendToRank)
    (finished,) = driver(ended(0, 4), ended(1, 4))
    assert isinstance(finished, FinishCell)
    assert finished.record is not None
    assert (finished.record.seq, finished.record.replayed) == (4, False)


def test_new_cells_of_a_restart_have_new_numbers(driver: Driver) -> None:
    """A replay may run the cells of several generations, so a restart goes on counting; a start begins with 1."""
    earlier: list[Record] = [StartRecord(7, "2"), CellRecord(7, 9, "x = 1")]
    earlier += [StartRecord(8, "2", after=7), CellRecord(8, 4, "x = 1")]
    driver.machine.history = [*earlier, StartRecord(1, "2", after=8, is_restart=True)]
    driver.machine.number_after_history()
    run = RunCell(1, 2, "x = 1", "lockstep", None, debug=DebugMode(is_replay=True))
    assert driver.submit(1, replayed_seq=2)[-1] == SendToRank(1, replace(run, guard="parity"))
    driver(ended(0, 2), ended(1, 2))
    assert [command.message.seq for command in driver.submit(2) if isinstance(command, SendToRank)] == [3, 3, 5, 5]
    driver(ended(0, 5), ended(1, 5))


def test_name_that_a_restart_has_lost_is_explained(driver: Driver) -> None:
    """The result of a cell that raises NameError says which cell had set the name before, and how to get it back."""
    driver.history += [StartRecord(0, "2"), CellRecord(0, 3, "x = 1", execution_count=7)]
    driver.history.append(StartRecord(1, "2", after=0, is_restart=True))
    driver.machine.number_after_history()
    driver.submit(1, "x + 1")
    raised = [ErrorRaised("NameError", "name 'x' is not defined", [], 1, "x + 1", 0.1)]
    result = finished(driver(*(ended(rank, 4, "error", events=raised) for rank in (0, 1)))).result
    hint = "In [7] set `x` before the restart. To get it back: %mhjax restart --replay"
    assert [rank.error.hint for rank in result if rank.error] == [hint, hint]


def test_record_of_a_cell_matches_its_judgement(driver: Driver) -> None:
    """State and launches in the record come from the judgement: a cell whose launches differ is recorded as tainted."""
    driver.submit(1)
    (finished,) = driver(ended(0, launches=[PSUM]), ended(1, launches=[PMAX]))
    assert isinstance(finished, FinishCell)
    record = finished.record
    assert record is not None
    assert record.launches is not None
    assert (record.state, [trace.ranks for trace in record.launches]) == ("tainted", [(0,), (1,)])


def test_recovery_command_names_the_replay_cost(driver: Driver) -> None:
    """The note, the refusal and the notification count only cells that would run again."""
    driver.submit(1)
    driver(ended(0), ended(1))
    driver.submit(2)
    (finished,) = driver(ended(0, 2, launches=[PSUM]), ended(1, 2, launches=[PMAX]))
    assert isinstance(finished, FinishCell)
    recovery = "%mhjax restart --replay (1 cell, about 1 s)"
    assert recovery in finished.result.notes[-1]
    (refused,) = driver.submit(3)
    assert isinstance(refused, RefuseCell)
    assert recovery in str(refused.error)
    (notification, _) = driver(RankExited(1, None, signal.SIGKILL, []))
    assert isinstance(notification, NotifyUser)
    assert notification.text.endswith(recovery)


def test_cell_that_ends_during_a_stop_raises_interrupted(driver: Driver) -> None:
    """The user interrupted the cell's last step, so Run All must not go on."""
    driver.submit()
    driver(InterruptRequested())
    result = finished(driver(ended(0), ended(1))).result
    assert result.ok
    with pytest.raises(CellInterrupted):
        result.check()


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        (HubExited(None, 9, []), "the hub (ipyparallel's controller) was killed by SIGKILL"),
        (HostExited(2, "host1 (beta) is gone"), "host1 (beta) is gone"),
        (RankExited(0, None, 9, []), "rank 0 (host0), before this notebook attached, was killed"),
    ],
    ids=["hub", "host", "rank"],
)
def test_detached_cluster_with_a_lost_part_is_taken_over_dead(lost: Event, expected: str) -> None:
    """A replay restores what the cluster had; waiting cells are refused, and ranks that connect afterwards are killed."""
    driver = Driver(supervisors=[1, 2])
    driver.submit()
    commands = driver(lost)
    assert [command for command in commands if isinstance(command, ReportReady)]
    assert not [command for command in commands if isinstance(command, FailStart)]
    assert driver.machine.state == "dead"
    assert expected in driver.machine.reason
    assert driver.answered == [1]
    late = driver(RankSpawned(1, 101), RankReady(1, GUARD))
    # The loss of the hub alone is no reason to end a rank immediately.
    assert late == ([] if isinstance(lost, HubExited) else [KillRanks((1,))] * 2)


def test_hub_death_in_a_cell_notifies_and_the_cell_continues(driver: Driver) -> None:
    """The ranks do not need the hub to end the cell; afterwards the cluster is dead."""
    driver.submit()
    (notification,) = driver(HubExited(None, 9, []))
    assert isinstance(notification, NotifyUser)
    assert "was killed by SIGKILL" in notification.text
    assert "cell 1 runs to its end" in notification.text
    assert finished(driver(ended(0), ended(1))).result.state == "dead"


def test_end_of_a_rank_counts_once(driver: Driver) -> None:
    """This process may notice the end while the supervisor is halted; the supervisor reports it again when it resumes."""
    driver.submit()
    driver(RankExited(1, None, 11, []))
    result = finished(driver(RankExited(0, None, 9, []))).result
    reason = driver.machine.reason
    assert driver(RankExited(0, 1, None, ["late"]), RankExited(1, None, 11, ["late"])) == []
    assert (result.state, driver.machine.reason, len(driver.machine.registry.deaths)) == ("dead", reason, 2)


def test_detached_ranks_are_not_called_stopped() -> None:
    """If this notebook has detached from them they are alive; ranks of a cluster that was stopped are stopped."""
    for reason, state in (("let go", "alive"), ("", "stopped")):
        driver = Driver().ready()
        driver(StopRequested(reason))
        assert driver.machine.reason == reason
        assert [rank.state for rank in describe_ranks(driver.machine)] == [state, state]


def test_lost_rank_is_still_lost_after_the_stop() -> None:
    """The host's ranks stay lost; of the other ranks only the stop is known."""
    driver = Driver(supervisors=[1, 2])
    driver(HostExited(2, "host1 is gone"))
    driver(StopRequested())
    assert [rank.state for rank in describe_ranks(driver.machine)] == ["stopped", "lost with its host"]


# -- the debugger


def submit_debugged(driver: Driver, ticket: int = 1, *, guard: str = "lockstep", **flags: object) -> list[Command]:
    """Submit a cell whose caller answers the debugger's prompts."""
    return driver.submit(ticket, guard=guard, debug=DebugRequest(**flags))  # type: ignore[arg-type]


def updates_in(commands: Sequence[Command]) -> list[DebugUpdate]:
    """Return the updates for the caller of the cell."""
    return [command.update for command in commands if isinstance(command, ShowDebugger)]


def prompt_of(rank: int, text: str = "", stop: int = 1) -> DebugPrompt:
    """Return a prompt of a rank in the first cell."""
    return DebugPrompt(rank, 1, stop, "(Pdb) ", text, 4, True)


def test_a_stopped_rank_prompts_and_gets_one_line(driver: Driver) -> None:
    """The caller sees who has stopped, and each prompt takes one line; the rank runs on when it says so."""
    submit_debugged(driver)
    (update,) = updates_in(driver(prompt_of(1, "> In [5]")))
    assert update.states == {0: "running", 1: "stopped"}
    assert update.prompts[1].text == "> In [5]"
    typed = DebugLineTyped(1, 1, "p x")
    assert driver(typed) == [SendToRank(1, DebugInput(1, 1, "p x"))]
    assert driver(typed) == []
    (update,) = updates_in(driver(prompt_of(1, "7")))
    assert update.prompts[1].text == "7"
    (update,) = updates_in(driver(DebugLineTyped(1, 1, "c"), DebugResumed(1, 1, "bye")))
    assert (update.states[1], update.prompts, update.texts[1]) == ("running", {}, "bye")


def test_a_line_for_another_caller_or_rank_is_dropped(driver: Driver) -> None:
    """A line that comes too late for its cell, or for a rank that has not stopped, is sent to no rank."""
    submit_debugged(driver)
    driver(prompt_of(1))
    assert driver(DebugLineTyped(2, 1, "c"), DebugLineTyped(1, 0, "c"), DebugLineTyped(1, 9, "c")) == []


def test_a_rank_in_front_of_a_launch_is_waiting(driver: Driver) -> None:
    """While one rank has stopped, the caller learns which others wait for it, and where."""
    submit_debugged(driver)
    driver(prompt_of(1))
    status = RankStatus(0, 1, "agreement", "jit(f) (x)", 6, "", 1.0, [])
    (update,) = updates_in(driver(status))
    assert update.states == {0: "waiting", 1: "stopped"}
    assert update.waits == {0: "line 6, jit(f)"}
    (update,) = updates_in(driver(ended(0, 1)))
    assert update.states == {0: "done", 1: "stopped"}


def test_time_at_a_prompt_does_not_count_for_the_limit(driver: Driver) -> None:
    """The limit counts only the time in which no rank is stopped."""
    submit_debugged(driver)
    driver.submit(2, timeout_s=5.0)
    driver(ended(0, 1), ended(1, 1))
    driver(DebugPrompt(1, 2, 1, "(Pdb) ", "", 4, True))
    assert StopBeforeLaunch(2) not in driver(TimePassed(), after=60.0)
    driver(DebugResumed(1, 2, ""))
    assert StopBeforeLaunch(2) not in driver(TimePassed(), after=4.0)
    assert StopBeforeLaunch(2) in driver(TimePassed(), after=2.0)


def test_ranks_are_signalled_at_once_while_one_is_stopped(driver: Driver) -> None:
    """A rank at the prompt comes to no launch, so nothing is won by waiting for an agreement."""
    submit_debugged(driver)
    driver(prompt_of(1))
    assert driver(InterruptRequested(1)) == [StopBeforeLaunch(1), SignalRanks((0, 1), signal.SIGINT)]


@pytest.mark.parametrize("guard", ["parity", "off"])
def test_stops_need_lockstep(driver: Driver, guard: str) -> None:
    """Without agreement nothing holds the other ranks: a cell with stops is refused, and any other learns the reason."""
    (refused,) = submit_debugged(driver, guard=guard, stop_ranks=(1,))
    assert isinstance(refused, RefuseCell)
    assert isinstance(refused.error, BreakpointRefused)
    assert f"--guard {guard}" in str(refused.error)
    (sent, _) = submit_debugged(driver, 2, guard=guard)
    assert isinstance(sent, SendToRank)
    assert isinstance(sent.message, RunCell)
    assert sent.message.debug is not None
    assert f"--guard {guard}" in sent.message.debug.refusal


def test_stops_need_the_guard() -> None:
    """Where the hooks do not fit JAX, no rank can be held."""
    driver = Driver()
    for rank in (0, 1):
        driver(RankSpawned(rank, 100 + rank), RankReady(rank, {"guard": {"available": False, "reason": "x"}}))
    (refused,) = submit_debugged(driver, stop_ranks=(1,))
    assert isinstance(refused, RefuseCell)
    assert "guard is unavailable" in str(refused.error)


def test_stops_are_refused_after_accept(driver: Driver) -> None:
    """After `accept` the ranks may be at different launches, for as long as these processes live."""
    taint(driver)
    driver(Accepted())
    (refused,) = submit_debugged(driver, 2, stop_ranks=(1,))
    assert isinstance(refused, RefuseCell)
    assert "%mhjax accept" in str(refused.error)


def taint(driver: Driver) -> None:
    """Run a first cell whose launches differ."""
    driver.submit(1)
    driver(ended(0, 1, launches=[PSUM]), ended(1, 1, launches=[PMAX]))
    assert driver.machine.state == "tainted"


def test_post_mortem_runs_on_a_tainted_cluster_and_changes_nothing(driver: Driver) -> None:
    """A cell that inspects what another left is taken, although no other is, and the state stays."""
    taint(driver)
    reason = driver.machine.reason
    assert any(isinstance(each, SendToRank) for each in submit_debugged(driver, 2, is_post_mortem=True))
    (finished,) = [each for each in driver(ended(0, 2), ended(1, 2)) if isinstance(each, FinishCell)]
    assert (driver.machine.state, driver.machine.reason) == ("tainted", reason)
    assert finished.record is not None
    assert finished.record.is_post_mortem
    (refused,) = driver.submit(3)
    assert isinstance(refused, RefuseCell)


def test_post_mortem_leaves_the_note_for_the_next_cell(driver: Driver) -> None:
    """The note that variables may differ is for the next cell that runs code of the user's."""
    driver.submit(1)
    driver(ended(0, 1), ended(1, 1, "error"))
    submit_debugged(driver, 2, is_post_mortem=True)
    (finished,) = [each for each in driver(ended(0, 2), ended(1, 2)) if isinstance(each, FinishCell)]
    assert finished.result.carried is None
    driver.submit(3)
    (finished,) = [each for each in driver(ended(0, 3), ended(1, 3)) if isinstance(each, FinishCell)]
    assert finished.result.carried is not None
