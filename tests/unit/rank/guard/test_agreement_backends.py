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
from mhnb.rank.guard import agreement_server as delegate
from mhnb.rank.guard.agreement_server import AgreementServer, listen
from mhnb.rank.guard.local_agreement import AgreementBackend, LocalAgreement, mark_rank_lost
from mhnb.rank.guard.remote_agreement import RemoteAgreement, connect_to_board
from mhnb.rank.guard.shared_board import InterruptFlag, SharedBoard, create_board, create_interrupt_flag
from mhnb.transport.framing import encode_frames
from mhnb.transport.security import Encryptor
from tests.support.source import ROOT

KEY = b"k" * 32
WAIT_S = 60.0
OK, ERROR = ENDINGS.index("ok"), ENDINGS.index("error")
ALL = (0, 1, 2)


class DelegateThread:
    """Runs an agreement server in a thread."""

    def __init__(self, folder: Path, far: frozenset[int]) -> None:
        self._board = SharedBoard(folder, len(ALL))
        listener = listen("tcp:127.0.0.1:0")
        self.url = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        self.delegate = AgreementServer(listener, self._board, KEY, ranks=far, process_count=len(ALL))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        looks = 0
        while not self._ending.is_set():
            looks = 0 if self.delegate.step(looks) else looks + 1

    def connect(self) -> socket.socket:
        return connect_to_board(self.url)

    def close(self) -> None:
        self._ending.set()
        self.connect().close()
        self._thread.join()
        self.delegate.close()
        self._board.close()


class Rig:
    """Three ranks at one board; those in `far` are on other hosts."""

    def __init__(self, folder: Path, far: frozenset[int]) -> None:
        create_board(folder, len(ALL))
        create_interrupt_flag(folder, 1)
        self.far = far
        self.host = DelegateThread(folder, far)
        self.board, self.word = SharedBoard(folder, len(ALL)), InterruptFlag(folder, 1)
        self._boards: list[SharedBoard] = []
        self.tables: list[AgreementBackend] = [self._table(folder, rank) for rank in ALL]
        self._pool = ThreadPoolExecutor(len(ALL))

    def _table(self, folder: Path, rank: int) -> AgreementBackend:
        if rank in self.far:
            return RemoteAgreement(self.host.connect(), KEY, rank, self.word)
        self._boards.append(SharedBoard(folder, len(ALL)))
        return LocalAgreement(self._boards[-1], rank)

    def remote(self, rank: int) -> RemoteAgreement:
        table = self.tables[rank]
        assert isinstance(table, RemoteAgreement)
        return table

    def begin(
        self, rank: int, wish: LaunchProposal, interrupted: Callable[[], bool] = lambda: False
    ) -> Future[Decision]:
        """Make a rank propose a launch."""
        return self._pool.submit(agree, self.tables[rank], wish, interrupted)

    def all(self, *wishes: LaunchProposal) -> list[Decision]:
        """Return the decision that each rank gets when each makes the proposal at its index."""
        return [done.result(WAIT_S) for done in [self.begin(rank, wish) for rank, wish in enumerate(wishes)]]

    def until_posted(self, rank: int, wish: LaunchProposal) -> None:
        """Wait until a rank's proposal is on the board, and the rank is seen to wait."""
        looking = threading.Event()
        index = self.board.find_set_index(wish.participants)
        while self.board.last_entry(rank, index)[0] != wish.seq or self.board.waiting_slot(rank, wish.seq) is None:
            looking.wait(0.001)

    def close(self) -> None:
        for rank in ALL:
            # No rank waits for another any more, even if a test has failed.
            mark_rank_lost(self.board, rank)
        self._pool.shutdown()
        for table in self.tables:
            if isinstance(table, RemoteAgreement):
                table.close()
        self.host.close()
        for board in (self.board, *self._boards):
            board.close()
        self.word.close()


def agree(table: AgreementBackend, wish: LaunchProposal, interrupted: Callable[[], bool]) -> Decision:
    """Agree on a launch as a rank does before it."""
    table.propose(wish)
    try:
        table.wait(interrupted)
    finally:
        table.stop_waiting()
    return table.take_decision()


@pytest.fixture(params=[(), (1,), (1, 2), (0, 1, 2)], ids=lambda far: f"far{''.join(map(str, far)) or ' none'}")
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Every mixture of local and remote ranks."""
    made = Rig(tmp_path, frozenset(request.param))
    yield made
    made.close()


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Rig]:
    """All ranks are on the host of the board."""
    made = Rig(tmp_path, frozenset())
    yield made
    made.close()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Rig]:
    """Ranks 1 and 2 are on other hosts."""
    made = Rig(tmp_path, frozenset((1, 2)))
    yield made
    made.close()


def wish(
    fingerprint: int = 5, seq: int = 1, participants: tuple[int, ...] = ALL, line: int | None = 2, origin: int = 0
) -> LaunchProposal:
    """Return a proposal whose program is named after its fingerprint."""
    return LaunchProposal(
        seq, fingerprint, f"jit(f{fingerprint})", participants, (line,) if line else (), provenance=origin
    )


def text_of(verdict: Decision) -> str:
    """Return the text of a mismatch."""
    return format_mismatch(verdict.votes, verdict.names, number=verdict.launch_number, seq=1, source="")


def test_programs_of_one_name_say_what_they_differ_in(rig: Rig) -> None:
    """The outlines of programs with one name are compared, on whichever host the ranks are and the decision is made."""
    for rank in ALL:
        two = rank > 0
        rig.tables[rank].describe_program(
            7 if two else 5, pack_outline(f"module\nadd {int(two)}", {"k": str(int(two))})
        )
    wishes = [LaunchProposal(1, fingerprint, "jit(f)", ALL, (2,)) for fingerprint in (5, 7, 7)]
    for verdict in rig.all(*wishes):
        assert verdict.differences == {5: "add 0, compiled where k = 0", 7: "add 1, compiled where k = 1"}


def test_an_outline_that_is_not_there_leaves_the_mismatch_as_it_is(rig: Rig) -> None:
    """A program without an outline, or with an outline that is cut off, is refused without its difference."""
    rig.tables[0].describe_program(5, "half of")
    verdicts = rig.all(*(LaunchProposal(1, fingerprint, "jit(f)", ALL, (2,)) for fingerprint in (5, 7, 7)))
    assert [(verdict.kind, verdict.differences) for verdict in verdicts] == [("mismatch", {})] * 3


def test_who_wants_the_same_launches(rig: Rig) -> None:
    """Ranks that propose the same launch make it, repeatedly, also in sets without some ranks, and in the next cell."""
    for _ in range(30):
        assert rig.all(wish(), wish(), wish()) == [LAUNCH_DECISION] * 3
        pair = wish(7, participants=(0, 2))
        told = [rig.begin(rank, pair) for rank in (0, 2)]
        assert [done.result(WAIT_S) for done in told] == [LAUNCH_DECISION] * 2
    for rank in ALL:
        rig.tables[rank].end_cell(1, OK)
    assert rig.all(*[wish(9, seq=2)] * 3) == [LAUNCH_DECISION] * 3


def test_who_wants_the_same_on_other_arrays_is_told_so(rig: Rig) -> None:
    """Equal programs on arrays with different provenance are a mismatch, even if only some ranks know the provenance."""
    assert rig.all(*[wish(origin=2**63 - 1)] * 3) == [LAUNCH_DECISION] * 3
    verdicts = rig.all(wish(origin=7), wish(), wish(origin=7))
    assert [verdict.kind for verdict in verdicts] == ["mismatch"] * 3
    (text,) = {text_of(verdict) for verdict in verdicts}
    assert "ranks 0,2   jit(f5) of arrays A" in text
    assert "rank 1      jit(f5) of arrays B" in text


def test_who_is_asked_again_launches_or_is_refused_the_second_time(rig: Rig) -> None:
    """If only some ranks cannot compare an array, all ranks get the same decision, wherever they are."""
    for own, kind in ((7, "launch"), (8, "mismatch")):
        arrays = [(5, own), (ANY, 7), (ANY, 7)]
        told = rig.all(*(wish(origin=combine_values(each)) for each in arrays))
        assert {verdict.kind for verdict in told} == {"again"}
        (free,) = {join_uncompared_blocks(stand.provenance for stand in verdict.votes) for verdict in told}
        told = rig.all(*(wish(origin=combine_values(each, free)) for each in arrays))
        assert {verdict.kind for verdict in told} == {kind}


def test_who_wants_something_else_is_told_the_same_as_the_others(rig: Rig) -> None:
    """If proposals differ, no rank launches, and the text does not depend on where a rank is."""
    told = rig.all(wish(5), wish(7, line=3), wish(5))
    assert {verdict.kind for verdict in told} == {"mismatch"}
    (text,) = {text_of(verdict) for verdict in told}
    assert text.splitlines()[1:] == [
        "launch 1 of cell 1 differs",
        "  ranks 0,2   jit(f5)   line 2",
        "  rank 1      jit(f7)   line 3",
    ]
    assert rig.all(wish(9), wish(9), wish(9)) == [LAUNCH_DECISION] * 3


def test_a_rank_that_ended_its_cell_is_not_waited_for(rig: Rig) -> None:
    """Only the end of a rank's cell ends the wait for that rank, however late it comes."""
    first = rig.begin(0, wish())
    rig.until_posted(0, wish())
    second = rig.begin(2, wish())
    rig.until_posted(2, wish())
    assert not first.done()
    assert not second.done()
    rig.tables[1].end_cell(1, ERROR)
    told = {text_of(done.result(WAIT_S)) for done in (first, second)}
    assert len(told) == 1
    assert "rank 1      raised an error before it" in told.pop()


def test_a_cell_that_was_asked_to_stop_stops_before_the_same_launch(rig: Rig) -> None:
    """After a request to stop a cell, a rank that waited already stops before the same launch as those that arrive later."""
    early = rig.begin(2, wish())
    rig.until_posted(2, wish())
    rig.board.request_interrupt(1)
    told = [rig.begin(0, wish()), rig.begin(1, wish()), early]
    assert [done.result(WAIT_S) for done in told] == [Decision("interrupt", is_agreed=True)] * 3


def test_what_handles_an_interrupt_is_launched(rig: Rig) -> None:
    """Interrupt handlers may launch if all ranks are interrupted; if one is not, no rank launches and all stop."""
    stop, apart = Decision("interrupt", is_agreed=True), Decision("interrupt")
    saves = wish(7)._replace(in_interrupt_handler=True)
    waits = [rig.begin(rank, wish(7)) for rank in (0, 1)]
    for rank in (0, 1):
        rig.until_posted(rank, wish(7))
    rig.board.request_interrupt(1)
    # The same program for another purpose: a proposal from before the interrupt is not part of handling it.
    assert rig.begin(2, saves).result(WAIT_S) == apart
    assert [waiting.result(WAIT_S) for waiting in waits] == [apart] * 2
    assert rig.all(wish(), wish(), wish()) == [stop] * 3
    assert rig.all(saves, saves, saves) == [LAUNCH_DECISION] * 3
    assert rig.all(saves, wish(), saves) == [apart] * 3
    assert {verdict.kind for verdict in rig.all(saves, saves._replace(fingerprint=9), saves)} == {"mismatch"}


def test_who_is_interrupted_while_it_waits_takes_its_wish_back(rig: Rig) -> None:
    """A rank that is interrupted while it waits withdraws its proposal, and ranks that arrive later stop there too."""
    came = threading.Event()
    waiting = rig.begin(1, wish(), came.is_set)
    rig.until_posted(1, wish())
    came.set()
    assert waiting.result(WAIT_S) == Decision("interrupt")
    later = [rig.begin(rank, wish()) for rank in (0, 2)]
    rig.tables[1].end_cell(1, ENDINGS.index("interrupted"))
    assert {done.result(WAIT_S).kind for done in later} == {"interrupt"}


def test_an_interrupt_that_comes_when_all_have_agreed_is_too_late(rig: Rig) -> None:
    """After all have agreed, an interrupt does not stop the launch, because other ranks may have made it already."""
    posted = threading.Event()

    def interrupted() -> bool:
        posted.wait(WAIT_S)
        return True

    waiting = rig.begin(1, wish(), interrupted)
    others = [rig.begin(rank, wish()) for rank in (0, 2)]
    assert [done.result(WAIT_S) for done in others] == [LAUNCH_DECISION] * 2
    posted.set()
    assert waiting.result(WAIT_S) == LAUNCH_DECISION


class BellError(Exception):
    """Raised by a signal handler of the user's."""


def test_an_exception_in_the_wait_takes_the_wish_back(rig: Rig) -> None:
    """An exception in the wait withdraws the proposal, so ranks that arrive later do not launch without this rank."""
    table = rig.tables[1]

    def ring() -> bool:
        raise BellError

    table.propose(wish())
    with pytest.raises(BellError):
        table.wait(ring)
    assert table.withdraw()
    table.stop_waiting()
    rig.tables[1].end_cell(1, ERROR)
    later = [rig.begin(rank, wish()) for rank in (0, 2)]
    assert {done.result(WAIT_S).kind for done in later} == {"mismatch"}
    for rank in (0, 2):
        rig.tables[rank].end_cell(1, ERROR)
    assert rig.all(*[wish(seq=2)] * 3) == [LAUNCH_DECISION] * 3


def test_an_exception_right_after_the_post_takes_the_wish_back(near: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception after the others can see the entry, and before `propose` returns, withdraws the proposal."""
    table = near.tables[1]
    assert isinstance(table, LocalAgreement)
    board = table._participant.board
    post = board.write_entry

    def post_and_ring(*args: Any) -> NoReturn:
        post(*args)
        raise BellError

    monkeypatch.setattr(board, "write_entry", post_and_ring)
    with pytest.raises(BellError):
        table.propose(wish())
    assert table.withdraw()
    table.stop_waiting()
    monkeypatch.undo()
    table.end_cell(1, ERROR)
    later = [near.begin(rank, wish()) for rank in (0, 2)]
    assert {done.result(WAIT_S).kind for done in later} == {"mismatch"}


def test_a_second_exception_while_the_wish_is_taken_back_does_not_leave_it_standing(
    near: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler raises again and again during the withdrawal, and the proposal is still withdrawn."""
    table = near.tables[1]
    assert isinstance(table, LocalAgreement)
    board, rings = table._participant.board, [0]
    mark = board.withdraw

    def mark_and_ring(*args: Any) -> None:
        rings[0] += 1
        if rings[0] > 1:
            mark(*args)
        if rings[0] < 3:
            raise BellError

    monkeypatch.setattr(board, "withdraw", mark_and_ring)
    table.propose(wish())
    assert table.withdraw()
    table.stop_waiting()
    assert rings == [2], "what is taken back is not taken back once more"
    table.end_cell(1, ERROR)
    later = [near.begin(rank, wish()) for rank in (0, 2)]
    assert {done.result(WAIT_S).kind for done in later} == {"mismatch"}


def test_an_exception_before_the_post_takes_nothing_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception before the post does not withdraw the proposal before it, which was launched."""
    assert rig.all(*[wish()] * 3) == [LAUNCH_DECISION] * 3
    assert [table.withdraw() for table in rig.tables] == [True] * 3
    if isinstance(table := rig.tables[1], LocalAgreement):

        def ring(*_: Any) -> NoReturn:
            raise BellError

        monkeypatch.setattr(table._participant.board, "write_entry", ring)
        with pytest.raises(BellError):
            table.propose(wish())
        assert table.withdraw()
        monkeypatch.undo()
    assert rig.all(*[wish()] * 3) == [LAUNCH_DECISION] * 3


def test_an_exception_that_comes_too_late_leaves_a_verdict_to_obey(rig: Rig) -> None:
    """After an exception that comes too late the rank must follow the decision, because the others have launched."""
    posted = threading.Event()
    table = rig.tables[1]

    def ring() -> bool:
        posted.set()
        [done.result(WAIT_S) for done in others]
        raise BellError

    others: list[Future[Decision]] = []
    table.propose(wish())
    others += [rig.begin(rank, wish()) for rank in (0, 2)]
    try:
        table.wait(ring)
    except BellError:
        assert not table.withdraw()
    table.stop_waiting()
    assert table.take_decision() == LAUNCH_DECISION
    assert [done.result(WAIT_S) for done in others] == [LAUNCH_DECISION] * 2


def test_a_ring_of_waits_is_found_and_told_alike(rig: Rig) -> None:
    """Two ranks that launch on two shared sets in different order are in a deadlock, and both get the same text."""
    small, large = wish(5, participants=(0, 1)), wish(7)
    told = [rig.begin(0, small), rig.begin(1, large)]
    first, second = [done.result(WAIT_S) for done in told]
    assert first.kind == "ring"
    assert first == second
    assert "rank 0   jit(f5)   line 2   waits for rank 1" in first.text
    assert "rank 1   jit(f7)   line 2   waits for rank 0" in first.text


def test_who_gives_up_three_times_is_held_before_a_post_is_overwritten(rig: Rig) -> None:
    """A rank that has withdrawn three times may not post again yet, because only four entries are kept."""
    table = rig.tables[1]
    kinds = []
    for _ in range(4):
        table.propose(wish())
        table.wait(lambda: True)
        table.stop_waiting()
        kinds.append(table.take_decision().kind)
    assert kinds == ["interrupt"] * 3 + ["behind"]


def test_a_thread_that_is_a_cell_ahead_waits_for_the_others_to_end_theirs(rig: Rig) -> None:
    """A thread that is a cell ahead waits, because the others may still have to read what its next entry overwrites."""
    assert rig.begin(1, wish(), lambda: True).result(WAIT_S) == Decision("interrupt")
    rig.tables[1].end_cell(1, ERROR)
    ahead = rig.begin(1, wish(9, seq=2))
    # The others read in the old entry that its rank was interrupted, which nothing else tells them.
    told = [rig.begin(rank, wish()) for rank in (0, 2)]
    assert [done.result(WAIT_S).kind for done in told] == ["interrupt"] * 2
    assert not ahead.done()
    for rank in (0, 2):
        rig.tables[rank].end_cell(1, ERROR)
    told = [rig.begin(rank, wish(9, seq=2)) for rank in (0, 2)]
    assert [done.result(WAIT_S) for done in told] == [LAUNCH_DECISION] * 2
    assert ahead.result(WAIT_S) == LAUNCH_DECISION


def test_a_thread_whose_cell_ends_while_it_waits_is_told_so(rig: Rig) -> None:
    """When its cell ends, a waiting thread stops waiting, and no rank waits for it."""
    waiting = rig.begin(1, wish())
    rig.until_posted(1, wish())
    rig.tables[1].end_cell(1, ERROR)
    assert waiting.result(WAIT_S).kind == "cell ended"


def test_a_wish_of_a_cell_that_has_ended_here_is_refused(rig: Rig) -> None:
    """A thread's proposal for a cell that has ended is refused, because the other ranks have acted on the end."""
    first = rig.begin(0, wish())
    rig.until_posted(0, wish())
    rig.tables[1].end_cell(1, ERROR)
    assert rig.begin(2, wish()).result(WAIT_S).kind == "mismatch"
    assert rig.begin(1, wish()).result(WAIT_S).kind == "cell ended"
    assert first.result(WAIT_S).kind == "mismatch"
    for rank in (0, 2):
        rig.tables[rank].end_cell(1, ERROR)
    assert rig.all(*[wish(seq=2)] * 3) == [LAUNCH_DECISION] * 3


def test_two_threads_do_not_meet_and_each_is_named(rig: Rig) -> None:
    """Each thread has the same name on every rank, whichever rank gave the label; an unknown thread matches any."""
    one, two = (number_thread(MAIN_THREAD, 1, "score", count) for count in (1, 2))
    named = wish()._replace(thread=one, thread_label="task score #")
    verdicts = rig.all(named, named._replace(thread=two), wish()._replace(thread=MAIN_THREAD))
    (text,) = {
        format_mismatch(
            told.votes,
            told.names,
            number=told.launch_number,
            seq=1,
            source="",
            details=MismatchDetails(threads=told.threads),
        )
        for told in verdicts
    }
    assert text.splitlines()[2:5] == [
        "  rank 0   jit(f5) in task score #1     line 2",
        "  rank 1   jit(f5) in task score #2     line 2",
        "  rank 2   jit(f5) in the main thread   line 2",
    ]
    assert rig.all(named, named, wish()) == [LAUNCH_DECISION] * 3


# -- only for remote ranks


class BellSocket(socket.socket):
    """A socket on which a signal handler of the user's raises right after something was sent."""

    rings = 0
    """How many more times the handler raises."""

    def sendall(self, data: Any, flags: int = 0) -> None:
        super().sendall(data, flags)
        if self.rings:
            self.rings -= 1
            raise TimeoutError("the bell")


def test_an_exception_out_of_the_middle_of_a_send_is_not_taken_for_the_connections_end(tmp_path: Path) -> None:
    """A TimeoutError of the user's, which is an OSError too, does not end the connection, even if it comes twice."""
    create_board(tmp_path, len(ALL))
    create_interrupt_flag(tmp_path, 1)
    host, word = DelegateThread(tmp_path, frozenset((1,))), InterruptFlag(tmp_path, 1)
    bell = BellSocket(fileno=host.connect().detach())
    table, alone = RemoteAgreement(bell, KEY, 1, word), wish(participants=(1,))
    bell.rings = 3
    table.propose(alone)
    with pytest.raises(TimeoutError, match="the bell"):
        table.wait(lambda: False)
    # No other rank takes part, so it is agreed on already.
    assert not table.withdraw()
    assert table.take_decision() == LAUNCH_DECISION
    assert agree(table, alone, lambda: False) == LAUNCH_DECISION
    table.close()
    host.close()
    word.close()


def test_a_connection_that_ends_is_a_rank_that_is_lost(far: Rig) -> None:
    """The others do not wait for a rank whose connection has ended, now or in a later cell, and it never launches again."""
    cut, waiting = far.remote(1), far.begin(1, wish())
    far.until_posted(1, wish())
    cut.close()
    with pytest.raises(RanksLost, match=r"nothing was launched on rank 1\n.*connection to the host of rank 0"):
        waiting.result(WAIT_S)
    told = [far.begin(rank, wish()) for rank in (0, 2)]
    assert {"rank 1      was lost before it" in text_of(done.result(WAIT_S)) for done in told} == {True}
    for rank in (0, 2):
        far.tables[rank].end_cell(1, ERROR)
    cut.end_cell(1, ERROR)
    told = [far.begin(rank, wish(seq=2)) for rank in (0, 2)]
    assert {"rank 1      was lost before it" in text_of(done.result(WAIT_S)) for done in told} == {True}
    with pytest.raises(RanksLost):
        far.begin(1, wish(seq=2)).result(WAIT_S)
    assert cut.withdraw(), "an exception that comes then finds nothing to wait for"


def test_a_rank_that_its_hosts_supervisor_gives_up_is_off_the_board(far: Rig) -> None:
    """If the agreement server has died, what it had posted for a remote rank no longer counts."""
    waiting = far.begin(1, wish())
    far.until_posted(1, wish())
    mark_rank_lost(far.board, 1)
    told = [far.begin(rank, wish()) for rank in (0, 2)]
    assert {"rank 1      was lost before it" in text_of(done.result(WAIT_S)) for done in told} == {True}
    assert waiting.result(WAIT_S).kind != "launch"


def test_what_was_agreed_before_the_connection_ended_is_lost_on_nobody_else(far: Rig) -> None:
    """The end of a connection does not withdraw a proposal that all ranks have answered."""
    assert far.all(wish(), wish(), wish()) == [LAUNCH_DECISION] * 3
    far.remote(2).close()
    told = [far.begin(rank, wish()) for rank in (0, 1)]
    assert {done.result(WAIT_S).kind for done in told} == {"mismatch"}
    pair = wish(9, participants=(0, 1))
    assert [done.result(WAIT_S) for done in [far.begin(rank, pair) for rank in (0, 1)]] == [LAUNCH_DECISION] * 2


def test_a_far_rank_hears_of_an_interrupt_from_its_own_supervisor(far: Rig) -> None:
    """A remote rank does not see the board's interrupt flag, but that of its own host."""
    assert [table.interrupted_seq for table in far.tables] == [0, 0, 0]
    far.word.request_interrupt(4)
    assert [table.interrupted_seq for table in far.tables] == [0, 4, 4]


def test_a_far_rank_launches_on_a_set_beyond_those_the_board_begins_with(far: Rig) -> None:
    """A remote rank launches on a set beyond the first ones, because the number of sets has no limit."""
    for n in range(300, 900):
        far.board.find_set_index((n,))
    assert far.all(wish(), wish(), wish()) == [LAUNCH_DECISION] * 3


def test_a_board_that_cannot_grow_is_an_error_on_the_rank_and_not_the_delegates_end(
    far: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the board cannot grow, the rank gets the system's error, its cell ends, and the other ranks are notified."""

    def refuse(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    for n in range(300, 556):
        far.board.find_set_index((n,))
    monkeypatch.setattr(os, "ftruncate", refuse)
    told = far.begin(1, wish()).result(WAIT_S)
    assert told.kind == "refused"
    assert "No space left on device" in told.text
    with pytest.raises(OSError, match="No space left on device"):
        far.begin(0, wish()).result(WAIT_S)
    monkeypatch.undo()
    for rank in (0, 1):
        far.tables[rank].end_cell(1, ERROR)
    assert far.begin(2, wish()).result(WAIT_S).kind == "mismatch"


def test_who_does_not_have_the_key_is_not_let_in(far: Rig, tmp_path: Path) -> None:
    """A process without the key, such as one of another cluster, is rejected; the admitted ranks go on."""
    with pytest.raises(HostUnreachable, match="did not let rank 1 take part"):
        RemoteAgreement(far.host.connect(), b"x" * 32, 1, far.word)
    assert far.all(wish(), wish(), wish()) == [LAUNCH_DECISION] * 3


def test_a_rank_is_let_in_once(far: Rig) -> None:
    """A recorded greeting, a second process with that number, and a rank of the board's own host are rejected."""
    for rank in (0, 1):
        with pytest.raises(HostUnreachable, match=f"did not let rank {rank} take part"):
            RemoteAgreement(far.host.connect(), KEY, rank, far.word)
    assert far.all(wish(), wish(), wish()) == [LAUNCH_DECISION] * 3


GREETING = [b"1", *Encryptor(KEY, b"r1").sign([b"1"])]
STRANGE = {
    "noise": b"GET / HTTP/1.1\r\nHost: board\r\n\r\n" * 8,
    "a long announcement": struct.pack("<IQ", 1, 1 << 40) + bytes(64),
    "no frame": struct.pack("<I", 0),
    "a name and no seal": b"".join(encode_frames([b"1"])),
    "a name that is no number": b"".join(encode_frames([b"\xd9\xa1"])),
    "a greeting of the link": b"".join(encode_frames(GREETING)),
    "an unsigned end of a cell": b"".join(encode_frames(encode_from_rank(CellFinished(1, OK)))),
}


@pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE.keys())
def test_a_strangers_bytes_do_nothing(far: Rig, said: bytes) -> None:
    """The server closes the stranger's connection, and the board is unchanged."""
    with far.host.connect() as stranger:
        stranger.settimeout(WAIT_S)
        stranger.sendall(said)
        try:
            assert stranger.recv(1) == b""
        except ConnectionResetError:
            # The stranger had sent more than was read.
            assert len(said) > 64
    assert far.host.delegate.refused_count == 1
    assert [far.board.ended_seq(rank) for rank in ALL] == [0, 0, 0]
    assert far.all(wish(), wish(), wish()) == [LAUNCH_DECISION] * 3


def test_strangers_who_say_nothing_do_not_keep_the_ranks_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too many unauthenticated connections, the oldest are closed."""
    monkeypatch.setattr(delegate, "max_unauthenticated", lambda: 64)
    create_board(tmp_path, len(ALL))
    create_interrupt_flag(tmp_path, 1)
    host, word = DelegateThread(tmp_path, frozenset((1,))), InterruptFlag(tmp_path, 1)
    strangers = [host.connect() for _ in range(65)]
    strangers[0].settimeout(WAIT_S)
    assert strangers[0].recv(1) == b""
    RemoteAgreement(host.connect(), KEY, 1, word).close()
    for stranger in strangers:
        stranger.close()
    host.close()
    word.close()


def test_a_rank_that_says_what_cannot_be_is_lost(far: Rig) -> None:
    """A rank with an invalid message has another version or a bug, so it is marked as lost."""
    far.remote(1).end_cell(1, 99)
    told = [far.begin(rank, wish()) for rank in (0, 2)]
    assert {done.result(WAIT_S).kind for done in told} == {"mismatch"}
    with pytest.raises(RanksLost):
        far.begin(1, wish()).result(WAIT_S)


@pytest.mark.parametrize("url", ["unix:/tmp/board", "tcp:127.0.0.1:x", "tcp::5", "tcp:127.0.0.1:99999"])
def test_an_address_that_cannot_be_listened_at_is_named(url: str) -> None:
    """The error for an address that cannot be listened at names the address and what is expected."""
    with pytest.raises(LaunchError, match=f"{url}"):
        listen(url)


def test_a_port_that_is_taken_is_named() -> None:
    """A port in use makes the start fail at once, not when the first rank fails to connect."""
    with listen("tcp:127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"cannot listen at tcp:127.0.0.1:{port}: .*a port that is free"):
            listen(f"tcp:127.0.0.1:{port}")


def test_a_board_that_nobody_serves_is_an_error_with_its_address() -> None:
    """A rank gives up an unserved board after the time that a start may take, which passes at once here."""
    with listen("tcp:127.0.0.1:0") as free:
        url = f"tcp:127.0.0.1:{free.getsockname()[1]}"
    times = iter([0.0, 50.0, 120.0])
    slept: list[float] = []
    with pytest.raises(HostUnreachable, match=f"did not answer at {url} within 110 s"):
        connect_to_board(url, clock=lambda: next(times), sleep=slept.append)
    assert len(slept) == 1


def test_a_delegate_without_descriptors_rests(tmp_path: Path) -> None:
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
    answering = AgreementServer(listener, board, KEY, ranks=far, process_count=len(ALL), clock=lambda: now[0])
    caller, (soft, hard) = socket.socket(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (caller.fileno() + 1, hard))
    fillers = []
    try:
        while True:
            fillers.append(os.dup(0))
    except OSError:
        caller.connect(listener.getsockname())
    answering.step(0)
    # Each of these calls would report the client at once if the listener were still watched.
    assert [answering._selector.select(0) for _ in range(3)] == [[], [], []]
    assert not answering.step(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    now[0] = 10.0
    while not answering._unauthenticated:
        answering.step(0)
    for filler in fillers:
        os.close(filler)
    caller.close()
    answering.close()
    board.close()
