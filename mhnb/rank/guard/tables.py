"""The table at which a rank agrees with the others on a launch: what one is, and the one on this machine.

On the host of the board a rank sits at the board itself, which is shared memory. A rank of another host has a
`RemoteTable` instead (`rank/guard/remote.py`), and a delegate there sits at the board for it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from mhnb.core.guard.wishes import Verdict, Wish
from mhnb.rank.guard.board import Board
from mhnb.rank.guard.seat import CELL_ENDED, QUICK_LOOKS, Seat

__all__ = ["BoardTable", "LONG_S", "SHORT_SLEEPS", "Table", "insist", "pause"]

_Given = TypeVar("_Given")

_SPINS, SHORT_SLEEPS = 20, 400
"""Looks before each next slower kind of pause: the others are mostly there at once, and must get the core otherwise."""
_SHORT_S, LONG_S = 50e-6, 2e-3
_yield_core: Callable[[], None] = getattr(os, "sched_yield", partial(time.sleep, 0))


class Table(Protocol):
    """Where one rank says what it is about to launch, and hears what becomes of it. One wish at a time."""

    @property
    def interrupted_seq(self) -> int:
        """The latest cell that was asked to stop on this host; 0 for none."""

    def end_cell(self, seq: int, ending: int) -> None:
        """Tell the others that this rank is done with a cell. Never raises for a connection that is gone."""

    def describe(self, fingerprint: int, outline: str) -> None:
        """Note what a program is, for the words of a mismatch. From any thread."""

    def ask(self, wish: Wish) -> None:
        """Make a wish."""

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Wait for the verdict.

        Args:
            interrupted: asked again and again: whether the wish is to be taken back, if it is not too late.

        Raises:
            BaseException: what a signal handler of the user's raised meanwhile; then `take_back` is called.
        """

    def take_back(self) -> bool:
        """Take the wish back; false where it is too late, and there is, or comes, a verdict that must be obeyed.

        `ask` may have been broken off anywhere, also before it began: then there is nothing to take back.
        """

    def rest(self) -> None:
        """No longer wait. Called however the wait ended."""

    def answer(self) -> Verdict:
        """The verdict."""

    def let_go(self) -> None:
        """Give up what a forked child of the rank must not hold."""


class BoardTable:
    """The table of a rank on the host of the board.

    Args:
        board: shared with every other rank of this machine.
        rank: our own.
    """

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank, self._seat = board, rank, Seat(board, rank)

    @property
    def interrupted_seq(self) -> int:
        """What the supervisor has written on the board."""
        return self._board.interrupted_seq

    def end_cell(self, seq: int, ending: int) -> None:
        """Write it on the board."""
        self._seat.end_cell(seq, ending)

    def describe(self, fingerprint: int, outline: str) -> None:
        """Write it beside the board."""
        self._board.describe_program(fingerprint, outline)

    def ask(self, wish: Wish) -> None:
        """Post, as soon as the others have no need any more of what is overwritten by it."""
        looks = 0
        while not self._seat.post(wish):
            looks += 1
            pause(looks)

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Look until it is decided."""
        seat = self._seat
        while not seat.look(interrupted=interrupted()):
            pause(seat.looks)

    def take_back(self) -> bool:
        """Take the post back, while another has not posted."""
        done = insist(self._take_back_once)
        if done:
            self._seat.forget()
        return done

    def _take_back_once(self) -> bool:
        return self._seat.take_back(CELL_ENDED)

    def rest(self) -> None:
        """Be seen to wait no longer."""
        self._seat.rest()

    def answer(self) -> Verdict:
        """Judge what all have posted."""
        verdict = self._seat.judge()
        self._seat.forget()
        return verdict

    def let_go(self) -> None:
        """A child may keep the memory: it does not launch."""


def insist(act: Callable[[], _Given]) -> _Given:
    """Call what must be done, again and again while a signal handler of the user's raises in the middle of it; tell of that."""
    again: BaseException | None = None
    while True:
        try:
            given = act()
            break
        except BaseException as error:  # noqa: BLE001 - told below; what came first is raised by our caller
            again = error
    if again is not None:
        print(f"mhnb: {again!r} came while a launch was given up for the exception before it", file=sys.stderr)
    return given


def pause(looks: int) -> None:
    """Give the others time between two looks, the longer the more there were."""
    if looks <= _SPINS:
        return
    if looks <= QUICK_LOOKS:
        _yield_core()
    else:
        time.sleep(_SHORT_S if looks <= QUICK_LOOKS + SHORT_SLEEPS else LONG_S)
