"""Every order in which the ranks of one board post, look, judge, take back and end: all of them launch, or none does.

Ranks are threads that run one at a time; between two reads of the board another may come in. Each order is tried once,
and what leads to a state that was seen before is not followed again. No JAX.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mhnb.core.guard.agreement import ENDINGS
from mhnb.core.guard.wishes import Wish
from mhnb.rank.guard.board import Board, Place, Post, make_board
from mhnb.rank.guard.seat import CELL_ENDED, QUICK_LOOKS, Seat

OK = ENDINGS.index("ok")
CELLS = 2


class LeftError(BaseException):
    """The rest of this order is known."""


class SteppedBoard(Board):
    """A board at which another rank may come in before each look, and before each time the lock is taken."""

    step: Callable[[], None]
    noted: Callable[[object], None]
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

    def _see(self, found: Any) -> Any:
        if not self.locks:
            self.noted(found)
        return found

    def _pause(self) -> None:
        if not self.locks:
            self.step()

    @property
    def interrupted_seq(self) -> int:
        self._pause()
        return int(self._see(super().interrupted_seq))

    def last_post(self, rank: int, group: int) -> tuple[int, int]:
        self._pause()
        found: tuple[int, int] = self._see(super().last_post(rank, group))
        return found

    def ended_seq(self, rank: int) -> int:
        self._pause()
        return int(self._see(super().ended_seq(rank)))

    def has_posted(self, rank: int, place: Place) -> bool:
        self._pause()
        return bool(self._see(super().has_posted(rank, place)))

    def read(self, rank: int, place: Place) -> Post:
        self._pause()
        found: Post = self._see(super().read(rank, place))
        return found


class Actor:
    """One thread of a rank, which goes on only when it is its turn."""

    def __init__(self, run: Run, act: Callable[[], None]) -> None:
        self._run, self._act = run, act
        self.go, self.stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.seen: list[object] = []
        """All that it has read: with the number of its steps, that is where it stands."""
        self.steps, self.done = 0, False
        self.waits_since: bytes | None = None
        """The board as it was when it had nothing to do but to wait."""
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._main)
        self.thread.start()

    def _main(self) -> None:
        try:
            self.pause()
            self._act()
        except LeftError:
            return
        except BaseException as error:  # noqa: BLE001 - raised where the order is known
            self.error = error
        finally:
            self.done = True
            self.stopped.release()

    def pause(self) -> None:
        """Let another come in."""
        self.stopped.release()
        self.go.acquire()
        if self._run.left:
            raise LeftError
        self.steps += 1

    def wait(self) -> None:
        """Wait until the board has changed."""
        self.waits_since = self._run.world()
        self.pause()
        self.waits_since = None


class Run:
    """One order of the steps of some actors, along a path and then wherever nobody has been."""

    def __init__(self, board: SteppedBoard, fine: bool) -> None:  # noqa: FBT001 - a value of the tests' parameters
        self.board, self.fine, self.left = board, fine, False
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.verdicts: dict[tuple[int, int], dict[int, str]] = {}
        """By cell and place, what each rank was told."""
        self.extra: list[int] = []
        """What the ranks' own memory holds beside their seats."""
        board.step, board.noted = self._step, self._noted

    def _step(self) -> None:
        if self.fine and self.current is not None:
            self.current.pause()

    def _noted(self, found: object) -> None:
        if self.current is not None:
            self.current.seen.append(found)

    def world(self) -> bytes:
        return bytes(self.board._words) + repr(self.extra).encode()

    def state(self) -> object:
        where = tuple((a.steps if a.waits_since is None else -1, a.done, tuple(a.seen)) for a in self.actors)
        return self.world(), where, repr(self.verdicts)

    def follow(self, path: Sequence[int], known: set[object]) -> list[list[int]]:
        """Go along a path and on to the end; return the paths that branch off it and are not known."""
        for actor in self.actors:
            actor.stopped.acquire()
        taken: list[int] = []
        branches: list[list[int]] = []
        try:
            while open_ := [n for n, actor in enumerate(self.actors) if not actor.done]:
                ready = [n for n in open_ if self.actors[n].waits_since != self.world()]
                assert ready, f"{len(open_)} wait and nothing will change, after {taken}: {self.verdicts}"
                if len(taken) >= len(path):
                    if (state := self.state()) in known:
                        return branches
                    known.add(state)
                    branches += [[*taken, other] for other in ready[1:]]
                chosen = path[len(taken)] if len(taken) < len(path) else ready[0]
                taken.append(chosen)
                self.current = self.actors[chosen]
                self.current.go.release()
                self.current.stopped.acquire()
                if self.current.error is not None:
                    raise self.current.error
            self.check(taken)
        finally:
            self.current, self.left = None, True
            for actor in self.actors:
                actor.go.release()
                actor.thread.join()
        return branches

    def check(self, taken: Sequence[int]) -> None:
        """Hold that whoever launched was alone in nothing."""
        for place, told in self.verdicts.items():
            if "launch" in told.values():
                assert set(told.values()) == {"launch"}, f"at {place} after {taken}: {told}"
                assert set(told) == set(range(len(self.board_ranks))), f"at {place} after {taken}: {told}"

    board_ranks: Sequence[int] = ()


class Rank:
    """A rank of a run: its seat, and what its threads do there."""

    def __init__(self, run: Run, rank: int, everyone: tuple[int, ...]) -> None:
        self.run, self.rank, self.everyone = run, rank, everyone
        self.seat = Seat(run.board, rank)
        self.seq, self.turn, self.interrupted = 1, False, False

    def pause(self) -> None:
        assert self.run.current is not None
        self.run.current.pause()

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self.run.current is not None
            self.run.current.wait()

    def launch(self, fingerprint: int = 5, *, gives_up: bool = False) -> None:
        """Agree on a launch as `Agreement.agree` does; with `gives_up`, an exception comes right after the post."""
        self.until(self._take_turn)
        if self.seq > CELLS:
            # What is launched now belongs to a cell that is still to come.
            self._set_turn(taken=False)
            return
        wish = Wish(self.seq, fingerprint, "jit(f)", self.everyone, ())
        # Between the wish and its post the program's name is written, and the arrays are looked at.
        self.pause()
        self.until(lambda: self.seat.post(wish))
        place = self.seat._place
        self.pause()
        kind = ""
        if gives_up and self.seat.take_back(CELL_ENDED):
            kind = "given up"
        if not kind:
            self.until(self._look)
            self.pause()
            kind = self.seat.judge().kind
        self.seat.rest()
        self.seat.forget()
        self._set_turn(taken=False)
        if place is not None:
            self.run.verdicts.setdefault((place.seq, place.number), {})[self.rank] = kind

    def _take_turn(self) -> bool:
        if self.turn:
            return False
        self._set_turn(taken=True)
        return True

    def _set_turn(self, *, taken: bool) -> None:
        self.turn = taken
        self.run.extra.append(self.rank)

    def _look(self) -> bool:
        # As one that has looked for long: it does all that a look may do.
        self.seat.looks = QUICK_LOOKS
        return self.seat.look(interrupted=self.interrupted)

    def end(self) -> None:
        """End the cell as `Agreement.end_cell` does."""
        self.seat.end_cell(self.seq, OK)
        self.pause()
        self.seq += 1

    def stop(self) -> None:
        """Be interrupted."""
        self.run.board.ask_interrupt(1)
        self.interrupted = True
        self.run.extra.append(self.rank)


def launches_then_ends(rank: Rank) -> None:
    """A cell that launches, and one after it."""
    for _ in range(CELLS):
        rank.launch()
        rank.end()


def ends(rank: Rank) -> None:
    """Two cells that launch nothing."""
    for _ in range(CELLS):
        rank.end()


def launches(rank: Rank) -> None:
    """A thread that launches, whatever its cell does."""
    rank.launch()


def launches_another(rank: Rank) -> None:
    """A thread that launches another program."""
    rank.launch(7)


def gives_up(rank: Rank) -> None:
    """A thread whose launch an exception breaks off, and that launches once more."""
    rank.launch(gives_up=True)
    rank.launch()


def is_stopped(rank: Rank) -> None:
    """The interrupt."""
    rank.stop()


Cast = list[list[Callable[[Rank], None]]]

FINE: dict[str, Cast] = {
    "a thread launches while the cell ends": [[launches, ends], [launches, ends]],
    "a thread launches beside a cell that does": [[launches_then_ends], [launches, ends]],
    "programs that differ": [[launches, ends], [launches_another, ends]],
    "an interrupt on one rank": [[launches, is_stopped, ends], [launches, ends]],
    "an exception on one rank": [[gives_up, ends], [launches, ends]],
}
COARSE: dict[str, Cast] = {
    "a thread launches while the cell ends": [[launches, ends]] * 3,
    "one has no thread": [[launches, ends], [launches, ends], [ends]],
    "an interrupt on one rank": [[launches, is_stopped, ends], [launches, ends], [launches, ends]],
    "an exception on one rank": [[gives_up, ends], [launches, ends], [launches, ends]],
}


def explore(folder: Path, cast: Cast, *, fine: bool) -> int:
    """Try every order; return how many states there are."""
    make_board(folder, len(cast))
    board = SteppedBoard(folder, len(cast))
    board.step = board.noted = lambda *_: None  # type: ignore[assignment]
    board.index_of(tuple(range(len(cast))))
    blank = bytes(board._words)
    known: set[object] = set()
    paths: list[list[int]] = [[]]
    while paths:
        board._words.cast("B")[:] = blank
        run = Run(board, fine)
        run.board_ranks = range(len(cast))
        for number, acts in enumerate(cast):
            rank = Rank(run, number, tuple(range(len(cast))))
            for act in acts:
                run.actors.append(Actor(run, _bind(act, rank)))
        paths += run.follow(paths.pop(), known)
    board.close()
    return len(known)


def _bind(act: Callable[[Rank], None], rank: Rank) -> Callable[[], None]:
    return lambda: act(rank)


@pytest.mark.parametrize("cast", FINE.values(), ids=FINE.keys())
def test_two_ranks_launch_together_or_not_at_all(tmp_path: Path, cast: Cast) -> None:
    """Whatever comes between any two looks at the board; and nobody waits once the others have ended."""
    assert explore(tmp_path, cast, fine=True) > 100


@pytest.mark.parametrize("cast", COARSE.values(), ids=COARSE.keys())
def test_three_ranks_launch_together_or_not_at_all(tmp_path: Path, cast: Cast) -> None:
    """Whatever comes between any two of their acts."""
    assert explore(tmp_path, cast, fine=False) > 100
