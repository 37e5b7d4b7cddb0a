"""Agreeing at the board and through the delegate: the same tests for ranks that are there, that are far, and for a mixture.

Ranks are threads here, each at a table of its own; the delegate runs in a thread too. No JAX.
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
    """A delegate at work."""

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
    """Three ranks at one board; `far` are those that are on other hosts."""

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
        """Have a rank want to launch."""
        return self._pool.submit(agree, self.tables[rank], wish, interrupted)

    def all(self, *wishes: LaunchProposal) -> list[Decision]:
        """What each rank is told when each wants what stands at its place."""
        return [done.result(WAIT_S) for done in [self.begin(rank, wish) for rank, wish in enumerate(wishes)]]

    def until_posted(self, rank: int, wish: LaunchProposal) -> None:
        """Wait until a rank's wish is on the board, and it is seen to wait."""
        looking = threading.Event()
        index = self.board.find_set_index(wish.participants)
        while self.board.last_entry(rank, index)[0] != wish.seq or self.board.waiting_slot(rank, wish.seq) is None:
            looking.wait(0.001)

    def close(self) -> None:
        for rank in ALL:
            # Nobody waits for anybody any more, also where a test has failed.
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
    """What a rank does before a launch."""
    table.propose(wish)
    try:
        table.wait(interrupted)
    finally:
        table.stop_waiting()
    return table.take_decision()


@pytest.fixture(params=[(), (1,), (1, 2), (0, 1, 2)], ids=lambda far: f"far{''.join(map(str, far)) or ' none'}")
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Every mixture."""
    made = Rig(tmp_path, frozenset(request.param))
    yield made
    made.close()


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Rig]:
    """All ranks are where the board is."""
    made = Rig(tmp_path, frozenset())
    yield made
    made.close()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Rig]:
    """Ranks 1 and 2 are far."""
    made = Rig(tmp_path, frozenset((1, 2)))
    yield made
    made.close()


def wish(
    fingerprint: int = 5, seq: int = 1, participants: tuple[int, ...] = ALL, line: int | None = 2, origin: int = 0
) -> LaunchProposal:
    """One that is called after its number."""
    return LaunchProposal(
        seq, fingerprint, f"jit(f{fingerprint})", participants, (line,) if line else (), provenance=origin
    )


def text_of(verdict: Decision) -> str:
    """The words of a mismatch."""
    return format_mismatch(verdict.votes, verdict.names, number=verdict.launch_number, seq=1, source="")


def test_programs_of_one_name_say_what_they_differ_in(rig: Rig) -> None:
    """What each rank has said of its program is compared by whoever judges, wherever the ranks are."""
    for rank in ALL:
        two = rank > 0
        rig.tables[rank].describe_program(
            7 if two else 5, pack_outline(f"module\nadd {int(two)}", {"k": str(int(two))})
        )
    wishes = [LaunchProposal(1, fingerprint, "jit(f)", ALL, (2,)) for fingerprint in (5, 7, 7)]
    for verdict in rig.all(*wishes):
        assert verdict.differences == {5: "add 0, compiled where k = 0", 7: "add 1, compiled where k = 1"}


def test_an_outline_that_is_not_there_leaves_the_mismatch_as_it_is(rig: Rig) -> None:
    """A program that nobody has described, or whose outline is cut off, is refused without it."""
    rig.tables[0].describe_program(5, "half of")
    verdicts = rig.all(*(LaunchProposal(1, fingerprint, "jit(f)", ALL, (2,)) for fingerprint in (5, 7, 7)))
    assert [(verdict.kind, verdict.differences) for verdict in verdicts] == [("mismatch", {})] * 3


def test_who_wants_the_same_launches(rig: Rig) -> None:
    """Again and again, also in sets of which some ranks are no part, and in the next cell."""
    for _ in range(30):
        assert rig.all(wish(), wish(), wish()) == [LAUNCH_DECISION] * 3
        pair = wish(7, participants=(0, 2))
        told = [rig.begin(rank, pair) for rank in (0, 2)]
        assert [done.result(WAIT_S) for done in told] == [LAUNCH_DECISION] * 2
    for rank in ALL:
        rig.tables[rank].end_cell(1, OK)
    assert rig.all(*[wish(9, seq=2)] * 3) == [LAUNCH_DECISION] * 3


def test_who_wants_the_same_on_other_arrays_is_told_so(rig: Rig) -> None:
    """Also where only one of them knows where they come from."""
    assert rig.all(*[wish(origin=2**63 - 1)] * 3) == [LAUNCH_DECISION] * 3
    verdicts = rig.all(wish(origin=7), wish(), wish(origin=7))
    assert [verdict.kind for verdict in verdicts] == ["mismatch"] * 3
    (text,) = {text_of(verdict) for verdict in verdicts}
    assert "ranks 0,2   jit(f5) of arrays A" in text
    assert "rank 1      jit(f5) of arrays B" in text


def test_who_is_asked_again_launches_or_is_refused_the_second_time(rig: Rig) -> None:
    """Where an array is like every other on some ranks only, all hear the same, wherever they are."""
    for own, kind in ((7, "launch"), (8, "mismatch")):
        arrays = [(5, own), (ANY, 7), (ANY, 7)]
        told = rig.all(*(wish(origin=combine_values(each)) for each in arrays))
        assert {verdict.kind for verdict in told} == {"again"}
        (free,) = {join_uncompared_blocks(stand.provenance for stand in verdict.votes) for verdict in told}
        told = rig.all(*(wish(origin=combine_values(each, free)) for each in arrays))
        assert {verdict.kind for verdict in told} == {kind}


def test_who_wants_something_else_is_told_the_same_as_the_others(rig: Rig) -> None:
    """Nobody launches, and the words do not depend on where a rank is."""
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
    """However late: only its end decides."""
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
    """One that had waited already stops with those that came after the request."""
    early = rig.begin(2, wish())
    rig.until_posted(2, wish())
    rig.board.request_interrupt(1)
    told = [rig.begin(0, wish()), rig.begin(1, wish()), early]
    assert [done.result(WAIT_S) for done in told] == [Decision("interrupt", is_agreed=True)] * 3


def test_what_handles_an_interrupt_is_launched(rig: Rig) -> None:
    """Of ranks that all have got it. Where one has not, none launches: it is to be stopped, and the others with it."""
    stop, apart = Decision("interrupt", is_agreed=True), Decision("interrupt")
    saves = wish(7)._replace(in_interrupt_handler=True)
    waits = [rig.begin(rank, wish(7)) for rank in (0, 1)]
    for rank in (0, 1):
        rig.until_posted(rank, wish(7))
    rig.board.request_interrupt(1)
    # The same program, and one means it for something else: what was posted before the interrupt is no part of its handling.
    assert rig.begin(2, saves).result(WAIT_S) == apart
    assert [waiting.result(WAIT_S) for waiting in waits] == [apart] * 2
    assert rig.all(wish(), wish(), wish()) == [stop] * 3
    assert rig.all(saves, saves, saves) == [LAUNCH_DECISION] * 3
    assert rig.all(saves, wish(), saves) == [apart] * 3
    assert {verdict.kind for verdict in rig.all(saves, saves._replace(fingerprint=9), saves)} == {"mismatch"}


def test_who_is_interrupted_while_it_waits_takes_its_wish_back(rig: Rig) -> None:
    """And who comes later stops there too."""
    came = threading.Event()
    waiting = rig.begin(1, wish(), came.is_set)
    rig.until_posted(1, wish())
    came.set()
    assert waiting.result(WAIT_S) == Decision("interrupt")
    later = [rig.begin(rank, wish()) for rank in (0, 2)]
    rig.tables[1].end_cell(1, ENDINGS.index("interrupted"))
    assert {done.result(WAIT_S).kind for done in later} == {"interrupt"}


def test_an_interrupt_that_comes_when_all_have_agreed_is_too_late(rig: Rig) -> None:
    """The launch is made: others may have made it already."""
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
    """Raised by a handler of the user's."""


def test_an_exception_in_the_wait_takes_the_wish_back(rig: Rig) -> None:
    """Who comes later does not launch without this rank."""
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
    """Between the moment at which others can see the post and the one at which `propose` returns."""
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
    """A bell that rings again and again; it has been taken back though others came in between."""
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
    """The wish before it, which was launched, is not the one that is given up."""
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
    """The others have launched."""
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
    """Two ranks that share two sets and take them in different order."""
    small, large = wish(5, participants=(0, 1)), wish(7)
    told = [rig.begin(0, small), rig.begin(1, large)]
    first, second = [done.result(WAIT_S) for done in told]
    assert first.kind == "ring"
    assert first == second
    assert "rank 0   jit(f5)   line 2   waits for rank 1" in first.text
    assert "rank 1   jit(f7)   line 2   waits for rank 0" in first.text


def test_who_gives_up_three_times_is_held_before_a_post_is_overwritten(rig: Rig) -> None:
    """Four places are kept."""
    table = rig.tables[1]
    kinds = []
    for _ in range(4):
        table.propose(wish())
        table.wait(lambda: True)
        table.stop_waiting()
        kinds.append(table.take_decision().kind)
    assert kinds == ["interrupt"] * 3 + ["behind"]


def test_a_thread_that_is_a_cell_ahead_waits_for_the_others_to_end_theirs(rig: Rig) -> None:
    """Until then they may still have to read what its next post overwrites."""
    assert rig.begin(1, wish(), lambda: True).result(WAIT_S) == Decision("interrupt")
    rig.tables[1].end_cell(1, ERROR)
    ahead = rig.begin(1, wish(9, seq=2))
    # The others read of the old post that it was interrupted, which nothing else tells them.
    told = [rig.begin(rank, wish()) for rank in (0, 2)]
    assert [done.result(WAIT_S).kind for done in told] == ["interrupt"] * 2
    assert not ahead.done()
    for rank in (0, 2):
        rig.tables[rank].end_cell(1, ERROR)
    told = [rig.begin(rank, wish(9, seq=2)) for rank in (0, 2)]
    assert [done.result(WAIT_S) for done in told] == [LAUNCH_DECISION] * 2
    assert ahead.result(WAIT_S) == LAUNCH_DECISION


def test_a_thread_whose_cell_ends_while_it_waits_is_told_so(rig: Rig) -> None:
    """Nobody waits for it, and it waits for nobody."""
    waiting = rig.begin(1, wish())
    rig.until_posted(1, wish())
    rig.tables[1].end_cell(1, ERROR)
    assert waiting.result(WAIT_S).kind == "cell ended"


def test_a_wish_of_a_cell_that_has_ended_here_is_refused(rig: Rig) -> None:
    """A thread may have made it before the end, which the others have acted on: what one of them posted meets nobody."""
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
    """The same words on every rank, whoever has given the label; a thread that nobody knows meets any."""
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


# -- what only far ranks have


class BellSocket(socket.socket):
    """Has a handler of the user's come right after something was sent."""

    rings = 0
    """How often it still will."""

    def sendall(self, data: Any, flags: int = 0) -> None:
        super().sendall(data, flags)
        if self.rings:
            self.rings -= 1
            raise TimeoutError("the bell")


def test_an_exception_out_of_the_middle_of_a_send_is_not_taken_for_the_connections_end(tmp_path: Path) -> None:
    """A TimeoutError of the user's is an OSError too. Nor does it matter when it comes a second time."""
    create_board(tmp_path, len(ALL))
    create_interrupt_flag(tmp_path, 1)
    host, word = DelegateThread(tmp_path, frozenset((1,))), InterruptFlag(tmp_path, 1)
    bell = BellSocket(fileno=host.connect().detach())
    table, alone = RemoteAgreement(bell, KEY, 1, word), wish(participants=(1,))
    bell.rings = 3
    table.propose(alone)
    with pytest.raises(TimeoutError, match="the bell"):
        table.wait(lambda: False)
    # Nobody else takes part: it is agreed on already.
    assert not table.withdraw()
    assert table.take_decision() == LAUNCH_DECISION
    assert agree(table, alone, lambda: False) == LAUNCH_DECISION
    table.close()
    host.close()
    word.close()


def test_a_connection_that_ends_is_a_rank_that_is_lost(far: Rig) -> None:
    """The others do not wait for it in this launch or in a later cell; itself, it never launches again."""
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
    """Where the delegate has died: what it had posted for a far rank no longer counts."""
    waiting = far.begin(1, wish())
    far.until_posted(1, wish())
    mark_rank_lost(far.board, 1)
    told = [far.begin(rank, wish()) for rank in (0, 2)]
    assert {"rank 1      was lost before it" in text_of(done.result(WAIT_S)) for done in told} == {True}
    assert waiting.result(WAIT_S).kind != "launch"


def test_what_was_agreed_before_the_connection_ended_is_lost_on_nobody_else(far: Rig) -> None:
    """A wish that all have answered cannot be taken back by an end."""
    assert far.all(wish(), wish(), wish()) == [LAUNCH_DECISION] * 3
    far.remote(2).close()
    told = [far.begin(rank, wish()) for rank in (0, 1)]
    assert {done.result(WAIT_S).kind for done in told} == {"mismatch"}
    pair = wish(9, participants=(0, 1))
    assert [done.result(WAIT_S) for done in [far.begin(rank, pair) for rank in (0, 1)]] == [LAUNCH_DECISION] * 2


def test_a_far_rank_hears_of_an_interrupt_from_its_own_supervisor(far: Rig) -> None:
    """The board's word does not reach it, and its host's own does."""
    assert [table.interrupted_seq for table in far.tables] == [0, 0, 0]
    far.word.request_interrupt(4)
    assert [table.interrupted_seq for table in far.tables] == [0, 4, 4]


def test_a_far_rank_launches_on_a_set_beyond_those_the_board_begins_with(far: Rig) -> None:
    """There is no last one."""
    for n in range(300, 900):
        far.board.find_set_index((n,))
    assert far.all(wish(), wish(), wish()) == [LAUNCH_DECISION] * 3


def test_a_board_that_cannot_grow_is_an_error_on_the_rank_and_not_the_delegates_end(
    far: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the system's own words; the rank's cell ends, and others are told."""

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
    """Another cluster at the same address, say; those that are in go on."""
    with pytest.raises(HostUnreachable, match="did not let rank 1 take part"):
        RemoteAgreement(far.host.connect(), b"x" * 32, 1, far.word)
    assert far.all(wish(), wish(), wish()) == [LAUNCH_DECISION] * 3


def test_a_rank_is_let_in_once(far: Rig) -> None:
    """A recorded greeting, or a second process of that number, gets nowhere; nor does a rank of the board's own host."""
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
    """It is cut off, and nothing stands on the board that was not there."""
    with far.host.connect() as stranger:
        stranger.settimeout(WAIT_S)
        stranger.sendall(said)
        try:
            assert stranger.recv(1) == b""
        except ConnectionResetError:
            # It had sent more than was read.
            assert len(said) > 64
    assert far.host.delegate.refused_count == 1
    assert [far.board.ended_seq(rank) for rank in ALL] == [0, 0, 0]
    assert far.all(wish(), wish(), wish()) == [LAUNCH_DECISION] * 3


def test_strangers_who_say_nothing_do_not_keep_the_ranks_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go when there are too many."""
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
    """It is not ours any more: another version, or a defect."""
    far.remote(1).end_cell(1, 99)
    told = [far.begin(rank, wish()) for rank in (0, 2)]
    assert {done.result(WAIT_S).kind for done in told} == {"mismatch"}
    with pytest.raises(RanksLost):
        far.begin(1, wish()).result(WAIT_S)


@pytest.mark.parametrize("url", ["unix:/tmp/board", "tcp:127.0.0.1:x", "tcp::5", "tcp:127.0.0.1:99999"])
def test_an_address_that_cannot_be_listened_at_is_named(url: str) -> None:
    """With what is expected."""
    with pytest.raises(LaunchError, match=f"{url}"):
        listen(url)


def test_a_port_that_is_taken_is_named() -> None:
    """The start fails at once, not when the first rank does not get through."""
    with listen("tcp:127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"cannot listen at tcp:127.0.0.1:{port}: .*a port that is free"):
            listen(f"tcp:127.0.0.1:{port}")


def test_a_board_that_nobody_serves_is_an_error_with_its_address() -> None:
    """After the time that a start may take, which passes at once here."""
    with listen("tcp:127.0.0.1:0") as free:
        url = f"tcp:127.0.0.1:{free.getsockname()[1]}"
    times = iter([0.0, 50.0, 120.0])
    slept: list[float] = []
    with pytest.raises(HostUnreachable, match=f"did not answer at {url} within 110 s"):
        connect_to_board(url, clock=lambda: next(times), sleep=slept.append)
    assert len(slept) == 1


def test_a_delegate_without_descriptors_rests(tmp_path: Path) -> None:
    """Nobody can be let in, and no stranger refused for it: it does not ask the system again and again, and lets in who waited, later."""
    program = (
        f"from tests.unit.rank.guard.test_agreement_backends import check_no_room; check_no_room({str(tmp_path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_no_room(folder: str) -> None:
    """Be the delegate, and a caller for whom no descriptor is left."""
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
    # It would be told of him in each of these, at once.
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
