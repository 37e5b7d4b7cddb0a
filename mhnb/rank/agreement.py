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
from collections.abc import Sequence

from mhnb.core.agreement import ENDINGS, MARKS, Stand, format_mismatch, format_outside, format_ring, judge_launch
from mhnb.core.guard import communicates
from mhnb.errors import OrderMismatch
from mhnb.rank.board import Board, Place
from mhnb.values import Outcome

__all__ = ["Agreement"]

_SPINS, _YIELDS, _SHORT_SLEEPS = 20, 50, 400
"""Looks before each next slower kind of pause: the others are mostly there at once, and must get the core otherwise."""
_SHORT_S, _LONG_S = 50e-6, 2e-3
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
        self.inside = False
        """The main thread is between its post and the end of its launch: an interrupt must wait."""
        self.interrupt_pending = False
        """One waits."""
        self._failure: OrderMismatch | None = None
        self._busy: set[int] = set()
        """Threads other than the main one that are about to launch."""
        self.pending: tuple[str, tuple[int, ...], int | None] | None = None
        """What is posted and not yet decided: name, participants, line of the cell."""
        self.agreed_stop = False
        """All participants of a launch stopped before it together."""

    # -- cells

    def begin_cell(self, seq: int, source: str, guard: str, chosen: Sequence[int] | None) -> None:
        """A cell begins; `chosen` are the ranks that run it, None for all."""
        self._seq, self._source, self._guard = seq, source, guard
        self._chosen = None if chosen is None else tuple(chosen)
        self.interrupt_pending = self.agreed_stop = False

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
        """Agree on a launch. After True the launch must be made at once, and then `leave` be called.

        Returns:
            False where there is nothing to agree on: no lockstep, or a program that never communicates.

        Raises:
            OrderMismatch: the participants do not want the same launch; none of them makes it.
            KeyboardInterrupt: the cell was asked to stop; if the others came as far, all stop here.
        """
        if self._guard != "lockstep" or not communicates(fingerprint):
            return False
        if threading.current_thread() is not self._main:
            return self._enter_from_thread(fingerprint, name, participants, line)
        self.inside = True
        try:
            with _Held(self._turn) as held:
                self.agree(fingerprint, name, participants, line)
                held.keep()
        except BaseException as error:
            pending, self.inside, self.interrupt_pending = self.interrupt_pending, False, False
            if pending and not isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise
        return True

    def _enter_from_thread(self, fingerprint: str, name: str, participants: tuple[int, ...], line: int | None) -> bool:
        self._busy.add(threading.get_ident())
        try:
            with _Held(self._turn) as held:
                self.agree(fingerprint, name, participants, line)
                held.keep()
        except BaseException as error:
            if isinstance(error, OrderMismatch):
                self._failure = self._failure or error
            self._busy.discard(threading.get_ident())
            raise
        return True

    def leave(self) -> None:
        """The launch is made, and noted."""
        self._turn.release()
        self._busy.discard(threading.get_ident())

    def is_busy(self) -> bool:
        """Whether a thread of the user's is about to launch."""
        return bool(self._busy)

    def take_failure(self) -> OrderMismatch | None:
        """What was raised in a thread of the user's: it fails the cell too."""
        failure, self._failure = self._failure, None
        return failure

    def settle(self) -> None:
        """After a launch: on the main thread an interrupt that waited comes now.

        Raises:
            KeyboardInterrupt: one did.
        """
        if not self.inside or threading.current_thread() is not self._main:
            return
        pending, self.inside, self.interrupt_pending = self.interrupt_pending, False, False
        if pending:
            raise KeyboardInterrupt

    def agree(self, fingerprint: str, name: str, participants: tuple[int, ...], line: int | None) -> None:
        """Post, wait and judge, as `enter` says. A look at this rank's stack knows the wait by this function's name."""
        if self._chosen is not None and not set(participants) <= set(self._chosen):
            raise OrderMismatch(format_outside(name, participants, self._chosen), result=None)
        if self.interrupt_pending:
            raise KeyboardInterrupt
        place = self._post(int(fingerprint, 16) & ~(1 << 63), name, participants, line)
        self.pending = name, participants, line
        try:
            self._wait(place, participants)
        finally:
            self.pending = None
            self._board.want(self._rank, None)
        self._judge(place, participants)

    def _post(self, fingerprint: int, name: str, participants: tuple[int, ...], line: int | None) -> Place:
        board = self._board
        index = board.index_of(participants)
        board.name_program(fingerprint | 1, name, index, participants)
        with board.locked():
            stop = board.interrupted_seq == self._seq
            return board.post(
                self._rank, self._seq, index, fingerprint | 1 if not stop else fingerprint & ~1, line or 0
            )

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
        return True

    def _break_ring(self, place: Place) -> bool:
        """Find a ring of waits that goes through us, and take back the posts of all of it: none of them could ever go on."""
        board = self._board
        if self._find_ring(place) is None:
            return False
        with board.locked():
            # Nobody posts or takes back now: what still is a ring will always be one.
            ring = self._find_ring(place)
            if ring is None or board.read(self._rank, place).mark:
                return ring is not None
            names = board.program_names()
            waits = {
                rank: (
                    names.get(board.read(rank, at).fingerprint | 1, "a program"),
                    board.read(rank, at).line or None,
                    [other for other in self._missing(at) if other in ring],
                )
                for rank, at in ring.items()
            }
            text = format_ring(waits, place.seq)
            for rank, at in ring.items():
                board.tell_ring(rank, text)
                board.mark(rank, at, _RING)
        return True

    def _find_ring(self, place: Place) -> dict[int, Place] | None:
        """The ranks that wait for each other, ourselves among them, with their places."""
        waits = self._waits_from(self._rank, place)
        reachable = {rank: self._reach(rank, waits) for rank in waits}
        ring = {
            rank: waits[rank][0] for rank in waits if self._rank in reachable[rank] and rank in reachable[self._rank]
        }
        return ring if self._rank in ring else None

    def _waits_from(self, rank: int, place: Place) -> dict[int, tuple[Place, list[int]]]:
        """Who waits at which place for whom, as far as it can be reached from one rank."""
        found: dict[int, tuple[Place, list[int]]] = {}
        pending = [(rank, place)]
        while pending:
            rank, at = pending.pop()
            missing = self._missing(at)
            found[rank] = (at, missing)
            for other in missing:
                wanted = self._board.wanted(other, place.seq)
                if other not in found and wanted is not None and self._board.has_posted(other, wanted):
                    pending.append((other, wanted))
        return found

    def _missing(self, place: Place) -> list[int]:
        board = self._board
        ranks = board.participants_of(place.group)
        return [rank for rank in ranks if not board.has_posted(rank, place) and board.ended_seq(rank) < place.seq]

    @staticmethod
    def _reach(rank: int, waits: dict[int, tuple[Place, list[int]]]) -> set[int]:
        seen: set[int] = set()
        pending = list(waits[rank][1])
        while pending:
            other = pending.pop()
            if other not in seen:
                seen.add(other)
                pending += waits[other][1] if other in waits else []
        return seen

    # -- the verdict

    def _judge(self, place: Place, participants: Sequence[int]) -> None:
        board = self._board
        mark = board.read(self._rank, place).mark
        if mark == _RING:
            raise OrderMismatch(board.read_ring(self._rank), result=None)
        if mark == _INTERRUPTED:
            raise KeyboardInterrupt
        if mark == _CELL_ENDED:
            raise OrderMismatch(
                "nothing was launched\n  the cell ended while a thread of it waited to launch", result=None
            )
        stands = [self._stand(rank, place) for rank in participants]
        verdict = judge_launch(stands, interrupted=board.interrupted_seq == place.seq)
        if verdict == "interrupt":
            self.agreed_stop = all(stand.fingerprint is not None for stand in stands)
            raise KeyboardInterrupt
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
        os.sched_yield() if hasattr(os, "sched_yield") else time.sleep(0)
    else:
        time.sleep(_SHORT_S if looks <= _SPINS + _YIELDS + _SHORT_SLEEPS else _LONG_S)
