"""Lockstep: before a launch, its participants agree on it over the board; if they do not, none of them launches.

A participant posts what it is about to launch and waits until it knows of every other one: that it has posted too, or that its cell
has ended. Then all decide the same from the same facts. Time decides nothing.

A post can be taken back only while another participant has not posted, under the board's lock, which posting needs too:
so nobody launches on the strength of a post that is gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from mhnb.core.agreement import (
    ENDINGS,
    MARKS,
    Stand,
    format_behind,
    format_mismatch,
    format_outside,
    format_ring,
    judge_launch,
)
from mhnb.core.guard import communicates
from mhnb.errors import OrderMismatch
from mhnb.rank.board import Board, Place
from mhnb.rank.forks import weakly
from mhnb.rank.rings import find_ring, missing
from mhnb.values import Outcome

__all__ = ["Agreement"]

_SPINS, _YIELDS, _SHORT_SLEEPS = 20, 50, 400
"""Looks before each next slower kind of pause: the others are mostly there at once, and must get the core otherwise."""
_SHORT_S, _LONG_S = 50e-6, 2e-3
_yield_core: Callable[[], None] = getattr(os, "sched_yield", partial(time.sleep, 0))
_LOOK_AROUND = 64
"""Sleeps between two searches for a ring of waits."""
_INTERRUPTED, _RING, _CELL_ENDED = (MARKS.index(mark) for mark in ("interrupted", "ring", "cell ended"))


class Agreement:
    """One rank's part of it. `enter` may be called from any thread; a rank makes one launch at a time.

    Args:
        board: shared with every other rank.
        rank: our own.
    """

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank
        self._main = threading.main_thread()
        self._turn = threading.Lock()
        self._seq = 1
        self._source = ""
        self._guard = "off"
        self._chosen: tuple[int, ...] | None = None
        os.register_at_fork(after_in_child=weakly(self._become_child))
        self.inside = False
        """The main thread is between its post and the end of its launch: an interrupt must wait."""
        self.interrupt_pending = False
        """One waits."""
        self._failure: tuple[int, OrderMismatch] | None = None
        self._late: BaseException | None = None
        self._holder = 0
        self._took_back = self._forked = False
        self.make_interrupt: Callable[[], BaseException] = KeyboardInterrupt
        """Makes what stops the code that runs, wherever it runs; set by whoever runs it."""
        self._busy: set[int] = set()
        """Threads other than the main one that are about to launch."""
        self.pending: tuple[str, tuple[int, ...], int | None] | None = None
        """What is posted and not yet decided: name, participants, line of the cell."""
        self.agreed_stop = False
        """All participants of a launch stopped before it together."""

    def _become_child(self) -> None:
        """Be a forked child of the cell: it is no rank, whatever it inherited."""
        self._forked = True
        self._busy.clear()

    # -- cells

    def begin_cell(self, seq: int, source: str, guard: str, chosen: Sequence[int] | None) -> None:
        """A cell begins; `chosen` are the ranks that run it, None for all."""
        self._seq, self._source, self._guard = seq, source, guard
        self._chosen = None if chosen is None else tuple(chosen)
        self.interrupt_pending = self.agreed_stop = self._took_back = False
        self._failure = None

    def end_cell(self, seq: int, outcome: Outcome) -> None:
        """The cell has ended here: whoever waits for us in it need not. What threads launch from now on belongs to the next."""
        ending = outcome if outcome in ENDINGS else "error"
        self._board.end_cell(self._rank, seq, ENDINGS.index(ending))
        self._seq = seq + 1
        self._chosen = None

    def is_asked_to_stop(self) -> bool:
        """Whether the cell that runs here was asked to stop."""
        return self._board.interrupted_seq == self._seq

    # -- a launch

    def enter(self, fingerprint: str, name: str, participants: tuple[int, ...], line: int | None) -> bool:
        """Agree on a launch. After True the launch must be made at once; `leave` is called in any case.

        Returns:
            False where there is nothing to agree on: no lockstep, or a program that never communicates.

        Raises:
            OrderMismatch: the participants do not want the same launch; none of them makes it.
            KeyboardInterrupt: the cell was asked to stop; if the others came as far, all stop here.
        """
        if not communicates(fingerprint):
            return False
        if self._forked:
            raise RuntimeError("a forked process cannot launch a program of several ranks: it is none of them")
        if self._chosen is not None and not set(participants) <= set(self._chosen):
            raise OrderMismatch(format_outside(name, participants, self._chosen), result=None)
        if self._guard != "lockstep":
            return False
        if threading.current_thread() is not self._main:
            return self._enter_from_thread(fingerprint, name, participants, line)
        self.inside = True
        try:
            with _Held(self._turn) as held:
                self.agree(fingerprint, name, participants, line)
                held.keep()
                self._holder = threading.get_ident()
        except BaseException as error:
            pending, self.inside, self.interrupt_pending = self.interrupt_pending, False, False
            if pending and isinstance(error, OrderMismatch):
                raise self.make_interrupt() from error
            raise
        return True

    def _enter_from_thread(self, fingerprint: str, name: str, participants: tuple[int, ...], line: int | None) -> bool:
        self._busy.add(threading.get_ident())
        try:
            with _Held(self._turn) as held:
                self.agree(fingerprint, name, participants, line)
                held.keep()
                self._holder = threading.get_ident()
        except BaseException as error:
            if isinstance(error, OrderMismatch) and not isinstance(error, _CellEndedError):
                self._failure = self._failure or (self._seq, error)
            self._busy.discard(threading.get_ident())
            raise
        return True

    def leave(self) -> None:
        """The launch is made and noted, or there was none to make.

        Raises:
            BaseException: what came in a thread of the user's when it was too late not to launch.
        """
        me = threading.get_ident()
        if self._holder != me:
            return
        self._holder = 0
        late, self._late = (self._late, None) if threading.current_thread() is not self._main else (None, self._late)
        self._turn.release()
        self._busy.discard(me)
        if late is not None:
            raise late

    def is_busy(self) -> bool:
        """Whether a thread of the user's is about to launch."""
        return bool(self._busy)

    def take_failure(self) -> OrderMismatch | None:
        """What was raised in a thread of the user's: it fails the cell too."""
        failure, self._failure = self._failure, None
        return failure[1] if failure is not None and failure[0] == self._seq else None

    def settle(self) -> None:
        """After a launch: on the main thread what had to wait for it comes now.

        An interrupt waits on where the ranks are being stopped together: it comes before the next launch, or by the next
        signal, so that the result of this one is not lost on the way to its name.

        Raises:
            BaseException: what came when it was too late not to launch.
        """
        if not self.inside or threading.current_thread() is not self._main:
            return
        self.inside = False
        late, self._late = self._late, None
        if late is not None:
            raise late
        if self.interrupt_pending and not self.is_asked_to_stop():
            self.interrupt_pending = False
            raise self.make_interrupt()

    def agree(self, fingerprint: str, name: str, participants: tuple[int, ...], line: int | None) -> None:
        """Post, wait and judge, as `enter` says. A look at this rank's stack knows the wait by this function's name."""
        if self.interrupt_pending:
            raise self.make_interrupt()
        place = self._post(int(fingerprint, 16) & ~(1 << 63), name, participants, line)
        self.pending = name, participants, line
        late: BaseException | None = None
        try:
            self._wait(place, participants)
        except BaseException as error:
            # A signal handler of the user's, say. Nobody may launch on a post whose rank has gone away.
            if self._take_back(place, participants, _CELL_ENDED):
                raise
            late = error
        finally:
            self.pending = None
            self._board.want(self._rank, None)
        self._judge(place, participants)
        self._late = late

    def _post(self, fingerprint: int, name: str, participants: tuple[int, ...], line: int | None) -> Place:
        board = self._board
        index = board.index_of(participants)
        board.name_program(fingerprint | 1, name, index, participants)
        self._outwait_older_cell(index, participants)
        with board.locked():
            self._hold_close(index, participants)
            stop = board.interrupted_seq == self._seq
            return board.post(
                self._rank, self._seq, index, fingerprint | 1 if not stop else fingerprint & ~1, line or 0
            )

    def _outwait_older_cell(self, group: int, participants: Sequence[int]) -> None:
        """Let the others end the cell of our last post here: until then they may still have to read it.

        Between cells of the main thread they all have; a thread of the user's may be too early.
        """
        older, _ = self._board.last_post(self._rank, group)
        looks = 0
        while older < self._seq and any(self._board.ended_seq(rank) < older for rank in participants):
            looks += 1
            _pause(looks)

    def _hold_close(self, group: int, participants: Sequence[int]) -> None:
        """Hold that no other rank still has to read the post whose place the next one takes. To be called under the lock.

        Raises:
            OrderMismatch: this rank gave up so many launches that others have yet to come to.
        """
        seq, number = self._board.last_post(self._rank, group)
        if not self._took_back or seq != self._seq or number < 3:
            return
        far = Place(seq, group, number - 2)
        behind = [rank for rank in participants if not self._is_known(rank, far)]
        if behind:
            raise OrderMismatch(format_behind(behind), result=None)

    # -- waiting

    def _wait(self, place: Place, participants: Sequence[int]) -> None:
        """Wait until it is known of each participant whether it comes; or until our own post was taken back."""
        unknown = [rank for rank in participants if rank != self._rank]
        looks = 0
        while unknown := [rank for rank in unknown if not self._is_known(rank, place)]:
            looks += 1
            if looks > _SPINS + _YIELDS:
                if looks == _SPINS + _YIELDS + 1:
                    self._board.want(self._rank, place)
                if self._is_over(place, participants, looks):
                    return
            _pause(looks)

    def _is_known(self, rank: int, place: Place) -> bool:
        # First whether it posted, then whether it ended, then once more: it may have done both in between.
        board = self._board
        if board.has_posted(rank, place):
            return True
        return board.ended_seq(rank) >= place.seq

    def _is_over(self, place: Place, participants: Sequence[int], looks: int) -> bool:
        """Whether our post is taken back, by us or by another."""
        board = self._board
        if board.read(self._rank, place).mark:
            return True
        if self.interrupt_pending:
            return self._take_back(place, participants, _INTERRUPTED)
        if board.ended_seq(self._rank) >= place.seq:
            return self._take_back(place, participants, _CELL_ENDED)
        return looks % _LOOK_AROUND == 0 and self._break_ring(place)

    def _take_back(self, place: Place, participants: Sequence[int], mark: int) -> bool:
        board = self._board
        with board.locked():
            if all(board.has_posted(rank, place) for rank in participants):
                # Too late: somebody may have launched already. The interrupt comes after the launch.
                return False
            board.mark(self._rank, place, mark)
        self._took_back = True
        return True

    def _break_ring(self, place: Place) -> bool:
        """Find a ring of waits that goes through us, and take back the posts of all of it: none of them could ever go on."""
        board = self._board
        if find_ring(board, self._rank, place) is None:
            return False
        with board.locked():
            # Nobody posts or takes back now: what still is a ring will always be one.
            ring = find_ring(board, self._rank, place)
            if ring is None or board.read(self._rank, place).mark:
                return ring is not None
            names = board.program_names()
            waits = {
                rank: (
                    names.get(board.read(rank, at).fingerprint | 1, "a program"),
                    board.read(rank, at).line or None,
                    [other for other in missing(board, at) if other in ring],
                )
                for rank, at in ring.items()
            }
            text = format_ring(waits, place.seq)
            for rank, at in ring.items():
                board.tell_ring(rank, text)
                board.mark(rank, at, _RING)
        return True

    # -- the verdict

    def _judge(self, place: Place, participants: Sequence[int]) -> None:
        board = self._board
        mark = board.read(self._rank, place).mark
        if mark == _RING:
            self._took_back = True
            raise OrderMismatch(board.read_ring(self._rank), result=None)
        if mark == _INTERRUPTED:
            raise self.make_interrupt()
        if mark == _CELL_ENDED:
            raise _CellEndedError(
                "nothing was launched\n  the cell ended while a thread of it waited to launch", result=None
            )
        stands = [self._stand(rank, place) for rank in participants]
        verdict = judge_launch(stands, interrupted=board.interrupted_seq == place.seq)
        if verdict == "interrupt":
            self.agreed_stop = all(stand.fingerprint is not None for stand in stands)
            raise self.make_interrupt()
        if verdict == "mismatch":
            names = board.program_names()
            raise OrderMismatch(
                format_mismatch(stands, names, number=place.number, seq=place.seq, source=self._source), result=None
            )

    def _stand(self, rank: int, place: Place) -> Stand:
        board = self._board
        if not board.has_posted(rank, place):
            return Stand(rank, ending=ENDINGS[board.ending(rank)])
        post = board.read(rank, place)
        if post.mark in (_RING, _CELL_ENDED):
            return Stand(rank, ending="error")
        stopped = post.mark == _INTERRUPTED or not post.fingerprint & 1
        return Stand(rank, post.fingerprint | 1, post.line or None, stopped=stopped)


class _CellEndedError(OrderMismatch):
    """A thread of a cell that has ended: nobody's mismatch, and of no consequence for the next cell."""


class _Held:
    """A lock for the time of a block, or longer where the block says so."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._kept = lock, False

    def keep(self) -> None:
        self._kept = True

    def __enter__(self) -> _Held:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self._lock.release()


def _pause(looks: int) -> None:
    if looks <= _SPINS:
        return
    if looks <= _SPINS + _YIELDS:
        _yield_core()
    else:
        time.sleep(_SHORT_S if looks <= _SPINS + _YIELDS + _SHORT_SLEEPS else _LONG_S)
