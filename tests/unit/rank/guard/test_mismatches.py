"""What happens to the mismatches of a cell: each is either shown or reported as caught, and never both."""

from __future__ import annotations

import gc
import weakref

import pytest

from mhnb.errors import OrderMismatch
from mhnb.rank.guard.launch_gate import Mismatches


@pytest.fixture
def met() -> Mismatches:
    """The mismatches of a cell that has begun."""
    mismatches = Mismatches()
    mismatches.begin_cell()
    return mismatches


def raised(met: Mismatches, name: str = "jit(f)", line: int | None = 2) -> OrderMismatch:
    """Record a mismatch as raised in the cell's code."""
    error = OrderMismatch("nothing was launched", result=None)
    met.note_raised(error, name, line)
    return error


def grown(outer: BaseException, inner: BaseException, *, hidden: bool = False) -> BaseException:
    """Return `outer` with `inner` as its context, as if it was raised while `inner` was handled."""
    outer.__context__, outer.__suppress_context__ = inner, hidden
    return outer


def test_each_refused_launch_is_told_once(met: Mismatches) -> None:
    """A loop that catches a thousand mismatches makes one row."""
    for _ in range(1000):
        raised(met)
    raised(met, "jit(g)", None)
    assert met.take_shown() is None
    assert met.take_ignored_refusals() == [["jit(f)", 2], ["jit(g)", None]]
    assert met.take_ignored_refusals() == []


def test_what_was_shown_is_not_told_and_ends_the_cell(met: Mismatches) -> None:
    """The first mismatch that was shown is the cell's error; a caught one of the same line is still reported."""
    first, second = raised(met), raised(met, "jit(g)", 3)
    raised(met)
    for error in (ValueError("of a repr"), first, second, first):
        met.note_shown(error)
    assert met.take_shown() is first
    assert met.take_ignored_refusals() == [["jit(f)", 2]]


@pytest.mark.parametrize("hidden", [False, True])
def test_an_error_that_came_of_one_shows_it_unless_it_hides_that(met: Mismatches, *, hidden: bool) -> None:
    """A chained error shows its mismatch, unless `raise ... from None` leaves it out of the traceback."""
    error = grown(ValueError("no sum"), raised(met), hidden=hidden)
    met.note_shown(error)
    assert (met.take_shown() is error, met.take_ignored_refusals()) == (
        (False, [["jit(f)", 2]]) if hidden else (True, [])
    )


@pytest.mark.parametrize("outer", [SystemExit(1), OrderMismatch("another", result=None)])
def test_what_is_shown_as_one_text_shows_nothing_below_it(met: Mismatches, outer: BaseException) -> None:
    """The traceback of an exit or of an mhnb error does not show its cause."""
    met.note_shown(grown(outer, raised(met)))
    assert (met.take_shown(), met.take_ignored_refusals()) == (None, [["jit(f)", 2]])


def test_a_group_shows_its_members(met: Mismatches) -> None:
    """A group shows its members, such as the mismatch of a task in an asyncio.TaskGroup."""
    group = ExceptionGroup("tasks", [ValueError("no"), ExceptionGroup("inner", [raised(met)])])
    met.note_shown(group)
    assert (met.take_shown(), met.take_ignored_refusals()) == (group, [])


def test_errors_that_come_of_each_other_end(met: Mismatches) -> None:
    """A cycle of causes is easily made, and IPython shows each error of it once."""
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    met.note_shown(one)
    assert met.take_shown() is None


def test_an_earlier_cells_is_none_of_this_ones(met: Mismatches) -> None:
    """`%tb` in a later cell shows an earlier cell's mismatch again, but it does not belong to the later cell."""
    old = raised(met)
    met.begin_cell()
    met.note_shown(old)
    assert (met.take_shown(), met.take_ignored_refusals()) == (None, [])


def test_none_is_kept_alive(met: Mismatches) -> None:
    """A mismatch is not kept alive, because its frames hold the arrays of the cell, and a loop may catch many."""
    alive = weakref.ref(raised(met))
    gc.collect()
    assert alive() is None
    shown = raised(met)
    met.note_shown(shown)
    met.take_shown()
    alive = weakref.ref(shown)
    del shown
    gc.collect()
    assert alive() is None
