"""Agreement at the shared board and through the agreement server: the same tests for local, remote and mixed ranks.

Ranks are threads here, each with a backend of its own; the agreement server runs in a thread too. JAX is not used.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mhnb.core.guard.agreement import (
    ENDINGS,
    LAUNCH_DECISION,
    CellFinished,
    Decision,
    LaunchProposal,
    MismatchDetails,
    encode_from_rank,
    format_mismatch,
)
from mhnb.core.guard.programs import pack_outline
from mhnb.core.guard.provenance import ANY, combine_values, join_uncompared_blocks
from mhnb.core.guard.threads import MAIN_THREAD, number_thread
from mhnb.errors import HostUnreachable, LaunchError, RanksLost
from mhnb.rank.guard.agreement_server import AgreementServer, listen
from mhnb.rank.guard.local_agreement import AgreementBackend, Participant, mark_rank_lost
from mhnb.rank.guard.remote_agreement import RemoteAgreement, connect_to_board
from mhnb.rank.guard.shared_board import BoardSlot, SharedBoard, create_board
from mhnb.transport import server
from mhnb.transport.framing import encode_frames
from mhnb.transport.security import CHALLENGE_NBYTES, open_session
from tests.support.source import ROOT

KEY = b"k" * 32
WAIT_S = 60.0
OK, ERROR = ENDINGS.index("ok"), ENDINGS.index("error")
ALL = (0, 1, 2)


class ServerThread:
    """Runs an agreement server in a thread."""

    def __init__(self, folder: Path, far: frozenset[int]) -> None:
        self._board = SharedBoard(folder, len(ALL))
        listener = listen("tcp:127.0.0.1:0")
        self.url = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        self.server = AgreementServer(listener, self._board, KEY, ranks=far, process_count=len(ALL))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        looks = 0
        while not self._ending.is_set():
            looks = 0 if self.server.step(looks) else looks + 1

    def connect(self) -> socket.socket:
        return connect_to_board(self.url)

    def close(self) -> None:
        self._ending.set()
        self.connect().close()
        self._thread.join()
        self.server.close()
        self._board.close()


class Rig:
    """Three ranks at one board; those in `far` are on other hosts."""

    def __init__(self, folder: Path, far: frozenset[int]) -> None:
        create_board(folder, len(ALL))
        self.far = far
        self.host = ServerThread(folder, far)
        self.board = SharedBoard(folder, len(ALL))
        self._boards: list[SharedBoard] = []
        self.backends: list[AgreementBackend] = [self._make_backend(folder, rank) for rank in ALL]
        self._pool = ThreadPoolExecutor(len(ALL))

    def _make_backend(self, folder: Path, rank: int) -> AgreementBackend:
        if rank in self.far:
            return RemoteAgreement(self.host.connect(), KEY, rank)
        self._boards.append(SharedBoard(folder, len(ALL)))
        return Participant(self._boards[-1], rank)

    def remote_backend(self, rank: int) -> RemoteAgreement:
        backend = self.backends[rank]
        assert isinstance(backend, RemoteAgreement)
        return backend

    def propose(
        self, rank: int, proposal: LaunchProposal, interrupted: Callable[[], bool] = lambda: False
    ) -> Future[Decision]:
        """Make a rank propose a launch."""
        return self._pool.submit(agree, self.backends[rank], proposal, interrupted)

    def propose_all(self, *proposals: LaunchProposal) -> list[Decision]:
        """Return the decision that each rank gets when each makes the proposal at its index."""
        return [
            done.result(WAIT_S) for done in [self.propose(rank, proposal) for rank, proposal in enumerate(proposals)]
        ]

    def wait_until_lost(self, rank: int) -> None:
        """Wait until the board's host has noticed that a rank is lost: until then its proposal counts."""
        pause = threading.Event()
        while not self.board.ended_seq(rank):
            pause.wait(0.001)

    def wait_until_posted(self, rank: int, proposal: LaunchProposal) -> None:
        """Wait until a rank's proposal is on the board, and the rank is seen to wait."""
        pause = threading.Event()
        index = self.board.find_set_index(proposal.participants)
        while (
            self.board.last_entry(rank, index)[0] != proposal.seq or self.board.waiting_slot(rank, proposal.seq) is None
        ):
            pause.wait(0.001)

    def close(self) -> None:
        for rank in ALL:
            # No rank waits for another any more, even if a test has failed.
            mark_rank_lost(self.board, rank)
        self._pool.shutdown()
        for backend in self.backends:
            if isinstance(backend, RemoteAgreement):
                backend.close()
        self.host.close()
        for board in (self.board, *self._boards):
            board.close()


def agree(backend: AgreementBackend, proposal: LaunchProposal, interrupted: Callable[[], bool]) -> Decision:
    """Agree on a launch as a rank does before it."""
    backend.propose(proposal)
    try:
        backend.wait(interrupted)
    finally:
        backend.stop_waiting()
    return backend.take_decision()


@pytest.fixture(params=[(), (1,), (1, 2), (0, 1, 2)], ids=lambda far: f"far{''.join(map(str, far)) or ' none'}")
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Every mixture of local and remote ranks."""
    new_rig = Rig(tmp_path, frozenset(request.param))
    yield new_rig
    new_rig.close()


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Rig]:
    """All ranks are on the host of the board."""
    new_rig = Rig(tmp_path, frozenset())
    yield new_rig
    new_rig.close()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Rig]:
    """Ranks 1 and 2 are on other hosts."""
    new_rig = Rig(tmp_path, frozenset((1, 2)))
    yield new_rig
    new_rig.close()


def make_proposal(
    fingerprint: int = 5, seq: int = 1, participants: tuple[int, ...] = ALL, line: int | None = 2, provenance: int = 0
) -> LaunchProposal:
    """Return a proposal whose program is named after its fingerprint."""
    return LaunchProposal(
        seq, fingerprint, f"jit(f{fingerprint})", participants, (line,) if line else (), provenance=provenance
    )


def text_of(decision: Decision) -> str:
    """Return the text of a mismatch."""
    return format_mismatch(decision.votes, decision.names, number=decision.launch_number, cell_name="cell 1", source="")


def test_programs_with_one_name_show_their_difference(rig: Rig) -> None:
    """The outlines of programs with one name are compared, on whichever host the ranks are and the decision is made."""
    for rank in ALL:
        two = rank > 0
        rig.backends[rank].describe_program(
            7 if two else 5, pack_outline(f"module\nadd {int(two)}", {"k": str(int(two))})
        )
    proposals = [LaunchProposal(1, fingerprint, "jit(f)", ALL, (2,)) for fingerprint in (5, 7, 7)]
    for decision in rig.propose_all(*proposals):
        assert decision.differences == {5: "add 0, compiled where k = 0", 7: "add 1, compiled where k = 1"}


def test_later_outline_replaces_an_earlier_one(rig: Rig) -> None:
    """A program that is compiled again is shown with the variables of its latest call, from whichever host."""
    for names in ({}, {"k": "0"}, {"k": "1"}):
        for rank in ALL:
            fingerprint = 7 if rank > 0 else 5
            k = {name: f"{fingerprint}{value}" for name, value in names.items()}
            rig.backends[rank].describe_program(fingerprint, pack_outline("module", k))
    for decision in rig.propose_all(*(LaunchProposal(1, each, "jit(f)", ALL, (2,)) for each in (5, 7, 7))):
        assert decision.differences == {5: "compiled where k = 51", 7: "compiled where k = 71"}


def test_missing_outline_does_not_change_the_mismatch(rig: Rig) -> None:
    """A program without an outline, or with an outline that is cut off, is refused without its difference."""
    rig.backends[0].describe_program(5, "half of")
    decisions = rig.propose_all(*(LaunchProposal(1, fingerprint, "jit(f)", ALL, (2,)) for fingerprint in (5, 7, 7)))
    assert [(decision.kind, decision.differences) for decision in decisions] == [("mismatch", {})] * 3


def test_equal_proposals_launch(rig: Rig) -> None:
    """Ranks that propose the same launch make it, repeatedly, also in sets without some ranks, and in the next cell."""
    for _ in range(30):
        assert rig.propose_all(make_proposal(), make_proposal(), make_proposal()) == [LAUNCH_DECISION] * 3
        pair = make_proposal(7, participants=(0, 2))
        futures = [rig.propose(rank, pair) for rank in (0, 2)]
        assert [done.result(WAIT_S) for done in futures] == [LAUNCH_DECISION] * 2
    for rank in ALL:
        rig.backends[rank].end_cell(1, OK)
    assert rig.propose_all(*[make_proposal(9, seq=2)] * 3) == [LAUNCH_DECISION] * 3


def test_equal_programs_on_different_arrays_mismatch(rig: Rig) -> None:
    """Equal programs on arrays with different provenance are a mismatch, even if only some ranks know the provenance."""
    assert rig.propose_all(*[make_proposal(provenance=2**63 - 1)] * 3) == [LAUNCH_DECISION] * 3
    decisions = rig.propose_all(make_proposal(provenance=7), make_proposal(), make_proposal(provenance=7))
    assert [decision.kind for decision in decisions] == ["mismatch"] * 3
    (text,) = {text_of(verdict) for verdict in decisions}
    assert "ranks 0,2   jit(f5) of arrays A" in text
    assert "rank 1      jit(f5) of arrays B" in text


def test_second_proposal_launches_or_is_refused(rig: Rig) -> None:
    """If only some ranks cannot compare an array, all ranks get the same decision, wherever they are."""
    for own, kind in ((7, "launch"), (8, "mismatch")):
        arrays = [(5, own), (ANY, 7), (ANY, 7)]
        decisions = rig.propose_all(*(make_proposal(provenance=combine_values(each)) for each in arrays))
        assert {decision.kind for decision in decisions} == {"again"}
        (uncompared,) = {join_uncompared_blocks(stand.provenance for stand in verdict.votes) for verdict in decisions}
        decisions = rig.propose_all(*(make_proposal(provenance=combine_values(each, uncompared)) for each in arrays))
        assert {verdict.kind for verdict in decisions} == {kind}


def test_mismatch_text_is_equal_on_all_ranks(rig: Rig) -> None:
    """If proposals differ, no rank launches, and the text does not depend on where a rank is."""
    decisions = rig.propose_all(make_proposal(5), make_proposal(7, line=3), make_proposal(5))
    assert {decision.kind for decision in decisions} == {"mismatch"}
    (text,) = {text_of(verdict) for verdict in decisions}
    assert text.splitlines()[1:] == [
        "launch 1 of cell 1 differs",
        "  ranks 0,2   jit(f5)   line 2",
        "  rank 1      jit(f7)   line 3",
        "  Make the calls on lines 2 and 3 on every rank, in the same order.",
    ]
    assert rig.propose_all(make_proposal(9), make_proposal(9), make_proposal(9)) == [LAUNCH_DECISION] * 3


def test_rank_that_ended_its_cell_is_not_awaited(rig: Rig) -> None:
    """Only the end of a rank's cell ends the wait for that rank, however late it comes."""
    first = rig.propose(0, make_proposal())
    rig.wait_until_posted(0, make_proposal())
    second = rig.propose(2, make_proposal())
    rig.wait_until_posted(2, make_proposal())
    assert not first.done()
    assert not second.done()
    rig.backends[1].end_cell(1, ERROR)
    texts = {text_of(done.result(WAIT_S)) for done in (first, second)}
    assert len(texts) == 1
    assert "rank 1      raised an error before reaching it" in texts.pop()


def test_stopped_cell_stops_before_the_same_launch(rig: Rig) -> None:
    """After a request to stop a cell, a rank that waited already stops before the same launch as those that arrive later."""
    early = rig.propose(2, make_proposal())
    rig.wait_until_posted(2, make_proposal())
    rig.board.request_interrupt(1)
    futures = [rig.propose(0, make_proposal()), rig.propose(1, make_proposal()), early]
    assert [done.result(WAIT_S) for done in futures] == [Decision("interrupt", is_agreed=True)] * 3


def test_interrupt_handler_may_launch(rig: Rig) -> None:
    """Interrupt handlers may launch if all ranks are interrupted; if one is not, no rank launches and all stop."""
    stop, not_agreed = Decision("interrupt", is_agreed=True), Decision("interrupt")
    handler_proposal = make_proposal(7)._replace(in_interrupt_handler=True)
    waits = [rig.propose(rank, make_proposal(7)) for rank in (0, 1)]
    for rank in (0, 1):
        rig.wait_until_posted(rank, make_proposal(7))
    rig.board.request_interrupt(1)
    # The same program for another purpose: a proposal from before the interrupt is not part of handling it.
    assert rig.propose(2, handler_proposal).result(WAIT_S) == not_agreed
    assert [waiting.result(WAIT_S) for waiting in waits] == [not_agreed] * 2
    assert rig.propose_all(make_proposal(), make_proposal(), make_proposal()) == [stop] * 3
    assert rig.propose_all(handler_proposal, handler_proposal, handler_proposal) == [LAUNCH_DECISION] * 3
    assert rig.propose_all(handler_proposal, make_proposal(), handler_proposal) == [not_agreed] * 3
    assert {
        decision.kind
        for decision in rig.propose_all(handler_proposal, handler_proposal._replace(fingerprint=9), handler_proposal)
    } == {"mismatch"}


def test_interrupt_in_the_wait_withdraws_the_proposal(rig: Rig) -> None:
    """A rank that is interrupted while it waits withdraws its proposal, and ranks that arrive later stop there too."""
    interrupt = threading.Event()
    waiting = rig.propose(1, make_proposal(), interrupt.is_set)
    rig.wait_until_posted(1, make_proposal())
    interrupt.set()
    assert waiting.result(WAIT_S) == Decision("interrupt")
    later = [rig.propose(rank, make_proposal()) for rank in (0, 2)]
    rig.backends[1].end_cell(1, ENDINGS.index("interrupted"))
    assert {done.result(WAIT_S).kind for done in later} == {"interrupt"}


def test_interrupt_after_agreement_is_too_late(rig: Rig) -> None:
    """After all have agreed, an interrupt does not stop the launch, because other ranks may have made it already."""
    posted = threading.Event()

    def interrupted() -> bool:
        posted.wait(WAIT_S)
        return True

    waiting = rig.propose(1, make_proposal(), interrupted)
    others = [rig.propose(rank, make_proposal()) for rank in (0, 2)]
    assert [done.result(WAIT_S) for done in others] == [LAUNCH_DECISION] * 2
    posted.set()
    assert waiting.result(WAIT_S) == LAUNCH_DECISION


class HandlerError(Exception):
    """Raised by a signal handler of the user's."""


def test_exception_in_the_wait_withdraws_the_proposal(rig: Rig) -> None:
    """An exception in the wait withdraws the proposal, so ranks that arrive later do not launch without this rank."""
    backend = rig.backends[1]

    def raise_error() -> bool:
        raise HandlerError

    backend.propose(make_proposal())
    with pytest.raises(HandlerError):
        backend.wait(raise_error)
    assert backend.withdraw()
    backend.stop_waiting()
    rig.backends[1].end_cell(1, ERROR)
    later = [rig.propose(rank, make_proposal()) for rank in (0, 2)]
    assert {done.result(WAIT_S).kind for done in later} == {"mismatch"}
    for rank in (0, 2):
        rig.backends[rank].end_cell(1, ERROR)
    assert rig.propose_all(*[make_proposal(seq=2)] * 3) == [LAUNCH_DECISION] * 3


def test_exception_after_the_post_withdraws_the_proposal(near: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception after the others can see the entry, and before `propose` returns, withdraws the proposal."""
    backend = near.backends[1]
    assert isinstance(backend, Participant)
    board = backend.board
    post = board.write_entry

    def post_and_raise(*args: Any) -> NoReturn:
        post(*args)
        raise HandlerError

    monkeypatch.setattr(board, "write_entry", post_and_raise)
    with pytest.raises(HandlerError):
        backend.propose(make_proposal())
    assert backend.withdraw()
    backend.stop_waiting()
    monkeypatch.undo()
    backend.end_cell(1, ERROR)
    later = [near.propose(rank, make_proposal()) for rank in (0, 2)]
    assert {done.result(WAIT_S).kind for done in later} == {"mismatch"}


def test_second_exception_does_not_prevent_the_withdrawal(near: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler raises again and again during the withdrawal, and the proposal is still withdrawn."""
    backend = near.backends[1]
    assert isinstance(backend, Participant)
    board, calls = backend.board, [0]
    withdraw = board.withdraw

    def withdraw_and_raise(*args: Any) -> None:
        calls[0] += 1
        if calls[0] > 1:
            withdraw(*args)
        if calls[0] < 3:
            raise HandlerError

    monkeypatch.setattr(board, "withdraw", withdraw_and_raise)
    backend.propose(make_proposal())
    assert backend.withdraw()
    backend.stop_waiting()
    assert calls == [2], "what is taken back is not taken back once more"
    backend.end_cell(1, ERROR)
    later = [near.propose(rank, make_proposal()) for rank in (0, 2)]
    assert {done.result(WAIT_S).kind for done in later} == {"mismatch"}


def test_exception_before_the_post_withdraws_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception before the post does not withdraw the proposal before it, which was launched."""
    assert rig.propose_all(*[make_proposal()] * 3) == [LAUNCH_DECISION] * 3
    assert [backend.withdraw() for backend in rig.backends] == [True] * 3
    if isinstance(table := rig.backends[1], Participant):

        def raise_error(*_: Any) -> NoReturn:
            raise HandlerError

        monkeypatch.setattr(table.board, "write_entry", raise_error)
        with pytest.raises(HandlerError):
            table.propose(make_proposal())
        assert table.withdraw()
        monkeypatch.undo()
    assert rig.propose_all(*[make_proposal()] * 3) == [LAUNCH_DECISION] * 3


def test_exception_after_the_decision_is_too_late(rig: Rig) -> None:
    """After an exception that comes too late the rank must follow the decision, because the others have launched."""
    posted = threading.Event()
    backend = rig.backends[1]

    def raise_error() -> bool:
        posted.set()
        [done.result(WAIT_S) for done in others]
        raise HandlerError

    others: list[Future[Decision]] = []
    backend.propose(make_proposal())
    others += [rig.propose(rank, make_proposal()) for rank in (0, 2)]
    try:
        backend.wait(raise_error)
    except HandlerError:
        assert not backend.withdraw()
    backend.stop_waiting()
    assert backend.take_decision() == LAUNCH_DECISION
    assert [done.result(WAIT_S) for done in others] == [LAUNCH_DECISION] * 2


def test_deadlock_has_one_text_for_all_ranks(rig: Rig) -> None:
    """Two ranks that launch on two shared sets in different order are in a deadlock, and both get the same text."""
    small, large = make_proposal(5, participants=(0, 1)), make_proposal(7)
    futures = [rig.propose(0, small), rig.propose(1, large)]
    first, second = [done.result(WAIT_S) for done in futures]
    assert first.kind == "ring"
    assert first == second
    assert "rank 0   jit(f5)   line 2   waits for rank 1" in first.text
    assert "rank 1   jit(f7)   line 2   waits for rank 0" in first.text


def test_post_is_not_overwritten_after_three_withdrawals(rig: Rig) -> None:
    """A rank that has withdrawn three times may not post again yet, because only four entries are kept."""
    backend = rig.backends[1]
    kinds = []
    for _ in range(4):
        backend.propose(make_proposal())
        backend.wait(lambda: True)
        backend.stop_waiting()
        kinds.append(backend.take_decision().kind)
    assert kinds == ["interrupt"] * 3 + ["behind"]


def test_thread_one_cell_ahead_waits_for_the_others(rig: Rig) -> None:
    """A thread that is a cell ahead waits, because the others may still have to read what its next entry overwrites."""
    assert rig.propose(1, make_proposal(), lambda: True).result(WAIT_S) == Decision("interrupt")
    rig.backends[1].end_cell(1, ERROR)
    ahead = rig.propose(1, make_proposal(9, seq=2))
    # The others read in the old entry that its rank was interrupted, which nothing else tells them.
    futures = [rig.propose(rank, make_proposal()) for rank in (0, 2)]
    assert [done.result(WAIT_S).kind for done in futures] == ["interrupt"] * 2
    assert not ahead.done()
    for rank in (0, 2):
        rig.backends[rank].end_cell(1, ERROR)
    futures = [rig.propose(rank, make_proposal(9, seq=2)) for rank in (0, 2)]
    assert [done.result(WAIT_S) for done in futures] == [LAUNCH_DECISION] * 2
    assert ahead.result(WAIT_S) == LAUNCH_DECISION


def test_cell_end_stops_a_waiting_thread(rig: Rig) -> None:
    """When its cell ends, a waiting thread stops waiting, and no rank waits for it."""
    waiting = rig.propose(1, make_proposal())
    rig.wait_until_posted(1, make_proposal())
    rig.backends[1].end_cell(1, ERROR)
    assert waiting.result(WAIT_S).kind == "cell ended"


def test_proposal_of_an_ended_cell_is_refused(rig: Rig) -> None:
    """A thread's proposal for a cell that has ended is refused, because the other ranks have acted on the end."""
    first = rig.propose(0, make_proposal())
    rig.wait_until_posted(0, make_proposal())
    rig.backends[1].end_cell(1, ERROR)
    assert rig.propose(2, make_proposal()).result(WAIT_S).kind == "mismatch"
    assert rig.propose(1, make_proposal()).result(WAIT_S).kind == "cell ended"
    assert first.result(WAIT_S).kind == "mismatch"
    for rank in (0, 2):
        rig.backends[rank].end_cell(1, ERROR)
    assert rig.propose_all(*[make_proposal(seq=2)] * 3) == [LAUNCH_DECISION] * 3


def test_different_threads_mismatch_and_are_named(rig: Rig) -> None:
    """Each thread has the same name on every rank, whichever rank gave the label; an unknown thread matches any."""
    one, two = (number_thread(MAIN_THREAD, 1, "score", count) for count in (1, 2))
    named = make_proposal()._replace(thread=one, thread_label="task score #")
    decisions = rig.propose_all(named, named._replace(thread=two), make_proposal()._replace(thread=MAIN_THREAD))
    (text,) = {
        format_mismatch(
            decision.votes,
            decision.names,
            number=decision.launch_number,
            cell_name="cell 1",
            source="",
            details=MismatchDetails(threads=decision.threads),
        )
        for decision in decisions
    }
    assert text.splitlines()[2:5] == [
        "  rank 0   jit(f5) in task score #1     line 2",
        "  rank 1   jit(f5) in task score #2     line 2",
        "  rank 2   jit(f5) in the main thread   line 2",
    ]
    assert rig.propose_all(named, named, make_proposal()) == [LAUNCH_DECISION] * 3


# -- only for remote ranks


class InterruptedSocket(socket.socket):
    """A socket on which a signal handler of the user's raises right after something was sent."""

    pending_errors = 0
    """How many more times the handler raises."""

    def sendall(self, data: Any, flags: int = 0) -> None:
        super().sendall(data, flags)
        if self.pending_errors:
            self.pending_errors -= 1
            raise TimeoutError("the bell")


def test_exception_during_a_send_does_not_end_the_connection(tmp_path: Path) -> None:
    """A TimeoutError of the user's, which is an OSError too, does not end the connection, even if it comes twice."""
    create_board(tmp_path, len(ALL))
    host = ServerThread(tmp_path, frozenset((1,)))
    socket_to_server = InterruptedSocket(fileno=host.connect().detach())
    backend, proposal = RemoteAgreement(socket_to_server, KEY, 1), make_proposal(participants=(1,))
    socket_to_server.pending_errors = 3
    backend.propose(proposal)
    with pytest.raises(TimeoutError, match="the bell"):
        backend.wait(lambda: False)
    # No other rank takes part, so it is agreed on already.
    assert not backend.withdraw()
    assert backend.take_decision() == LAUNCH_DECISION
    assert agree(backend, proposal, lambda: False) == LAUNCH_DECISION
    backend.close()
    host.close()


def test_rank_whose_connection_ends_is_lost(far: Rig) -> None:
    """The others do not wait for a rank whose connection has ended, now or in a later cell, and it never launches again."""
    backend, waiting = far.remote_backend(1), far.propose(1, make_proposal())
    far.wait_until_posted(1, make_proposal())
    backend.close()
    with pytest.raises(
        RanksLost, match=r"nothing was launched on rank 1\n.*lost the connection to the launch-agreement service"
    ):
        waiting.result(WAIT_S)
    far.wait_until_lost(1)
    futures = [far.propose(rank, make_proposal()) for rank in (0, 2)]
    assert {"rank 1      was lost before reaching it" in text_of(done.result(WAIT_S)) for done in futures} == {True}
    for rank in (0, 2):
        far.backends[rank].end_cell(1, ERROR)
    backend.end_cell(1, ERROR)
    futures = [far.propose(rank, make_proposal(seq=2)) for rank in (0, 2)]
    assert {"rank 1      was lost before reaching it" in text_of(done.result(WAIT_S)) for done in futures} == {True}
    with pytest.raises(RanksLost):
        far.propose(1, make_proposal(seq=2)).result(WAIT_S)
    assert backend.withdraw(), "an exception that comes then finds nothing to wait for"


def test_rank_marked_lost_by_its_supervisor_does_not_count(far: Rig) -> None:
    """If the agreement server has died, what it had posted for a remote rank no longer counts."""
    waiting = far.propose(1, make_proposal())
    far.wait_until_posted(1, make_proposal())
    mark_rank_lost(far.board, 1)
    futures = [far.propose(rank, make_proposal()) for rank in (0, 2)]
    assert {"rank 1      was lost before reaching it" in text_of(done.result(WAIT_S)) for done in futures} == {True}
    assert waiting.result(WAIT_S).kind != "launch"


def test_agreed_launch_survives_the_end_of_a_connection(far: Rig) -> None:
    """The end of a connection does not withdraw a proposal that all ranks have answered."""
    assert far.propose_all(make_proposal(), make_proposal(), make_proposal()) == [LAUNCH_DECISION] * 3
    far.remote_backend(2).close()
    futures = [far.propose(rank, make_proposal()) for rank in (0, 1)]
    assert {done.result(WAIT_S).kind for done in futures} == {"mismatch"}
    pair = make_proposal(9, participants=(0, 1))
    assert [done.result(WAIT_S) for done in [far.propose(rank, pair) for rank in (0, 1)]] == [LAUNCH_DECISION] * 2


def test_remote_rank_launches_on_an_added_set(far: Rig) -> None:
    """A remote rank launches on a set beyond the first ones, because the number of sets has no limit."""
    for n in range(300, 900):
        far.board.find_set_index((n,))
    assert far.propose_all(make_proposal(), make_proposal(), make_proposal()) == [LAUNCH_DECISION] * 3


def test_board_that_cannot_grow_is_an_error_on_the_rank(far: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the board cannot grow, the rank gets the system's error, its cell ends, and the other ranks are notified."""

    def refuse(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    for n in range(300, 556):
        far.board.find_set_index((n,))
    monkeypatch.setattr(os, "ftruncate", refuse)
    decision = far.propose(1, make_proposal()).result(WAIT_S)
    assert decision.kind == "refused"
    assert "No space left on device" in decision.text
    with pytest.raises(OSError, match="No space left on device"):
        far.propose(0, make_proposal()).result(WAIT_S)
    monkeypatch.undo()
    for rank in (0, 1):
        far.backends[rank].end_cell(1, ERROR)
    assert far.propose(2, make_proposal()).result(WAIT_S).kind == "mismatch"


def damage_entry(board: SharedBoard, rank: int, slot: BoardSlot) -> None:
    """Change a word of a rank's entry, as a process that overwrites it does."""
    words = board._set_words(slot.set_index)
    words[next(at for at in range(8 + 32 * rank, len(words)) if words[at] == slot.seq << 32 | slot.number) + 1] += 2


def test_entry_that_cannot_be_read_refuses_the_launch(rig: Rig) -> None:
    """A rank that cannot read what another one proposed gets a message with the next step, wherever it is."""
    futures = [rig.propose(rank, make_proposal()) for rank in (0, 1)]
    for rank in (0, 1):
        rig.wait_until_posted(rank, make_proposal())
    damage_entry(rig.board, 0, BoardSlot(1, rig.board.find_set_index(ALL), 1))
    decisions = [each.result(WAIT_S) for each in (rig.propose(2, make_proposal()), *futures)]
    assert {each.kind for each in decisions} == {"refused"}
    assert "the proposal of rank 0 for launch 1" in decisions[0].text
    assert "Fix: %mhjax restart --replay" in decisions[0].text
    for backend in rig.backends:
        backend.end_cell(1, ERROR)


def test_cell_ends_though_an_entry_cannot_be_read(near: Rig) -> None:
    """The end of a cell is recorded if its thread's launch can no longer be decided; then the thread does not launch."""
    participant = near.backends[0]
    assert isinstance(participant, Participant)
    assert participant.try_propose(make_proposal())
    for other in near.backends[1:]:
        assert isinstance(other, Participant)
        assert other.try_propose(make_proposal())
    damage_entry(near.board, 1, BoardSlot(1, near.board.find_set_index(ALL), 1))
    participant.end_cell(1, OK)
    assert near.board.ended_seq(0) == 1
    assert participant.decide().kind == "refused"


def test_process_without_the_key_is_rejected(far: Rig, tmp_path: Path) -> None:
    """A process without the key, such as one of another cluster, is rejected; the admitted ranks go on."""
    with pytest.raises(HostUnreachable, match="refused rank 1"):
        RemoteAgreement(far.host.connect(), b"x" * 32, 1)
    assert far.propose_all(make_proposal(), make_proposal(), make_proposal()) == [LAUNCH_DECISION] * 3


def test_rank_is_admitted_once(far: Rig) -> None:
    """A recorded greeting, a second process with that number, and a rank of the board's own host are rejected."""
    for rank in (0, 1):
        with pytest.raises(HostUnreachable, match=f"refused rank {rank}"):
            RemoteAgreement(far.host.connect(), KEY, rank)
    assert far.propose_all(make_proposal(), make_proposal(), make_proposal()) == [LAUNCH_DECISION] * 3


def greet(name: bytes, challenge: bytes, answer: bytes = b"a" * CHALLENGE_NBYTES) -> bytes:
    """Return the first message of a client with the key that calls itself so."""
    writer, _ = open_session(KEY, challenge, answer, name, is_server=False, encrypt=True)
    return b"".join(encode_frames([name, answer, *writer.sign([name])]))


STRANGERS_BYTES: dict[str, Callable[[bytes], bytes]] = {
    "noise": lambda _: b"GET / HTTP/1.1\r\nHost: board\r\n\r\n" * 8,
    "a long announcement": lambda _: struct.pack("<IQ", 1, 1 << 40) + bytes(64),
    "no frame": lambda _: struct.pack("<I", 0),
    "a name and no seal": lambda _: b"".join(encode_frames([b"r1>board"])),
    "a name that is no number": lambda challenge: greet(b"r\xd9\xa1>board", challenge),
    "a greeting of the link": lambda challenge: greet(b"r1", challenge),
    "an unsigned end of a cell": lambda _: b"".join(encode_frames(encode_from_rank(CellFinished(1, OK)))),
}


@pytest.mark.parametrize("answer", STRANGERS_BYTES.values(), ids=STRANGERS_BYTES.keys())
def test_bytes_of_a_stranger_have_no_effect(far: Rig, answer: Callable[[bytes], bytes]) -> None:
    """The server closes the stranger's connection, and the board is unchanged."""
    with far.host.connect() as stranger:
        stranger.settimeout(WAIT_S)
        said = answer(stranger.recv(CHALLENGE_NBYTES))
        stranger.sendall(said)
        try:
            assert stranger.recv(1) == b""
        except ConnectionResetError:
            # The stranger had sent more than was read.
            assert len(said) > 64
    assert far.host.server.frames.rejected_count == 1
    assert [far.board.ended_seq(rank) for rank in ALL] == [0, 0, 0]
    assert far.propose_all(make_proposal(), make_proposal(), make_proposal()) == [LAUNCH_DECISION] * 3


@pytest.fixture
def unused_server(tmp_path: Path) -> Iterator[ServerThread]:
    """A server whose one remote rank, rank 1, has not connected."""
    create_board(tmp_path, len(ALL))
    host = ServerThread(tmp_path, frozenset((1,)))
    yield host
    host.close()


def test_recorded_greeting_is_rejected(unused_server: ServerThread) -> None:
    """The greeting of a rank is valid on the connection whose challenge it answers, and on no other one."""
    with unused_server.connect() as attacker, unused_server.connect() as rank:
        attacker.recv(CHALLENGE_NBYTES)
        greeting = greet(b"r1>board", rank.recv(CHALLENGE_NBYTES))
        attacker.sendall(greeting)
        assert attacker.recv(1) == b""
        rank.sendall(greeting)
        assert rank.recv(1), "the welcome"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the timeout")
def test_both_ends_detect_a_machine_that_is_gone(unused_server: ServerThread, tmp_path: Path) -> None:
    """The kernel checks idle connections at both ends, and closes those whose other end does not answer for a minute."""
    connected = unused_server.connect()
    backend = RemoteAgreement(connected, KEY, 1)
    (accepted,) = unused_server.server.frames._connections.values()
    for end in (connected, accepted.socket):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 20
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
    backend.close()


def test_silent_strangers_do_not_keep_ranks_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too many unauthenticated connections, the oldest are closed."""
    monkeypatch.setattr(server, "max_unauthenticated", lambda: 64)
    create_board(tmp_path, len(ALL))
    host = ServerThread(tmp_path, frozenset((1,)))
    strangers = [host.connect() for _ in range(65)]
    strangers[0].settimeout(WAIT_S)
    assert len(strangers[0].recv(1000)) == CHALLENGE_NBYTES
    assert strangers[0].recv(1) == b""
    RemoteAgreement(host.connect(), KEY, 1).close()
    for stranger in strangers:
        stranger.close()
    host.close()


def test_rank_with_an_invalid_message_is_lost(far: Rig) -> None:
    """A rank with an invalid message has another version or a bug, so it is marked as lost."""
    far.remote_backend(1).end_cell(1, 99)
    futures = [far.propose(rank, make_proposal()) for rank in (0, 2)]
    assert {done.result(WAIT_S).kind for done in futures} == {"mismatch"}
    with pytest.raises(RanksLost):
        far.propose(1, make_proposal()).result(WAIT_S)


def test_rank_whose_message_fails_verification_is_lost(far: Rig) -> None:
    """A rank whose message is dropped would wait for the answer forever, so it loses its connection instead."""
    far.remote_backend(1)._client._writer._count = 0
    with pytest.raises(RanksLost):
        far.propose(1, make_proposal()).result(WAIT_S)
    futures = [far.propose(rank, make_proposal()) for rank in (0, 2)]
    assert {"rank 1      was lost before reaching it" in text_of(done.result(WAIT_S)) for done in futures} == {True}


@pytest.mark.parametrize("url", ["unix:/tmp/board", "tcp:127.0.0.1:x", "tcp::5", "tcp:127.0.0.1:99999"])
def test_unusable_listen_address_is_named(url: str) -> None:
    """The error for an address that cannot be listened at names the address and what is expected."""
    with pytest.raises(LaunchError, match=f"{url}"):
        listen(url)


def test_port_in_use_is_named() -> None:
    """A port in use makes the start fail at once, not when the first rank fails to connect."""
    with listen("tcp:127.0.0.1:0") as listener:
        port = listener.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"cannot listen at tcp:127.0.0.1:{port}: .*a free port"):
            listen(f"tcp:127.0.0.1:{port}")


def test_unserved_board_is_an_error_with_its_address() -> None:
    """A rank gives up an unserved board after the time that a start may take, which passes at once here."""
    with listen("tcp:127.0.0.1:0") as free:
        url = f"tcp:127.0.0.1:{free.getsockname()[1]}"
    times = iter([0.0, 50.0, 120.0])
    slept: list[float] = []
    with pytest.raises(HostUnreachable, match=f"did not answer at {url} within 110 s"):
        connect_to_board(url, clock=lambda: next(times), sleep=slept.append)
    assert len(slept) == 1


def test_server_without_descriptors_pauses(tmp_path: Path) -> None:
    """A server without free descriptors accepts no client, does not retry all the time, and later accepts waiting clients."""
    program = (
        f"from tests.unit.rank.guard.test_agreement_backends import check_no_room; check_no_room({str(tmp_path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_no_room(folder: str) -> None:
    """Run the server, and a client for which no descriptor is left."""
    now = [0.0]
    create_board(Path(folder), len(ALL))
    listener = listen("tcp:127.0.0.1:0")
    board, far = SharedBoard(Path(folder), len(ALL)), frozenset({1})
    server = AgreementServer(listener, board, KEY, ranks=far, process_count=len(ALL), clock=lambda: now[0])
    client, (soft, hard) = socket.socket(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
    fillers = []
    try:
        while True:
            fillers.append(os.dup(0))
    except OSError:
        client.connect(listener.getsockname())
    server.step(0)
    # Each of these calls would report the client at once if the listener were still watched.
    assert [server.frames._selector.select(0) for _ in range(3)] == [[], [], []]
    assert not server.step(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    now[0] = 10.0
    while not server.frames._unauthenticated:
        server.step(0)
    for filler in fillers:
        os.close(filler)
    client.close()
    server.close()
    board.close()
