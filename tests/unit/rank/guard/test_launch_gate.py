"""One rank's part of an agreement, with a backend that returns what the test wants."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from mhnb.core.guard.agreement import LAUNCH_DECISION, Decision, LaunchProposal, Vote
from mhnb.errors import OrderMismatch
from mhnb.rank.guard.launch_gate import DeferredSignals, LaunchGate


class BellError(Exception):
    """Raised by a signal handler of the user's."""


class BellTable:
    """A backend in whose wait a signal handler raises, when it is too late to withdraw the proposal."""

    interrupted_seq = 0

    def __init__(self, verdict: Decision) -> None:
        self._verdict = verdict

    def end_cell(self, seq: int, ending: int) -> None:
        """Do nothing: no rank waits."""

    def describe_program(self, fingerprint: int, outline: str) -> None:
        """Do nothing: the outline is not used."""

    def propose(self, wish: LaunchProposal) -> None:
        """Do nothing: the decision is made already."""

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Raise as a signal handler does."""
        assert not interrupted()
        raise BellError

    def withdraw(self) -> bool:
        """Return that it is too late."""
        return False

    def stop_waiting(self) -> None:
        """Do nothing: no rank waits."""

    def take_decision(self) -> Decision:
        """Return the decision that the test wants; a signal comes meanwhile."""
        signal.raise_signal(signal.SIGUSR1)
        return self._verdict

    def release_in_child(self) -> None:
        """Do nothing: nothing is held."""


class QuietTable(BellTable):
    """A backend whose wait is not interrupted."""

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Return at once."""
        assert not interrupted()


@pytest.fixture(autouse=True)
def deaf() -> Iterator[None]:
    """Ignore the signal unless the test handles it, and restore everything afterwards."""
    own = signal.signal, signal.getsignal
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal, signal.getsignal = own
    signal.signal(signal.SIGUSR1, before)


def enter(verdict: Decision, table: type[BellTable] = BellTable, heard: list[str] | None = None) -> LaunchGate:
    """Make a rank agree on a launch in the first cell, with a signal handler of the user's that raises."""
    agreement = LaunchGate(table(verdict))
    if heard is not None:
        agreement.signals.install()
        signal.signal(signal.SIGUSR1, lambda *_: _ring(heard))
    agreement.begin_cell(1, "", "lockstep", None)
    try:
        agreement.acquire("5", "jit(f)", (0, 1), (2,), [])
    finally:
        agreement.release()
    return agreement


def _ring(heard: list[str]) -> None:
    heard.append("bell")
    raise BellError


def test_a_users_signal_between_agreement_and_launch_is_heard_after_it() -> None:
    """A signal between agreement and launch is handled once, after the launch.

    Its handler may raise, and before the launch that would leave the others alone in it.
    """
    heard: list[str] = []
    agreement = enter(LAUNCH_DECISION, QuietTable, heard)
    signal.raise_signal(signal.SIGUSR1)
    assert not heard
    with pytest.raises(BellError):
        agreement.deliver_deferred()
    assert heard == ["bell", "bell"]
    with pytest.raises(BellError):
        signal.raise_signal(signal.SIGUSR1)


def test_a_users_signal_is_heard_after_a_refusal_too() -> None:
    """A signal is handled after a refusal too, and the handler's exception has the refusal as its context."""
    heard: list[str] = []
    agreement = LaunchGate(QuietTable(Decision("ring", text="nothing was launched")))
    agreement.signals.install()
    signal.signal(signal.SIGUSR1, lambda *_: _ring(heard))
    agreement.begin_cell(1, "", "lockstep", None)

    def launch() -> None:
        try:
            agreement.acquire("5", "jit(f)", (0, 1), (2,), [])
        finally:
            agreement.deliver_deferred()

    with pytest.raises(BellError) as raised:
        launch()
    assert isinstance(raised.value.__context__, OrderMismatch)


def test_handlers_are_given_back_as_they_were_set() -> None:
    """`signal` and `getsignal` return the user's own handler; Ctrl-C and what is not a function stay unchanged."""
    held = DeferredSignals()
    held.install()

    def mine(*_: object) -> None:
        """Handle the signal."""

    for handler in (mine, signal.SIG_IGN, signal.SIG_DFL):
        signal.signal(signal.SIGUSR1, handler)
        assert signal.getsignal(signal.SIGUSR1) is handler
        assert signal.signal(signal.SIGUSR1, mine) is handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_users_exception_that_came_too_late_is_raised_after_the_launch() -> None:
    """An exception that comes too late is raised after the launch, because the other ranks make the launch."""
    agreement = enter(LAUNCH_DECISION)
    with pytest.raises(BellError):
        agreement.deliver_deferred()


def test_a_users_exception_is_not_lost_to_a_refusal() -> None:
    """On a refusal a handler's exception is raised at once, with the refusal as its cause, because nothing is launched."""
    with pytest.raises(BellError) as raised:
        enter(Decision("ring", text="nothing was launched"))
    assert isinstance(raised.value.__cause__, OrderMismatch)


class CallingTable(QuietTable):
    """A backend that calls something else while a launch is proposed."""

    call: Callable[[], object]

    def propose(self, wish: LaunchProposal) -> None:  # noqa: ARG002 - it implements AgreementBackend
        """Make the call."""
        self.call()

    def take_decision(self) -> Decision:
        """Return the decision to launch."""
        return LAUNCH_DECISION


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_launch_inside_a_launch_is_refused_and_the_one_around_it_goes_on(in_thread: bool) -> None:  # noqa: FBT001
    """A finalizer's launch, in any thread, would wait for the turn that its own thread has; after it the outer one is made."""
    table = CallingTable(LAUNCH_DECISION)
    agreement = LaunchGate(table)
    agreement.begin_cell(1, "", "lockstep", None)
    told: list[str] = []

    def launch() -> None:
        assert not agreement.is_in_launch()
        agreement.acquire("5", "jit(f)", (0, 1), (2,), [])
        agreement.release()
        agreement.deliver_deferred()

    def finalize() -> None:
        assert agreement.is_in_launch()
        try:
            agreement.acquire("7", "jit(g)", (0, 1), (3,), [])
        except RuntimeError as error:
            told.append(str(error))

    table.call = finalize
    for _ in range(2):
        if in_thread:
            thread = threading.Thread(target=launch)
            thread.start()
            thread.join()
        else:
            launch()
    assert len(told) == 2
    assert told[0].startswith("jit(g) was not launched: a signal handler or a finalizer")


def test_a_launch_while_the_cells_end_is_told_is_refused() -> None:
    """A signal handler's launch during the end of a cell is refused, because the backend takes one message at a time."""
    table = CallingTable(LAUNCH_DECISION)
    agreement = LaunchGate(table)
    agreement.begin_cell(1, "", "lockstep", None)
    told: list[Exception] = []

    def end_cell(seq: int, ending: int) -> None:
        try:
            agreement.acquire("5", "jit(f)", (0, 1), (2,), [])
        except RuntimeError as error:
            told.append(error)

    table.end_cell = end_cell  # type: ignore[method-assign]
    agreement.end_cell(1, "ok")
    assert len(told) == 1


class ScriptedTable(QuietTable):
    """A backend that returns one decision after another."""

    def __init__(self, *verdicts: Decision) -> None:
        super().__init__(verdicts[0])
        self._verdicts = list(verdicts)
        self.asked: list[LaunchProposal] = []

    def propose(self, wish: LaunchProposal) -> None:
        """Keep the proposal."""
        self.asked.append(wish)

    def take_decision(self) -> Decision:
        """Return the next decision."""
        return self._verdicts.pop(0)


def _stand(rank: int, fingerprint: int, origin: int) -> Vote:
    return Vote(rank, fingerprint, (2,), provenance=origin)


def test_what_follows_from_a_mismatch_leaves_its_note_alone() -> None:
    """A mismatch of another thread repeats the first one's text, so the note beside it is the first one's too."""
    others = (_stand(0, 5, 0), _stand(1, 5, 9))
    table = ScriptedTable(
        Decision("mismatch", launch_number=1, votes=(_stand(0, 5, 0), _stand(1, 7, 0))),
        Decision("mismatch", launch_number=2, votes=others),
    )
    agreement = LaunchGate(table)
    agreement.begin_cell(1, "", "lockstep", None)
    texts: list[str] = []

    def launch() -> None:
        with pytest.raises(OrderMismatch) as caught:
            agreement.acquire("5", "jit(f)", (0, 1), (2,), [])
        agreement.release()
        texts.append(str(caught.value))

    launch()
    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert texts[0] == texts[1]
    assert (agreement.take_notes(), agreement.take_refused_inputs()) == ([], [])
