"""One rank's part of an agreement, at a table that says what the test wants."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mhnb.core.guard.wishes import LAUNCH, Verdict, Wish
from mhnb.errors import OrderMismatch
from mhnb.rank.guard.agreement import Agreement


class BellError(Exception):
    """Raised by a handler of the user's."""


class BellTable:
    """A table at which a bell rings in the wait, when it is too late to take the wish back."""

    interrupted_seq = 0

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def end_cell(self, seq: int, ending: int) -> None:
        """Nobody waits."""

    def ask(self, wish: Wish) -> None:
        """It is decided already."""

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """The bell."""
        assert not interrupted()
        raise BellError

    def take_back(self) -> bool:
        """Too late."""
        return False

    def rest(self) -> None:
        """Nobody waits."""

    def answer(self) -> Verdict:
        """What the test wants."""
        return self._verdict

    def let_go(self) -> None:
        """Nothing is held."""


def enter(verdict: Verdict) -> Agreement:
    """Have a rank agree on a launch, in the first cell."""
    agreement = Agreement(BellTable(verdict))
    agreement.begin_cell(1, "", "lockstep", None)
    try:
        agreement.enter("5", "jit(f)", (0, 1), 2, [])
    finally:
        agreement.leave()
    return agreement


def test_a_users_exception_that_came_too_late_is_raised_after_the_launch() -> None:
    """The others make the launch, so this rank makes it too."""
    agreement = enter(LAUNCH)
    with pytest.raises(BellError):
        agreement.settle()


def test_a_users_exception_is_not_lost_to_a_refusal() -> None:
    """Nothing is launched either way, so what the user's own handler raised comes at once, and tells of the refusal."""
    with pytest.raises(BellError) as raised:
        enter(Verdict("ring", text="nothing was launched"))
    assert isinstance(raised.value.__cause__, OrderMismatch)
