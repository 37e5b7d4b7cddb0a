"""`OrderMismatch` errors that the cell's own code met: each is shown, or a note reports that the code caught it.

This module knows exceptions, not launches: the cell runner decides which error ends a cell, and the shell decides what is shown. A
mismatch in a user's thread is not handled here: it fails the cell however it is caught.
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
    """Record of the mismatches of the running cell.

    It keeps no mismatch alive that the cell has dropped, because its frames hold the user's arrays.
    """

    def __init__(self) -> None:
        self._unshown: Counter[tuple[str, int | None]] = Counter()
        self._alive_errors: WeakKeyDictionary[OrderMismatch, tuple[str, int | None]] = WeakKeyDictionary()
        self._first_shown: BaseException | None = None

    def begin_cell(self) -> None:
        """Forget the mismatches of the last cell, although the new cell may show one of them once more."""
        self._unshown.clear()
        self._alive_errors.clear()
        self._first_shown = None

    def note_raised(self, error: OrderMismatch, name: str, line: int | None) -> None:
        """Record a mismatch that is raised in the cell's code.

        Args:
            name: name of the program that was not launched.
            line: line of the cell, 1-based; None if it is not in the cell's own text.
        """
        self._unshown[name, line] += 1
        self._alive_errors[error] = name, line

    def note_shown(self, error: BaseException) -> None:
        """Record an error that the user sees, together with its causes."""
        for each in _list_shown(error):
            # Most other exceptions cannot be weakly referenced, so they cannot even be looked up.
            if is_a(each, OrderMismatch) and (launch := self._alive_errors.pop(each, None)) is not None:
                self._unshown[launch] -= 1
                self._first_shown = error if self._first_shown is None else self._first_shown

    def take_shown(self) -> BaseException | None:
        """Return the first shown error that includes a mismatch, and forget it.

        A cell with such an error has not ended well, even if a handler caught the error later.
        """
        shown, self._first_shown = self._first_shown, None
        return shown

    def take_ignored_refusals(self) -> list[list[Any]]:
        """Return the name and line of each refused launch whose reason was not shown to the user, each once."""
        if not self._unshown:
            return []
        ignored_refusals = [list(place) for place, count in self._unshown.items() if count]
        self.begin_cell()
        return ignored_refusals


def _list_shown(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and every exception that IPython shows with it."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if each is error and is_a(each, (MhnbError, SystemExit)):
            # These are shown as one text, without their causes.
            return
        pending += [cause_of(each), *members_of(each)]
