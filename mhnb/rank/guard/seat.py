"""A rank's seat at the board: it posts what the rank is about to launch, and finds out what becomes of that.

It looks and never waits: who sits there decides how to pass the time. Ranks of the board's own machine sit there
themselves; for a rank of another one the delegate does, so that there is one way to agree.

A post can be taken back only while another participant has not posted, under the board's lock, which posting needs too:
so nobody launches on the strength of a post that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from mhnb.rank.guard.board import Board, Place, Post
from mhnb.rank.guard.rings import find_ring, missing

__all__ = ["CELL_ENDED", "INTERRUPTED", "QUICK_LOOKS", "Seat", "lose"]

QUICK_LOOKS = 70
"""Looks that come so fast after each other that nothing but the others' posts is looked for."""
_LOOK_AROUND = 64
"""Looks between two searches for a ring of waits."""
INTERRUPTED, _RING, CELL_ENDED, _LOST = (MARKS.index(mark) for mark in ("interrupted", "ring", "cell ended", "lost"))
_HANDLES = 1 << 63
"""Beside the fingerprint, which is less: the post is of a rank that handles the cell's interrupt."""
_DIED = ENDINGS.index("died")
_CELL_OVER = Verdict("cell ended")


def lose(board: Board, rank: int) -> None:
    """Have nobody wait for a rank any more, in a launch of now or a later one: it is gone, and with it whoever sat here for it."""
    board.want(rank, None)
    with board.locked():
        for group in range(board.set_count):
            seq, number = board.last_post(rank, group)
            place, members = Place(seq, group, number), board.participants_of(group)
            if number and not board.read(rank, place).mark and not all(board.has_posted(r, place) for r in members):
                board.mark(rank, place, _LOST)
        board.lose(rank, _DIED)


class Seat:
    """One rank's; it takes one wish at a time: `post` until it says yes, `look` until it says yes, `judge`, `rest`."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self._rank = board, rank
        self.looks = 0
        """So often has been looked since the post."""
        self._participants: tuple[int, ...] = ()
        self._place: Place | None = None
        self._unknown: list[int] = []
        self._behind: list[int] = []
        self._verdict: Verdict | None = None
        """What has been decided without a look: before the post, or when the cell ended."""
        self._took_back_in = 0
        """The cell in which a post was last taken back here."""

    def post(self, wish: Wish) -> bool:
        """Say what the rank is about to launch; false while that is too early.

        It is while another has not ended the cell of our last post here: until then it may still have to read it.
        Between cells of the main thread all have; a thread of the user's may be too early.
        One whose own cell has ended is too late: the others have been told that nothing comes from here in it.

        Raises:
            OSError: the program's name could not be noted.
        """
        board, rank, participants = self.board, self._rank, wish.participants
        self._place, self._verdict, self._behind = None, None, []
        try:
            index = board.index_of(participants)
        except OverflowError as error:
            self._verdict = Verdict("refused", text=str(error))
            return True
        board.name_program(wish.fingerprint, wish.name, index, participants)
        if wish.thread_label:
            board.name_thread(kind_of(wish.thread), wish.thread_label)
        older, _ = board.last_post(rank, index)
        if older < wish.seq and any(board.ended_seq(other) < older for other in participants):
            # Unless the cell of the wish has ended meanwhile: then it is not to be posted at all.
            return self._is_too_late(wish)
        with board.locked():
            if self._is_too_late(wish):
                return True
            self._behind = self._find_behind(index, wish)
            if not self._behind:
                stop = board.interrupted_seq == wish.seq and not wish.handles
                fingerprint = (wish.fingerprint & ~1 if stop else wish.fingerprint) | (_HANDLES if wish.handles else 0)
                # Known before it stands there: an exception out of a signal handler may come in between.
                place = board.next_place(rank, wish.seq, index)
                self._place, self._participants = place, participants
                board.post(rank, place, Post(fingerprint, _pack_lines(wish.lines), 0, wish.origin, wish.thread))
        self._unknown = [other for other in participants if other != rank]
        self.looks = 0
        return True

    def _is_too_late(self, wish: Wish) -> bool:
        if self.board.ended_seq(self._rank) < wish.seq:
            return False
        self._verdict = _CELL_OVER
        return True

    def end_cell(self, seq: int, ending: int) -> None:
        """Say that the rank's cell has ended; what a thread of it has posted is decided before the others hear of that.

        Once they have, their next posts may take the places that the thread would still have to read.
        """
        board = self.board
        with board.locked():
            # Not before: until the lock is ours the thread may be done with one wish, and have posted the next.
            place = self._place
            if place is not None and self._verdict is None and board.has_posted(self._rank, place):
                if all(board.has_posted(rank, place) for rank in self._participants):
                    self._verdict = self._decide(place)
                elif not board.read(self._rank, place).mark:
                    board.mark(self._rank, place, CELL_ENDED)
            board.end_cell(self._rank, seq, ending)

    def _find_behind(self, group: int, wish: Wish) -> list[int]:
        """Who still has to read the post whose place the next one takes. To be called under the lock."""
        seq, number = self.board.last_post(self._rank, group)
        if self._took_back_in != wish.seq or seq != wish.seq or number < 3:
            return []
        far = Place(seq, group, number - 2)
        return [rank for rank in wish.participants if not self._is_known(rank, far)]

    # -- looking

    def look(self, *, interrupted: bool) -> bool:
        """Whether it is known of each participant whether it comes, or our post was taken back.

        Args:
            interrupted: this rank has been interrupted, and takes its post back if it can.
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
        # First whether it posted, then whether it ended, then once more: it may have done both in between.
        board = self.board
        if board.has_posted(rank, place):
            return True
        return board.ended_seq(rank) >= place.seq

    def _is_over(self, place: Place, *, interrupted: bool) -> bool:
        """Whether our post is taken back, by us or by another."""
        board = self.board
        if board.read(self._rank, place).mark:
            return True
        if interrupted:
            return self.take_back(INTERRUPTED)
        if board.ended_seq(self._rank) >= place.seq:
            return self.take_back(CELL_ENDED)
        return self.looks % _LOOK_AROUND == 0 and self._break_ring(place)

    def take_back(self, mark: int) -> bool:
        """Take the post back; false where all have posted and somebody may have launched already."""
        board, place = self.board, self._place
        if place is None:
            return True
        with board.locked():
            if not board.has_posted(self._rank, place):
                return True
            if self._verdict is not None:
                return self._verdict.kind != "launch"
            if not board.read(self._rank, place).mark:
                if all(board.has_posted(rank, place) for rank in self._participants):
                    return False
                board.mark(self._rank, place, mark)
        self._took_back_in = place.seq
        return True

    def _break_ring(self, place: Place) -> bool:
        """Find a ring of waits that goes through us, and take back the posts of all of it: none of them could ever go on."""
        board = self.board
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
                    names.get(_program_of(board.read(rank, at)), "a program"),
                    next(iter(_unpack_lines(board.read(rank, at).line)), None),
                    [other for other in missing(board, at) if other in ring],
                )
                for rank, at in ring.items()
            }
            text = format_ring(waits, place.seq)
            for rank, at in ring.items():
                board.tell_ring(rank, text)
                board.mark(rank, at, _RING)
        return True

    def rest(self) -> None:
        """Say that this rank no longer waits."""
        self.board.want(self._rank, None)

    def forget(self) -> None:
        """Be done with a wish: what comes before the next post is not about this one."""
        self._place, self._verdict, self._behind = None, None, []

    # -- the verdict

    def judge(self) -> Verdict:
        """Say what all participants do, once `look` has said that it is known."""
        place = self._place
        # What was seen by now was written before; what is read from here on is no older.
        self.board.fence()
        if self._verdict is not None:
            return self._verdict
        if place is None:
            return self._keep(Verdict("behind", text=format_behind(self._behind)))
        if all(self.board.has_posted(rank, place) for rank in self._participants):
            # Nobody takes anything back any more.
            return self._keep(self._decide(place))
        with self.board.locked():
            return self._keep(self._decide(place))

    def _keep(self, verdict: Verdict) -> Verdict:
        """Keep a verdict, unless the cell has ended meanwhile: the others may have gone on, and its end has decided."""
        if self._verdict is None:
            self._verdict = verdict
        return self._verdict

    def _decide(self, place: Place) -> Verdict:
        board = self.board
        mark = board.read(self._rank, place).mark
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
            # Before the same launch, that is: else they may be at different places in the cell.
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
        """Say what programs differ in that have one name and one shape."""
        known = list(names.values())
        alike = [key for key, name in names.items() if known.count(name) > 1]
        outlines = {key: unpack_outline(self.board.program_outline(key)) for key in sorted(alike)}
        found = {key: outline for key, outline in outlines.items() if outline is not None}
        return find_differences(found) if len(found) > 1 else {}

    def _stand(self, rank: int, place: Place) -> Stand:
        board = self.board
        if not board.has_posted(rank, place):
            return Stand(rank, ending=ENDINGS[board.ending(rank)])
        post = board.read(rank, place)
        if post.mark in (_RING, CELL_ENDED):
            return Stand(rank, ending="error")
        if post.mark == _LOST:
            return Stand(rank, ending="died")
        stopped = post.mark == INTERRUPTED or not post.fingerprint & 1
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


def _program_of(post: Post) -> int:
    return post.fingerprint & ~_HANDLES | 1


def _pack_lines(lines: Sequence[int]) -> int:
    """Write the lines of a launch as one word, the innermost in its lowest part."""
    return sum(line * LINE_LIMIT**at for at, line in enumerate(lines))


def _unpack_lines(word: int) -> tuple[int, ...]:
    """Read them.

    >>> _unpack_lines(_pack_lines((7, 2, 40)))
    (7, 2, 40)
    """
    lines = (word // LINE_LIMIT**at % LINE_LIMIT for at in range(MOST_LINES))
    return tuple(line for line in lines if line)
