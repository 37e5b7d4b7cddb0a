"""What becomes of the mismatches that a cell's own code met: each is shown, or the user is told that the code caught it.

It knows exceptions, not launches: which error ends a cell is the runner's business, and what is shown the shell's.
One in a thread of the user's is not dealt with here: it fails the cell however it is caught.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from mhnb.errors import MhnbError, OrderMismatch
from mhnb.rank.raised import cause_of, is_a, members_of

__all__ = ["Mismatches"]


class Mismatches:
    """The mismatches of the cell that runs. None is kept alive that the cell has let go: its frames hold the user's arrays."""

    def __init__(self) -> None:
        self._untold: Counter[tuple[str, int | None]] = Counter()
        self._alive: WeakKeyDictionary[OrderMismatch, tuple[str, int | None]] = WeakKeyDictionary()
        self._shown: BaseException | None = None

    def begin_cell(self) -> None:
        """Another cell: what was raised before is none of its business, though it may show that once more."""
        self._untold.clear()
        self._alive.clear()
        self._shown = None

    def note_raised(self, error: OrderMismatch, name: str, line: int | None) -> None:
        """Take note of one that goes to the cell's code.

        Args:
            name: of the program that was not launched.
            line: of the cell, 1-based; None where it is not in the cell's own text.
        """
        self._untold[name, line] += 1
        self._alive[error] = name, line

    def note_shown(self, error: BaseException) -> None:
        """Take note of an error that the user sees, and with it what it came of."""
        for each in _list_shown(error):
            # Of most other exceptions there can be no weak reference, so that they cannot even be looked for.
            if is_a(each, OrderMismatch) and (place := self._alive.pop(each, None)) is not None:
                self._untold[place] -= 1
                self._shown = error if self._shown is None else self._shown

    def take_shown(self) -> BaseException | None:
        """Give the first error of a mismatch that was shown: with it the cell has not ended well, whoever caught it after that."""
        shown, self._shown = self._shown, None
        return shown

    def take_caught(self) -> list[list[Any]]:
        """Give name and line of each launch that was refused without anybody being shown why, each once."""
        if not self._untold:
            return []
        caught = [list(place) for place, count in self._untold.items() if count]
        self.begin_cell()
        return caught


def _list_shown(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that IPython shows with it."""
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        each = rest.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if each is error and is_a(each, (MhnbError, SystemExit)):
            # These are shown as one text, without what they came of.
            return
        rest += [cause_of(each), *members_of(each)]
