"""Agreement on a launch through the shared board of this host: a rank posts a proposal, and finds out what was decided.

A rank on the board's host uses the board itself (`BoardTable`). A rank on another host has a `RemoteTable`, and the agreement server
has a `Seat` for it. So there is one way to agree. A `Seat` polls and never waits: its caller waits.

A proposal can be withdrawn only while another participant has not posted, under the board's lock. Posting needs that lock, too. So no
rank launches because of a proposal that was withdrawn. The common launch is decided without the lock, from entries that prove
themselves, see `shared_board`. Everything else is decided under the lock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from mhnb.core.guard.agreement import (
    ENDINGS,
    LINE_LIMIT,
    MARKS,
    MOST_LINES,
    Stand,
    format_behind,
    format_ring,
    judge_launch,
    want_the_same,
)
from mhnb.core.guard.outlines import find_differences, unpack_outline
from mhnb.core.guard.threads import kind_of
from mhnb.core.guard.wishes import LAUNCH, Verdict, Wish
from mhnb.rank.guard.shared_board import Board, Place, Post, yield_core

__all__ = [
    "BoardTable",
    "CELL_ENDED",
    "INTERRUPTED",
    "LONG_S",
    "QUICK_LOOKS",
    "SHORT_SLEEPS",
    "Seat",
    "Table",
    "insist",
    "lose",
    "pause",
]

_Given = TypeVar("_Given")

QUICK_LOOKS = 70
"""Polls that follow so fast on each other that they check only the proposals of the others."""
_LOOK_AROUND = 64
"""Polls between two searches for a deadlock."""
INTERRUPTED, _RING, CELL_ENDED, _LOST = (MARKS.index(mark) for mark in ("interrupted", "ring", "cell ended", "lost"))
_HANDLES = 1 << 63
"""Flag beside the fingerprint, which is smaller: the entry is of a rank that handles the cell's interrupt."""
_DIED = ENDINGS.index("died")
_CELL_OVER = Verdict("cell ended")
_SPINS, SHORT_SLEEPS = 20, 400
"""Polls before each next slower kind of pause: the others mostly arrive at once, and otherwise must get the core."""
_SHORT_S, LONG_S = 50e-6, 2e-3


class Table(Protocol):
    """Backend through which one rank proposes launches and receives decisions. One proposal at a time."""

    @property
    def interrupted_seq(self) -> int:
        """The latest cell that was asked to stop on this host; 0 if there is none."""

    def end_cell(self, seq: int, ending: int) -> None:
        """Notify the others that this rank is done with a cell. Never raises because a connection is lost."""

    def describe(self, fingerprint: int, outline: str) -> None:
        """Record the outline of a program, for the text of a mismatch. From any thread."""

    def ask(self, wish: Wish) -> None:
        """Make a proposal."""

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Wait for the decision.

        Args:
            interrupted: called repeatedly; returns whether to withdraw the proposal, if it is not too late.

        Raises:
            BaseException: an exception that a user's signal handler raised meanwhile; then `take_back` is called.
        """

    def take_back(self) -> bool:
        """Withdraw the proposal; return False if it is too late, and a decision exists or will come that must be followed.

        `ask` may have been interrupted anywhere, even before it began: then there is nothing to withdraw.
        """

    def rest(self) -> None:
        """Stop waiting. Called however the wait ended."""

    def answer(self) -> Verdict:
        """Return the decision."""

    def let_go(self) -> None:
        """Release what a forked child of the rank must not hold."""


class BoardTable:
    """Backend of a rank on the host of the board.

    Args:
        board: shared with every other rank of this machine.
        rank: this rank.
    """

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank, self._seat = board, rank, Seat(board, rank)

    @property
    def interrupted_seq(self) -> int:
        """The cell that the supervisor has written on the board."""
        return self._board.interrupted_seq

    def end_cell(self, seq: int, ending: int) -> None:
        """Write the end of the cell on the board."""
        self._seat.end_cell(seq, ending)

    def describe(self, fingerprint: int, outline: str) -> None:
        """Write the outline beside the board."""
        self._board.describe_program(fingerprint, outline)

    def ask(self, wish: Wish) -> None:
        """Post the proposal as soon as the others no longer need the entry that it overwrites."""
        looks = 0
        while not self._seat.post(wish):
            looks += 1
            pause(looks)

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Poll until the launch is decided."""
        seat = self._seat
        while not seat.look(interrupted=interrupted()):
            pause(seat.looks)

    def take_back(self) -> bool:
        """Withdraw the proposal while another participant has not posted."""
        done = insist(self._take_back_once)
        if done:
            self._seat.forget()
        return done

    def _take_back_once(self) -> bool:
        return self._seat.take_back(CELL_ENDED)

    def rest(self) -> None:
        """Mark this rank as no longer waiting."""
        self._seat.rest()

    def answer(self) -> Verdict:
        """Decide from the proposals of all participants."""
        verdict = self._seat.judge()
        self._seat.forget()
        return verdict

    def let_go(self) -> None:
        """Do nothing: a child may keep the memory, because it does not launch."""


def insist(act: Callable[[], _Given]) -> _Given:
    """Call an action that must complete, again each time a user's signal handler raises in the middle of it; report that."""
    again: BaseException | None = None
    while True:
        try:
            given = act()
            break
        except BaseException as error:  # noqa: BLE001 - reported below; the caller raises the first exception
            again = error
    if again is not None:
        print(f"mhnb: {again!r} came while a launch was given up for the exception before it", file=sys.stderr)
    return given


def pause(looks: int) -> None:
    """Give the others time between two polls, the longer the more polls there were."""
    if looks <= _SPINS:
        return
    if looks <= QUICK_LOOKS:
        yield_core()
    else:
        time.sleep(_SHORT_S if looks <= QUICK_LOOKS + SHORT_SLEEPS else LONG_S)


def lose(board: Board, rank: int) -> None:
    """Mark a rank as lost so that no other rank waits for it in this or any later launch.

    Whatever acted for the rank at this board is gone with it.
    """
    board.want(rank, None)
    with board.locked():
        for group in range(board.set_count):
            seq, number = board.last_post(rank, group)
            place, members = Place(seq, group, number), board.participants_of(group)
            if number and not board.mark_of(rank, place) and not all(board.has_posted(r, place) for r in members):
                board.mark(rank, place, _LOST)
        board.lose(rank, _DIED)


class Seat:
    """One rank's participation, one proposal at a time: `post` until true, `look` until true, `judge`, `rest`."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self._rank = board, rank
        self.looks = 0
        """How many polls there were since the post."""
        self._participants: tuple[int, ...] = ()
        self._place: Place | None = None
        self._unknown: list[int] = []
        self._behind: list[int] = []
        self._verdict: Verdict | None = None
        """The decision, if made; also one made without a poll, before the post or when the cell ended."""
        self._took_back_in = 0
        """The cell in which this rank last withdrew a proposal."""

    def post(self, wish: Wish) -> bool:
        """Post what the rank is about to launch; return False while that is too early.

        It is too early while another participant has not ended the cell of this rank's last entry in the set, because it may still
        have to read that entry. Between cells of the main thread all have ended it; a user's thread may be too early. A proposal whose
        own cell has ended is too late: the others have been notified that this rank makes no more in it.

        Raises:
            OSError: the program's name could not be recorded, or there is no room for another set of participants.
        """
        board, rank, participants = self.board, self._rank, wish.participants
        self._place, self._verdict, self._behind = None, None, []
        index = board.index_of(participants)
        board.name_program(wish.fingerprint, wish.name, index, participants)
        if wish.thread_label:
            board.name_thread(kind_of(wish.thread), wish.thread_label)
        older, _ = board.last_post(rank, index)
        if older < wish.seq and any(board.ended_seq(other) < older for other in participants):
            # Unless the cell of the proposal has ended meanwhile: then it must not be posted at all.
            return self._is_too_late(wish)
        with board.locked():
            if self._is_too_late(wish):
                return True
            self._behind = self._find_behind(index, wish)
            if not self._behind:
                stop = board.interrupted_seq == wish.seq and not wish.handles
                fingerprint = (wish.fingerprint & ~1 if stop else wish.fingerprint) | (_HANDLES if wish.handles else 0)
                # Set before the entry is written: an exception out of a signal handler may come in between.
                place = board.next_place(rank, wish.seq, index)
                self._place, self._participants = place, participants
                board.post(rank, place, Post(fingerprint, wish.origin, wish.thread, _pack_lines(wish.lines)))
        self._unknown = [other for other in participants if other != rank]
        self.looks = 0
        return True

    def _is_too_late(self, wish: Wish) -> bool:
        if self.board.ended_seq(self._rank) < wish.seq:
            return False
        self._verdict = _CELL_OVER
        return True

    def end_cell(self, seq: int, ending: int) -> None:
        """Record that the rank's cell has ended, after deciding what a thread of it has posted.

        Once the others know of the end, their next entries may overwrite those that the thread would still have to read.
        """
        board = self.board
        with board.locked():
            # Not before: until the lock is held, the thread may finish one proposal and post the next.
            place = self._place
            if place is not None and self._verdict is None and board.has_posted(self._rank, place):
                if all(board.has_posted(rank, place) for rank in self._participants):
                    self._verdict = self._decide(place)
                elif not board.mark_of(self._rank, place):
                    board.mark(self._rank, place, CELL_ENDED)
            board.end_cell(self._rank, seq, ending)

    def _find_behind(self, group: int, wish: Wish) -> list[int]:
        """Return the ranks that still have to read the entry whose slot the next one takes. To be called under the lock."""
        seq, number = self.board.last_post(self._rank, group)
        if self._took_back_in != wish.seq or seq != wish.seq or number < 3:
            return []
        far = Place(seq, group, number - 2)
        return [rank for rank in wish.participants if not self._is_known(rank, far)]

    # -- polling

    def look(self, *, interrupted: bool) -> bool:
        """Return whether it is known of each participant whether it comes, or this rank's proposal was withdrawn.

        Args:
            interrupted: this rank has been interrupted, and withdraws its proposal if it can.
        """
        place = self._place
        if place is None or self._verdict is not None:
            return True
        self._unknown = [rank for rank in self._unknown if not self._is_known(rank, place)]
        if not self._unknown:
            return True
        self.looks += 1
        if self.looks <= QUICK_LOOKS:
            return False
        if self.looks == QUICK_LOOKS + 1:
            self.board.want(self._rank, place)
        return self._is_over(place, interrupted=interrupted)

    def _is_known(self, rank: int, place: Place) -> bool:
        # It may post and end between the two reads: then it is known by its end.
        board = self.board
        if board.has_posted(rank, place):
            return True
        return board.ended_seq(rank) >= place.seq

    def _is_over(self, place: Place, *, interrupted: bool) -> bool:
        """Return whether this rank's proposal is withdrawn, by this rank or by another."""
        board = self.board
        if board.mark_of(self._rank, place):
            return True
        if interrupted:
            return self.take_back(INTERRUPTED)
        if board.ended_seq(self._rank) >= place.seq:
            return self.take_back(CELL_ENDED)
        return self.looks % _LOOK_AROUND == 0 and self._break_ring(place)

    def take_back(self, mark: int) -> bool:
        """Withdraw the proposal; return False if all have posted and a rank may have launched already."""
        board, place = self.board, self._place
        if place is None:
            return True
        with board.locked():
            if not board.has_posted(self._rank, place):
                return True
            if self._verdict is not None:
                return self._verdict.kind != "launch"
            if not board.mark_of(self._rank, place):
                if all(board.has_posted(rank, place) for rank in self._participants):
                    return False
                board.mark(self._rank, place, mark)
        self._took_back_in = place.seq
        return True

    def _break_ring(self, place: Place) -> bool:
        """Find a deadlock that includes this rank, and withdraw the proposals of all its ranks: none of them could ever proceed."""
        board = self.board
        if _find_ring(board, self._rank, place) is None:
            return False
        with board.locked():
            # No rank posts or withdraws now: what is still a deadlock will always be one.
            ring = _find_ring(board, self._rank, place)
            if ring is None or board.mark_of(self._rank, place):
                return ring is not None
            names = board.program_names()
            posts = {rank: (at, _read_posted(board, rank, at)) for rank, at in ring.items()}
            waits = {
                rank: (
                    names.get(_program_of(post), "a program"),
                    next(iter(_unpack_lines(post.line)), None),
                    [other for other in _missing(board, at) if other in ring],
                )
                for rank, (at, post) in posts.items()
            }
            text = format_ring(waits, place.seq)
            for rank, at in ring.items():
                board.tell_ring(rank, text)
                board.mark(rank, at, _RING)
        return True

    def rest(self) -> None:
        """Mark this rank as no longer waiting."""
        self.board.want(self._rank, None)

    def forget(self) -> None:
        """Forget the proposal: calls before the next post do not concern it."""
        self._place, self._verdict, self._behind = None, None, []

    # -- the decision

    def judge(self) -> Verdict:
        """Return the decision of all participants, once `look` has returned true."""
        place = self._place
        if (decided := self._verdict) is not None:
            return decided
        if place is None:
            return self._keep(Verdict("behind", text=format_behind(self._behind)))
        if self._all_want_the_same(place):
            return self._keep(LAUNCH)
        with self.board.locked():
            # What the end of the cell has decided meanwhile stands: the others' next entries may overwrite these.
            return self._verdict or self._keep(self._decide(place))

    def _all_want_the_same(self, place: Place) -> bool:
        """Return whether every participant's entry can be read, is not withdrawn, and equals this rank's except for its lines."""
        board = self.board
        own = board.read(self._rank, place)
        if own is None or own.taken_back or not own.fingerprint & 1:
            return False
        for rank in self._participants:
            post = board.read(rank, place)
            # Any participant that posted before the last one could have withdrawn; the last one's entry records that.
            if post is None or post.taken_back or post[:3] != own[:3]:
                return False
        return True

    def _keep(self, verdict: Verdict) -> Verdict:
        """Store a decision, unless the end of the cell has decided meanwhile, because the others may have gone on."""
        if self._verdict is None:
            self._verdict = verdict
        return self._verdict

    def _decide(self, place: Place) -> Verdict:
        """Decide from everything that was written. To be called under the lock."""
        board = self.board
        mark = board.mark_of(self._rank, place)
        if mark == _RING:
            self._took_back_in = place.seq
            return Verdict("ring", text=board.read_ring(self._rank))
        if mark == INTERRUPTED:
            return Verdict("interrupt")
        if mark:
            return _CELL_OVER
        stands = [self._stand(rank, place) for rank in self._participants]
        verdict = judge_launch(stands, interrupted=board.interrupted_seq == place.seq)
        if verdict == "interrupt":
            # Agreed means before the same launch: otherwise the ranks may be at different places in the cell.
            agreed = want_the_same(stands) and len({stand.handles for stand in stands}) == 1
            return Verdict("interrupt", agreed=agreed)
        if verdict == "again":
            return Verdict("again", stands=tuple(stands))
        return LAUNCH if verdict == "launch" else self._mismatch(stands, place)

    def _mismatch(self, stands: Sequence[Stand], place: Place) -> Verdict:
        wanted = {stand.fingerprint for stand in stands}
        names = {key: name for key, name in self.board.program_names().items() if key in wanted}
        kinds = {kind_of(stand.thread) for stand in stands}
        return Verdict(
            "mismatch",
            number=place.number,
            stands=tuple(stands),
            names=names,
            differences=self._find_differences(names),
            threads={kind: label for kind, label in self.board.thread_labels().items() if kind in kinds},
        )

    def _find_differences(self, names: Mapping[int, str]) -> dict[int, str]:
        """Return what differs between programs that have one name and one shape, by fingerprint."""
        known = list(names.values())
        alike = [key for key, name in names.items() if known.count(name) > 1]
        outlines = {key: unpack_outline(self.board.program_outline(key)) for key in sorted(alike)}
        found = {key: outline for key, outline in outlines.items() if outline is not None}
        return find_differences(found) if len(found) > 1 else {}

    def _stand(self, rank: int, place: Place) -> Stand:
        board = self.board
        if not board.has_posted(rank, place):
            return Stand(rank, ending=ENDINGS[board.ending(rank)])
        post, mark = _read_posted(board, rank, place), board.mark_of(rank, place)
        if mark in (_RING, CELL_ENDED):
            return Stand(rank, ending="error")
        if mark == _LOST:
            return Stand(rank, ending="died")
        stopped = mark == INTERRUPTED or not post.fingerprint & 1
        handles = bool(post.fingerprint & _HANDLES)
        return Stand(
            rank,
            _program_of(post),
            _unpack_lines(post.line),
            stopped=stopped,
            handles=handles,
            origin=post.origin,
            thread=post.thread,
        )


def _read_posted(board: Board, rank: int, place: Place) -> Post:
    """Read an entry that exists, under the lock."""
    post = board.read(rank, place)
    assert post is not None, f"rank {rank} has no post at {place}"
    return post


def _program_of(post: Post) -> int:
    return post.fingerprint & ~_HANDLES | 1


def _pack_lines(lines: Sequence[int]) -> int:
    """Pack the lines of a launch into one word, the innermost in its lowest part."""
    return sum(line * LINE_LIMIT**at for at, line in enumerate(lines))


def _unpack_lines(word: int) -> tuple[int, ...]:
    """Unpack the lines of a launch.

    >>> _unpack_lines(_pack_lines((7, 2, 40)))
    (7, 2, 40)
    """
    lines = (word // LINE_LIMIT**at % LINE_LIMIT for at in range(MOST_LINES))
    return tuple(line for line in lines if line)


def _find_ring(board: Board, rank: int, place: Place) -> dict[int, Place] | None:
    """Return the ranks of a deadlock through a rank that waits at a slot, with their slots; None if there is none."""
    waits = _waits_from(board, rank, place)
    reached = {other: _reach(other, waits) for other in waits}
    ring = {other: at for other, (at, _) in waits.items() if rank in reached[other] and other in reached[rank]}
    return ring if rank in ring else None


def _missing(board: Board, place: Place) -> list[int]:
    """Return the ranks that have neither reached a slot nor ended the cell."""
    ranks = board.participants_of(place.group)
    return [rank for rank in ranks if not board.has_posted(rank, place) and board.ended_seq(rank) < place.seq]


def _waits_from(board: Board, rank: int, place: Place) -> dict[int, tuple[Place, list[int]]]:
    """Return which ranks wait at which slot for which ranks, as far as can be reached from one rank."""
    found: dict[int, tuple[Place, list[int]]] = {}
    pending = [(rank, place)]
    while pending:
        waiter, at = pending.pop()
        absent = _missing(board, at)
        found[waiter] = (at, absent)
        for other in absent:
            wanted = board.wanted(other, place.seq)
            if other not in found and wanted is not None and _waits(board, other, wanted):
                pending.append((other, wanted))
    return found


def _waits(board: Board, rank: int, place: Place) -> bool:
    return board.has_posted(rank, place) and not board.mark_of(rank, place)


def _reach(rank: int, waits: Mapping[int, tuple[Place, list[int]]]) -> set[int]:
    seen: set[int] = set()
    pending = list(waits[rank][1])
    while pending:
        other = pending.pop()
        if other not in seen:
            seen.add(other)
            pending += waits[other][1] if other in waits else []
    return seen
