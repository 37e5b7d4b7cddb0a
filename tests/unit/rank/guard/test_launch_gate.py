"""One rank's part of an agreement, with a backend that returns what the test wants."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mhnb.core.guard.agreement import LAUNCH_DECISION, Decision, LaunchProposal, Vote
from mhnb.core.guard.launch_report import PendingPlace
from mhnb.core.messages import RankStatus, RunCell
from mhnb.errors import BreakpointRefused, OrderMismatch
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.execution.stack_sampler import StackSampler
from mhnb.rank.execution.streams import CELL_NUMBER
from mhnb.rank.guard.launch_gate import DeferredSignals, LaunchGate
from mhnb.rank.guard.local_agreement import AgreementBackend, Participant
from mhnb.rank.guard.shared_board import SharedBoard, create_board


class HandlerError(Exception):
    """Raised by a signal handler of the user's."""


class InterruptedBackend:
    """A backend in whose wait a signal handler raises, when it is too late to withdraw the proposal."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    def end_cell(self, seq: int, ending: int) -> None:
        """Do nothing: no rank waits."""

    def describe_program(self, fingerprint: int, outline: str) -> None:
        """Do nothing: the outline is not used."""

    def propose(self, proposal: LaunchProposal) -> None:
        """Do nothing: the decision is made already."""

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Raise as a signal handler does."""
        assert not interrupted()
        raise HandlerError

    def withdraw(self) -> bool:
        """Return that it is too late."""
        return False

    def stop_waiting(self) -> None:
        """Do nothing: no rank waits."""

    def take_decision(self) -> Decision:
        """Return the decision that the test wants; a signal comes meanwhile."""
        signal.raise_signal(signal.SIGUSR1)
        return self._decision

    def release_in_child(self) -> None:
        """Do nothing: nothing is held."""


class QuietBackend(InterruptedBackend):
    """A backend whose wait is not interrupted."""

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Return at once."""
        assert not interrupted()


def make_gate(backend: AgreementBackend, interrupts: InterruptDelivery | None = None) -> LaunchGate:
    """Return the gate of a rank whose record has no launch."""
    return LaunchGate(backend, interrupts or InterruptDelivery(), lambda: 0)


@pytest.fixture(autouse=True)
def ignored_signal() -> Iterator[None]:
    """Ignore the signal unless the test handles it, and restore everything afterwards."""
    original_functions = signal.signal, signal.getsignal
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal, signal.getsignal = original_functions
    signal.signal(signal.SIGUSR1, before)


def agree_on_launch(
    decision: Decision, backend: type[InterruptedBackend] = InterruptedBackend, calls: list[str] | None = None
) -> LaunchGate:
    """Make a rank agree on a launch in the first cell, with a signal handler of the user's that raises."""
    gate = make_gate(backend(decision))
    if calls is not None:
        gate.signals.install()
        signal.signal(signal.SIGUSR1, lambda *_: _record_and_raise(calls))
    gate.begin_cell(RunCell(1, 1, "", "lockstep"))
    try:
        gate.acquire("5", "jit(f)", (0, 1), (2,), [])
    finally:
        gate.release()
    return gate


def _record_and_raise(calls: list[str]) -> None:
    calls.append("bell")
    raise HandlerError


def test_signal_before_an_agreed_launch_is_handled_after_it() -> None:
    """A signal between agreement and launch is handled once, after the launch.

    Its handler may raise, and before the launch that would leave the others alone in it.
    """
    calls: list[str] = []
    gate = agree_on_launch(LAUNCH_DECISION, QuietBackend, calls)
    signal.raise_signal(signal.SIGUSR1)
    assert not calls
    with pytest.raises(HandlerError):
        gate.deliver_deferred()
    assert calls == ["bell", "bell"]
    with pytest.raises(HandlerError):
        signal.raise_signal(signal.SIGUSR1)


def test_signal_is_handled_after_a_refusal() -> None:
    """A signal is handled after a refusal too, and the handler's exception has the refusal as its context."""
    calls: list[str] = []
    gate = make_gate(QuietBackend(Decision("ring", text="nothing was launched")))
    gate.signals.install()
    signal.signal(signal.SIGUSR1, lambda *_: _record_and_raise(calls))
    gate.begin_cell(RunCell(1, 1, "", "lockstep"))

    def launch() -> None:
        try:
            gate.acquire("5", "jit(f)", (0, 1), (2,), [])
        finally:
            gate.deliver_deferred()

    with pytest.raises(HandlerError) as raised:
        launch()
    assert isinstance(raised.value.__context__, OrderMismatch)


def test_handlers_are_returned_as_they_were_set() -> None:
    """`signal` and `getsignal` return the user's own handler; Ctrl-C and what is not a function stay unchanged."""
    deferred = DeferredSignals(lambda: None)
    deferred.install()

    def mine(*_: object) -> None:
        """Handle the signal."""

    for handler in (mine, signal.SIG_IGN, signal.SIG_DFL):
        signal.signal(signal.SIGUSR1, handler)
        assert signal.getsignal(signal.SIGUSR1) is handler
        assert signal.signal(signal.SIGUSR1, mine) is handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_exception_of_a_handler_is_recorded() -> None:
    """A signal handler of the user's that raises may leave a collective behind, as Ctrl-C does, so it is recorded."""
    raised: list[str] = []
    DeferredSignals(lambda: raised.append("raised")).install()

    def fail(*_: object) -> None:
        raise HandlerError

    signal.signal(signal.SIGUSR1, fail)
    with pytest.raises(HandlerError):
        signal.raise_signal(signal.SIGUSR1)
    assert raised == ["raised"]


def test_late_exception_is_raised_after_the_launch() -> None:
    """An exception that comes too late is raised after the launch, because the other ranks make the launch."""
    gate = agree_on_launch(LAUNCH_DECISION)
    with pytest.raises(HandlerError):
        gate.deliver_deferred()


def test_exception_is_not_lost_in_a_refusal() -> None:
    """On a refusal a handler's exception is raised at once, with the refusal as its cause, because nothing is launched."""
    with pytest.raises(HandlerError) as raised:
        agree_on_launch(Decision("ring", text="nothing was launched"))
    assert isinstance(raised.value.__cause__, OrderMismatch)


class CallingBackend(QuietBackend):
    """A backend that calls something else while a launch is proposed."""

    call: Callable[[], object]

    def propose(self, proposal: LaunchProposal) -> None:  # noqa: ARG002 - it implements AgreementBackend
        """Make the call."""
        self.call()

    def take_decision(self) -> Decision:
        """Return the decision to launch."""
        return LAUNCH_DECISION


@pytest.mark.parametrize("in_thread", [False, True])
def test_nested_launch_is_refused_and_the_outer_one_continues(in_thread: bool) -> None:  # noqa: FBT001
    """A finalizer's launch, in any thread, would wait for the turn that its own thread has; after it the outer one is made."""
    backend = CallingBackend(LAUNCH_DECISION)
    gate = make_gate(backend)
    gate.begin_cell(RunCell(1, 1, "", "lockstep"))
    errors: list[str] = []

    def launch() -> None:
        assert not gate.is_in_launch()
        gate.acquire("5", "jit(f)", (0, 1), (2,), [])
        gate.release()
        gate.deliver_deferred()

    def finalize() -> None:
        assert gate.is_in_launch()
        try:
            gate.acquire("7", "jit(g)", (0, 1), (3,), [])
        except RuntimeError as error:
            errors.append(str(error))

    backend.call = finalize
    for _ in range(2):
        if in_thread:
            thread = threading.Thread(target=launch)
            thread.start()
            thread.join()
        else:
            launch()
    assert len(errors) == 2
    assert errors[0].startswith("jit(g) was not launched: a signal handler, a finalizer")


def test_launch_during_the_end_of_a_cell_is_refused() -> None:
    """A signal handler's launch during the end of a cell is refused, because the backend takes one message at a time."""
    backend = CallingBackend(LAUNCH_DECISION)
    gate = make_gate(backend)
    gate.begin_cell(RunCell(1, 1, "", "lockstep"))
    errors: list[Exception] = []

    def end_cell(seq: int, ending: int) -> None:
        try:
            gate.acquire("5", "jit(f)", (0, 1), (2,), [])
        except RuntimeError as error:
            errors.append(error)

    backend.end_cell = end_cell  # type: ignore[method-assign]
    gate.end_cell(1, "ok")
    assert len(errors) == 1


class ScriptedBackend(QuietBackend):
    """A backend that returns one decision after another."""

    def __init__(self, *decisions: Decision) -> None:
        super().__init__(decisions[0])
        self._decisions = list(decisions)
        self.proposals: list[LaunchProposal] = []

    def propose(self, proposal: LaunchProposal) -> None:
        """Keep the proposal."""
        self.proposals.append(proposal)

    def take_decision(self) -> Decision:
        """Return the next decision."""
        return self._decisions.pop(0)


def test_late_exception_survives_a_second_round() -> None:
    """Other threads see the proposal of each round; what interrupted the first round is raised at the end."""
    seen: list[LaunchProposal | None] = []
    backend = ScriptedBackend(Decision("again", votes=(_make_vote(0, 5, 0), _make_vote(1, 5, 0))), LAUNCH_DECISION)
    gate = make_gate(backend)

    def wait(interrupted: Callable[[], bool]) -> None:
        assert not interrupted()
        seen.append(gate.undecided_launch)
        if len(seen) == 1:
            raise HandlerError

    backend.wait = wait  # type: ignore[method-assign]
    gate.begin_cell(RunCell(1, 1, "", "lockstep"))
    gate.acquire("5", "jit(f)", (0, 1), (2,), [])
    gate.release()
    assert seen == backend.proposals
    assert (len(seen), gate.undecided_launch) == (2, None)
    with pytest.raises(HandlerError):
        gate.deliver_deferred()
    gate.deliver_deferred()


def test_late_exception_is_not_lost_to_the_launch_of_a_thread() -> None:
    """A thread may launch between a launch of the main thread and the delivery of what came too late for it."""
    gate = agree_on_launch(LAUNCH_DECISION)
    gate._backend = QuietBackend(LAUNCH_DECISION)

    def launch() -> None:
        gate.acquire("7", "jit(g)", (0, 1), (3,), [])
        gate.release()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(launch).result()
    with pytest.raises(HandlerError):
        gate.deliver_deferred()


def test_stack_sample_shows_the_wait_of_the_gate(tmp_path: Path) -> None:
    """A sample recognises the wait for other ranks by a mark on the function that waits, so that any name will do."""
    create_board(tmp_path, 2)
    boards = [SharedBoard(tmp_path, 2) for _ in range(2)]
    gate, other = make_gate(Participant(boards[0], 0)), Participant(boards[1], 1)
    gate.begin_cell(RunCell(1, 1, "", "lockstep"))
    sampler = StackSampler(
        0,
        (),
        is_cell_file=lambda file: file == __file__,
        read_launches=lambda: ({}, None),
        list_awaited=lambda: None,
        find_awaited=lambda: None,
    )

    def sample_and_come() -> RankStatus | None:
        while (proposal := gate.undecided_launch) is None:
            time.sleep(0.001)
        try:
            return sampler.sample(1, 2.0, 0)
        finally:
            other.propose(proposal)
            other.wait(lambda: False)
            other.take_decision()

    with ThreadPoolExecutor(1) as pool:
        sampled = pool.submit(sample_and_come)
        gate.acquire("5", "jit(f)", (0, 1), (2,), [])
        gate.release()
        status = sampled.result()
    for board in boards:
        board.close()
    assert status is not None
    assert (status.activity, status.what) == ("agreement", "the next launch")


def _make_vote(rank: int, fingerprint: int, provenance: int) -> Vote:
    return Vote(rank, fingerprint, (2,), provenance=provenance)


def test_later_mismatch_keeps_the_first_note() -> None:
    """A mismatch of another thread repeats the first one's text, so the note beside it is the first one's too."""
    others = (_make_vote(0, 5, 0), _make_vote(1, 5, 9))
    backend = ScriptedBackend(
        Decision("mismatch", launch_number=1, votes=(_make_vote(0, 5, 0), _make_vote(1, 7, 0))),
        Decision("mismatch", launch_number=2, votes=others),
    )
    gate = make_gate(backend)
    gate.begin_cell(RunCell(1, 1, "", "lockstep"))
    texts: list[str] = []

    def launch() -> None:
        with pytest.raises(OrderMismatch) as caught:
            gate.acquire("5", "jit(f)", (0, 1), (2,), [])
        gate.release()
        texts.append(str(caught.value))

    launch()
    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert texts[0] == texts[1]
    assert (gate.take_notes(), gate.take_refused_inputs()) == ([], [])


class AskedToStop:
    """The memory of a supervisor that was asked to stop the first cell."""

    interrupted_seq, report_count = 1, 0


def begin_interruptible_cell(backend: AgreementBackend) -> tuple[LaunchGate, InterruptDelivery]:
    """Begin the first cell, which a signal may interrupt in calls of `launch_from_user_code`."""
    interrupts = InterruptDelivery(AskedToStop())
    interrupts.install((launch_from_user_code.__code__,))
    interrupts.reset(1)
    gate = make_gate(backend, interrupts)
    gate.begin_cell(RunCell(1, 1, "", "lockstep"))
    return gate, interrupts


def launch_from_user_code(gate: LaunchGate, dispatch: Callable[[], None] = lambda: None) -> None:
    """Agree on a launch and make it, as the hooks of JAX do."""
    try:
        gate.acquire("5", "jit(f)", (0, 1), (2,), [])
        dispatch()
        gate.release()
    finally:
        gate.deliver_deferred()


def run_cell(interrupts: InterruptDelivery, code: Callable[[], None]) -> None:
    """Run the code of a cell that awaits."""

    async def run() -> None:
        interrupts.task = asyncio.current_task()
        code()

    asyncio.run(run())


@pytest.fixture
def sigint_restored() -> Iterator[None]:
    """Restore what handles SIGINT and what finalizers raise."""
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    yield
    signal.signal(signal.SIGINT, before[0])
    sys.unraisablehook = before[1]


@pytest.mark.usefixtures("sigint_restored")
def test_signal_during_a_launch_is_raised_before_the_next() -> None:
    """SIGINT in the middle of an agreed launch loses no result: the ranks are asked to stop, so it comes before the next launch."""
    gate, interrupts = begin_interruptible_cell(ScriptedBackend(LAUNCH_DECISION))

    def code() -> None:
        launch_from_user_code(gate, lambda: signal.raise_signal(signal.SIGINT))
        assert (interrupts.was_requested, interrupts.is_pending, interrupts.is_handled()) == (True, True, False)
        with pytest.raises(KeyboardInterrupt):
            launch_from_user_code(gate)

    run_cell(interrupts, code)
    assert interrupts.is_handled()
    # It came by the signal, on which the ranks have not agreed.
    assert gate.agreed_stop_number() is None


@pytest.mark.usefixtures("sigint_restored")
def test_ranks_that_stop_together_know_before_which_launch() -> None:
    """A stop on which the ranks agree has the launch's number; a second one tells the code why nothing was launched to handle it."""
    gate, interrupts = begin_interruptible_cell(ScriptedBackend(*[Decision("interrupt", is_agreed=True)] * 2))
    texts: list[str] = []

    def code() -> None:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt) as stopped:
                launch_from_user_code(gate)
            texts.append(str(stopped.value))

    run_cell(interrupts, code)
    assert interrupts.stopped_ranks == frozenset((0, 1))
    assert (gate.agreed_stop_number(), gate.pending_launch) == (1, None)
    assert texts[0] == ""
    assert texts[1].startswith("nothing was launched to handle the interrupt")


@pytest.mark.usefixtures("sigint_restored")
def test_rank_that_stops_alone_names_its_pending_launch() -> None:
    """A rank that others had not reached stops alone, and reports the launch that it waited for."""
    gate, interrupts = begin_interruptible_cell(ScriptedBackend(Decision("interrupt")))

    def code() -> None:
        with pytest.raises(KeyboardInterrupt):
            launch_from_user_code(gate)

    run_cell(interrupts, code)
    assert interrupts.stopped_ranks == frozenset()
    assert (gate.agreed_stop_number(), gate.pending_launch) == (None, PendingPlace(1, 2))


@pytest.mark.parametrize("ranks", [None, [0]])
def test_nothing_is_launched_at_the_debuggers_prompt(ranks: list[int] | None) -> None:
    """A command at the prompt of one rank launches no program of several ranks, and the error says what to do.

    It says so in a cell of this rank alone, too, as that of `%mhjax debug` is.
    """
    interrupts = InterruptDelivery()
    gate = make_gate(QuietBackend(Decision("launch")), interrupts)
    gate.begin_cell(RunCell(1, 1, "", "lockstep", ranks=ranks))
    interrupts.at_prompt = lambda _: None
    with pytest.raises(BreakpointRefused, match=r"jit\(f\) was not launched: it is a program of ranks 0-1"):
        gate.acquire("5", "jit(f) (x)", (0, 1), (2,), [])
    interrupts.at_prompt = None
    if ranks is None:
        gate.acquire("5", "jit(f) (x)", (0, 1), (2,), [])
        gate.release()


def test_thread_of_a_failed_cell_launches_nothing() -> None:
    """The ranks may have stopped it at different places, so it launches nothing in a later cell either."""
    gate = make_gate(QuietBackend(Decision("launch")))
    gate.begin_cell(RunCell(1, 1, "", "lockstep"))
    gate.end_cell(1, "error")
    gate.begin_cell(RunCell(1, 2, "", "lockstep"))
    token = CELL_NUMBER.set(1)
    try:
        with pytest.raises(
            OrderMismatch, match=r"belongs to a thread or task of cell 1, which did not finish normally"
        ):
            gate.acquire("5", "jit(f)", (0, 1), (2,), [])
    finally:
        CELL_NUMBER.reset(token)
