"""Every order in which the ranks of one board post, poll, decide, withdraw and end: all of them launch, or none does.

Ranks are coroutines here; between two reads of the board another one may act. A state that was seen before is not followed
again, so all orders are tried. JAX is not used.

In the second half of the tests each rank has a copy of the board: without the lock it sees there what has arrived, word by word.
A processor that reorders reads and writes guarantees this much, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from greenlet import greenlet

from mhnb.core.guard.agreement import ENDINGS, LaunchProposal
from mhnb.core.guard.provenance import ANY, combine_values, join_uncompared_blocks
from mhnb.rank.guard.local_agreement import CELL_ENDED, FAST_POLLS, Participant
from mhnb.rank.guard.shared_board import BoardSlot, Entry, SharedBoard, create_board

pytestmark = pytest.mark.slow

OK = ENDINGS.index("ok")
MOST_RANKS = 3


class SteppedBoard(SharedBoard):
    """A board at which another rank may act before each read, and before each time the lock is taken."""

    step: Callable[[], None]
    record_read: Callable[[object], None]
    locks = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        self.step()
        with super().locked():
            self.locks = True
            try:
                yield
            finally:
                self.locks = False

    def parts(self) -> tuple[memoryview, ...]:
        """Return all words that the ranks use: those of the head except the constant ones, and those of each set of ranks."""
        return self._words[: self._rank_offset(MOST_RANKS)], *map(self._set_words, self._participants_by_index)

    def content(self) -> bytes:
        """Return the contents of these words."""
        return b"".join(map(bytes, self.parts()))

    def _record(self, found: Any) -> Any:
        if not self.locks:
            self.record_read(found)
        return found

    def _pause(self) -> None:
        if not self.locks:
            self.step()

    @property
    def interrupted_seq(self) -> int:
        self._pause()
        return int(self._record(super().interrupted_seq))

    def last_entry(self, rank: int, set_index: int) -> tuple[int, int]:
        self._pause()
        found: tuple[int, int] = self._record(super().last_entry(rank, set_index))
        return found

    def ended_seq(self, rank: int) -> int:
        self._pause()
        return int(self._record(super().ended_seq(rank)))

    def has_reached(self, rank: int, slot: BoardSlot) -> bool:
        self._pause()
        return bool(self._record(super().has_reached(rank, slot)))

    def read_entry(self, rank: int, slot: BoardSlot) -> Entry | None:
        self._pause()
        found: Entry | None = self._record(super().read_entry(rank, slot))
        return found

    def withdrawal_reason(self, rank: int, slot: BoardSlot) -> int:
        self._pause()
        return int(self._record(super().withdrawal_reason(rank, slot)))


class LateBoard(SteppedBoard):
    """A rank's view of a board as a processor may show it: all of it under the lock, otherwise only what has arrived."""

    def __init__(self, folder: Path, process_count: int, board: SteppedBoard) -> None:
        super().__init__(folder, process_count)
        self._shared = board.parts()
        self._words = memoryview(bytearray(self._shared[0].nbytes)).cast("Q")
        self._index_by_participants = dict(board._index_by_participants)
        self._participants_by_index = dict(board._participants_by_index)
        for index, words in zip(self._participants_by_index, self._shared[1:], strict=True):
            self._words_by_set[index] = memoryview(bytearray(words.nbytes)).cast("Q")

    @contextmanager
    def locked(self) -> Iterator[None]:
        with super().locked():
            for own, shared in zip(self.parts(), self._shared, strict=True):
                own[:] = shared
            try:
                yield
            finally:
                for own, shared in zip(self.parts(), self._shared, strict=True):
                    shared[:] = own

    def set_waiting(self, rank: int, slot: BoardSlot | None) -> None:
        super().set_waiting(rank, slot)
        at = self._rank_offset(rank) + 1
        self._shared[0][at] = self._words[at]

    def close(self) -> None:
        super().close()
        for part in self._shared:
            part.release()

    def find_late(self, kind: str, *, others: bool) -> list[tuple[memoryview, memoryview, int]]:
        """Return the words of a kind that have not arrived, or all others: their source, their destination, their index."""
        return [
            (shared, own, at)
            for part, (own, shared) in enumerate(zip(self.parts(), self._shared, strict=True))
            if own != shared
            for at in range(len(own))
            if own[at] != shared[at] and (name_word(part, at) == kind) != others
        ]


def name_word(part: int, at: int) -> str:
    """Return the kind of a word of the board; empty string if it is not one of POST_WORDS."""
    return POST_WORDS[(at - 8) % 8] if part and at >= 8 else ""


POST_WORDS = ("place", "fingerprint", "origin", "thread", "lines", "taken back", "hash", "mark")


class Actor:
    """One thread of a rank.

    Its acts are a generator: it yields between them, and yields True if it can only wait for the others.
    """

    def __init__(self, acts: Iterator[bool], rank: Rank) -> None:
        self._acts, self.rank = acts, rank
        self.acts_done, self.done = 0, False
        self.seen: list[object] = []
        """What it has read in the current act."""
        self.waits_since: object = None
        """The world as it was when the actor could only wait; None if it can act."""

    def go(self) -> None:
        """Do one act."""
        # A change during its poll may be what it waits for.
        before = self.rank.run.world()
        waits = next(self._acts, None)
        self.seen.clear()
        self.done = waits is None
        self.waits_since = before if waits else None
        self.acts_done += not waits

    def close(self) -> None:
        """Drop the remaining acts."""
        self._acts.close()  # type: ignore[attr-defined]

    def position(self) -> object:
        """Return where it is: its further acts depend on this and on the world alone."""
        return self.acts_done, self.done, self.waits_since is not None, tuple(self.seen)


class Arrival:
    """The arrival of words of one kind, or of all others, in the view of a rank."""

    done = True
    """No run waits for it."""

    def __init__(self, board: LateBoard, kind: str, *, others: bool) -> None:
        self._board, self._kind, self._others = board, kind, others

    def is_due(self) -> bool:
        """Return whether any words have not arrived."""
        return bool(self._board.find_late(self._kind, others=self._others))

    def go(self) -> None:
        """Make the words arrive."""
        for shared, own, at in self._board.find_late(self._kind, others=self._others):
            own[at] = shared[at]

    def close(self) -> None:
        """Do nothing."""


class SteppedActor(Actor):
    """An actor that goes from one read of the board to the next, on a stack of its own."""

    def __init__(self, acts: Iterator[bool], rank: Rank) -> None:
        super().__init__(acts, rank)
        self._stack = greenlet(self._main)

    def _main(self) -> None:
        while not self.done:
            super().go()
            if not self.done:
                self.pause()

    def pause(self) -> None:
        """Let another actor act."""
        self.seen.append("paused")
        self._stack.parent.switch()

    def go(self) -> None:
        """Go on to the next read."""
        self._stack.switch()

    def close(self) -> None:
        """Drop the remaining acts."""
        self._stack.throw()


class Run:
    """One order of the steps of some actors: along a path, and then into states that no run has seen."""

    def __init__(self, boards: Sequence[SteppedBoard], cast: Cast, *, fine: bool, cells: int, late: str = "") -> None:
        self.board, self.boards, self.cells = boards[0], boards, cells
        """The first board is the shared one; then comes one for each rank."""
        self.current: Actor | None = None
        self._world: object = None
        self.decisions: dict[BoardSlot, dict[int, str]] = {}
        """The decision of each rank, by slot."""
        everyone = range(len(cast))
        self.ranks = [Rank(self, rank) for rank in everyone]
        kind = SteppedActor if fine else Actor
        self.actors = [kind(act(self.ranks[rank]), self.ranks[rank]) for rank in everyone for act in cast[rank]]
        self.arrivals = [
            Arrival(board, late, others=others)
            for board in boards
            if isinstance(board, LateBoard)
            for others in (False, True)
        ]
        for board in boards:
            board.step, board.record_read = self._step, self._record_read

    def _step(self) -> None:
        if isinstance(self.current, SteppedActor):
            self.current.pause()

    def _record_read(self, found: object) -> None:
        if self.current is not None:
            self.current.seen.append(found)

    def world(self) -> object:
        """Return everything that the actors share, as it was before the current step."""
        if self._world is None:
            boards = {id(board): board for board in self.boards}
            self._world = (
                tuple(board.content() for board in boards.values()),
                tuple(rank.memory() for rank in self.ranks),
            )
        return self._world

    def state(self) -> object:
        """Return everything that the further steps depend on."""
        decisions = tuple(sorted((place, tuple(sorted(each.items()))) for place, each in self.decisions.items()))
        return hash((self.world(), tuple(actor.position() for actor in self.actors), decisions))

    def follow(self, path: Sequence[int], known: set[object]) -> list[list[int]]:
        """Follow a path and go on to the end; return the paths that branch off it."""
        followed: list[int] = []
        branches: list[list[int]] = []
        try:
            acting: list[Actor | Arrival] = [*self.actors, *self.arrivals]
            while any(not actor.done for actor in self.actors):
                if len(followed) < len(path):
                    chosen = path[len(followed)]
                else:
                    ready = self._find_ready()
                    assert ready, f"some wait and nothing will change, after {followed}: {self.decisions}"
                    if (state := self.state()) in known:
                        return branches
                    known.add(state)
                    branches += [[*followed, other] for other in ready[1:]]
                    chosen = ready[0]
                followed.append(chosen)
                next_one = acting[chosen]
                self.current = next_one if isinstance(next_one, Actor) else None
                next_one.go()
                self._world = None
            self.check(followed)
        finally:
            self.current = None
            for actor in self.actors:
                actor.close()
        return branches

    def _find_ready(self) -> list[int]:
        open_ = [n for n, actor in enumerate(self.actors) if not actor.done]
        world = self.world() if any(self.actors[n].waits_since for n in open_) else None
        ready = [n for n in open_ if self.actors[n].waits_since is None or self.actors[n].waits_since != world]
        return ready + [len(self.actors) + n for n, each in enumerate(self.arrivals) if each.is_due()]

    def check(self, path: Sequence[int]) -> None:
        """Check that no rank launched without the others."""
        for slot, decisions in self.decisions.items():
            launched = next((each for each in decisions.values() if each.startswith("launch")), "")
            if launched:
                participants = self.board.participants_of(slot.set_index)
                assert decisions == dict.fromkeys(participants, launched), f"at {slot} after {path}: {decisions}"


class Rank:
    """A rank of a run: its participant, and what its threads do."""

    def __init__(self, run: Run, rank: int) -> None:
        self.run, self.rank = run, rank
        self.participant = Participant(run.boards[1 + rank], rank)
        self.seq, self.turn, self.interrupted = 1, False, False
        self.arrays: Sequence[int] = (5, 7)
        """The provenance of the arrays that it launches on."""

    def memory(self) -> object:
        """Return what its threads share besides the board."""
        participant = self.participant
        decided = None if participant._decision is None else participant._decision.kind
        own = (
            participant._slot,
            tuple(participant._undetermined),
            tuple(participant._lagging),
            participant._withdrawn_seq,
            decided,
        )
        return own, self.seq, self.turn, self.interrupted

    def launch(self, fingerprint: int = 5, set_index: int = 0, *, gives_up: bool = False) -> Iterator[bool]:
        """Agree on a launch as `LaunchGate` does; with `gives_up`, an exception comes right after the post."""
        participants = self.run.board.participants_of(set_index)
        while self.turn:
            yield True
        self.turn = True
        # A launch after the last cell belongs to a cell that has not begun.
        attempts, uncompared, seq = 0, 0, self.seq
        while seq <= self.run.cells and (uncompared or not attempts):
            attempts += 1
            provenance = combine_values(self.arrays, uncompared)
            proposal = LaunchProposal(seq, fingerprint, "jit(f)", participants, (), provenance=provenance)
            uncompared = yield from self._agree(proposal, attempts, gives_up=gives_up)
        self.turn = False

    def _agree(self, proposal: LaunchProposal, attempts: int, *, gives_up: bool) -> Generator[bool, None, int]:
        """Propose once; return which arrays to leave out if the ranks propose again, else 0."""
        # Before a proposal is posted, the program's name is written and the arrays are examined.
        yield False
        while not self.participant.try_propose(proposal):
            yield True
        yield False
        slot, kind, uncompared = self.participant._slot, "", 0
        if gives_up and self.participant.try_withdraw(CELL_ENDED):
            kind = "given up"
        else:
            while not self._poll():
                yield True
            yield False
            decision = self.participant.decide()
            kind = f"{decision.kind}, asked {attempts} times"
            if decision.kind == "again":
                uncompared = join_uncompared_blocks(stand.provenance for stand in decision.votes)
        self.participant.stop_waiting()
        self.participant.reset()
        if slot is not None:
            self.run.decisions.setdefault(slot, {})[self.rank] = kind
        return uncompared

    def _poll(self) -> bool:
        # Poll as after a long wait, so that the poll does everything that a poll may do.
        self.participant.poll_count = FAST_POLLS
        return self.participant.poll(is_interrupted=self.interrupted)

    def end(self) -> Iterator[bool]:
        """End the cell as `LaunchGate.end_cell` does."""
        self.participant.end_cell(self.seq, OK)
        yield False
        self.seq += 1


def launches_then_ends(rank: Rank) -> Iterator[bool]:
    """Launch in each cell, and end it."""
    for _ in range(rank.run.cells):
        yield from rank.launch()
        yield from rank.end()


def ends(rank: Rank) -> Iterator[bool]:
    """End cells that launch nothing."""
    for _ in range(rank.run.cells):
        yield from rank.end()


def launches(rank: Rank) -> Iterator[bool]:
    """Launch in a thread, whatever its cell does."""
    yield from rank.launch()


def launches_twice(rank: Rank) -> Iterator[bool]:
    """Launch one program after another in a thread."""
    yield from rank.launch()
    yield from rank.launch(7)


def launches_another(rank: Rank) -> Iterator[bool]:
    """Launch another program in a thread."""
    yield from rank.launch(7)


def launches_unguarded(rank: Rank) -> Iterator[bool]:
    """Launch in a thread on an array that was made without a guard, so that the ranks propose a second time."""
    rank.arrays = (ANY, 7)
    yield from rank.launch()


def launches_unguarded_then_ends(rank: Rank) -> Iterator[bool]:
    """Launch on such an array in each cell, and end it."""
    rank.arrays = (ANY, 7)
    yield from launches_then_ends(rank)


def gives_up_unguarded(rank: Rank) -> Iterator[bool]:
    """Launch on such an array in a thread, with an exception after the first post."""
    rank.arrays = (ANY, 7)
    yield from gives_up(rank)


def gives_up(rank: Rank) -> Iterator[bool]:
    """Launch in a thread, fail with an exception, and launch once more."""
    yield from rank.launch(gives_up=True)
    yield from rank.launch()


def interrupts(rank: Rank) -> Iterator[bool]:
    """Interrupt the rank."""
    rank.run.board.request_interrupt(1)
    rank.interrupted = True
    yield False


Cast = list[list[Callable[[Rank], Iterator[bool]]]]


def gives_up_then_ends(rank: Rank) -> Iterator[bool]:
    """Fail with an exception in the only launch of a cell, and end it."""
    yield from rank.launch(gives_up=True)
    yield from rank.end()


def launches_another_later(rank: Rank) -> Iterator[bool]:
    """Launch another program from the second cell on: its entry overwrites one that the others would agree to."""
    for seq in range(1, rank.run.cells + 1):
        yield from rank.launch(5 if seq == 1 else 7)
        yield from rank.end()


CASTS: dict[str, Cast] = {
    "a thread launches while its cell ends": [[launches, ends], [launches_then_ends]],
    "a thread launches twice while its cell ends": [[launches_twice, ends], [launches_then_ends]],
    "a thread launches another program": [[launches_another, ends], [launches_then_ends]],
    "an interrupt of a rank": [[launches_then_ends, interrupts], [launches_then_ends]],
    "an exception on a rank": [[gives_up, ends], [launches_then_ends]],
    "a thread asks again while its cell ends": [[launches_unguarded, ends], [launches_then_ends]],
    "an interrupt of a rank that asks again": [[launches_unguarded_then_ends, interrupts], [launches_then_ends]],
    "an exception on a rank that asks again": [[gives_up_unguarded, ends], [launches_then_ends]],
}


def launches_in(*set_indices: int) -> Callable[[Rank], Iterator[bool]]:
    """Launch over one set of ranks after another, and end the cell."""

    def act(rank: Rank) -> Iterator[bool]:
        for set_index in set_indices:
            yield from rank.launch(set_index=set_index)
        yield from rank.end()

    return act


def interrupts_and_ends(rank: Rank) -> Iterator[bool]:
    """Interrupt the cell on a rank that launches nothing in it."""
    yield from interrupts(rank)
    yield from rank.end()


PAIRS = (0, 1), (1, 2), (0, 2)
OUTSIDE: dict[str, Cast] = {
    "has no part": [[launches_in(0, 0, 0)], [launches_in(0, 0, 0)], [ends]],
    "is interrupted": [[launches_in(0, 0)], [launches_in(0, 0)], [interrupts_and_ends]],
    "is a later stage": [[launches_in(0, 0)], [launches_in(0, 1, 0, 1)], [launches_in(1, 1)]],
    "is a later stage, and a thread launches": [[launches, ends], [launches_in(0, 1)], [launches_in(1)]],
    "launches with each of the others": [[launches_in(0, 2)], [launches_in(0, 1)], [launches_in(1, 2)]],
}
"""What the third rank does while the first two launch without it."""


def explore(
    folder: Path,
    cast: Cast,
    *,
    fine: bool = False,
    cells: int = 1,
    late: str = "",
    sets: Sequence[tuple[int, ...]] = (),
) -> int:
    """Try every order; return the number of states.

    Args:
        sets: of ranks that launch together; all ranks if empty.
        late: kind of words that arrive separately from the others at ranks 0 and 1; empty string if all ranks share one view.
    """
    create_board(folder, len(cast))
    shared = SteppedBoard(folder, len(cast))
    shared.step = shared.record_read = lambda *_: None  # type: ignore[assignment]
    for participants in sets or [tuple(range(len(cast)))]:
        shared.find_set_index(participants)
    views = [LateBoard(folder, len(cast), shared) if late and rank < 2 else shared for rank in range(len(cast))]
    blank = [bytes(part) for part in shared.parts()]
    known: set[object] = set()
    paths: list[list[int]] = [[]]
    while paths:
        for board in (shared, *views):
            for part, words in zip(board.parts(), blank, strict=True):
                part.cast("B")[:] = words
        paths += Run((shared, *views), cast, fine=fine, cells=cells, late=late).follow(paths.pop(), known)
    for board in {id(board): board for board in (*views, shared)}.values():
        board.close()
    return len(known)


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS.keys())
@pytest.mark.sample(1)
def test_two_ranks_launch_together_or_not_at_all(tmp_path: Path, cast: Cast) -> None:
    """Two ranks launch together or not at all, whatever comes between two reads; none waits after the others have ended."""
    assert explore(tmp_path, cast, fine=True) > 100


@pytest.mark.parametrize("cast", [*CASTS.values(), [[launches, ends]] * 2], ids=[*CASTS.keys(), "both have threads"])
def test_launches_of_the_next_cell_change_nothing(tmp_path: Path, cast: Cast) -> None:
    """The next cell's launches change nothing, though they overwrite entries that a thread may not have read yet."""
    assert explore(tmp_path, cast, cells=2) > 100


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS.keys())
@pytest.mark.soak
def test_three_ranks_launch_together_or_not_at_all(tmp_path: Path, cast: Cast) -> None:
    """Three ranks launch together or not at all, whatever comes between any two of their acts."""
    assert explore(tmp_path, [*cast, [launches_then_ends]]) > 100


@pytest.mark.parametrize("cast", OUTSIDE.values(), ids=OUTSIDE.keys())
@pytest.mark.sample(4)
def test_ranks_outside_a_launch_change_nothing(tmp_path: Path, cast: Cast) -> None:
    """Two ranks launch together or not at all, whatever a third one does that has no part in the launch."""
    assert explore(tmp_path, cast, sets=PAIRS) > 50


@pytest.mark.parametrize("late", [word for word in POST_WORDS if word not in ("thread", "lines")])
def test_words_may_arrive_in_any_order(tmp_path: Path, late: str) -> None:
    """Only the lock's order of words is relied on: one kind of words arrives before or after all others."""
    assert explore(tmp_path, [[launches_then_ends], [launches_another_later]], cells=2, late=late) > 100


@pytest.mark.parametrize("late", ["taken back", "mark"])
@pytest.mark.sample(1)
def test_withdrawal_mark_may_arrive_after_later_posts(tmp_path: Path, late: str) -> None:
    """One of three ranks withdraws its entry; the second posts before that, and the third after it."""
    cast: Cast = [[gives_up_then_ends], [launches], [launches]]
    assert explore(tmp_path, cast, late=late) > 100
