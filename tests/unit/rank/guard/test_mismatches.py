"""What becomes of the mismatches of a cell: shown, or told of as caught, and never both."""

from __future__ import annotations

import gc
import weakref

import pytest

from mhnb.errors import OrderMismatch
from mhnb.rank.guard.launch_gate import Mismatches


@pytest.fixture
def met() -> Mismatches:
    """Those of a cell that has begun."""
    mismatches = Mismatches()
    mismatches.begin_cell()
    return mismatches


def raised(met: Mismatches, name: str = "jit(f)", line: int | None = 2) -> OrderMismatch:
    """Have the cell's code get one."""
    error = OrderMismatch("nothing was launched", result=None)
    met.note_raised(error, name, line)
    return error


def grown(outer: BaseException, inner: BaseException, *, hidden: bool = False) -> BaseException:
    """Have one come of another, as if it was raised while that was handled."""
    outer.__context__, outer.__suppress_context__ = inner, hidden
    return outer


def test_each_refused_launch_is_told_once(met: Mismatches) -> None:
    """A loop that catches a thousand makes one row."""
    for _ in range(1000):
        raised(met)
    raised(met, "jit(g)", None)
    assert met.take_shown() is None
    assert met.take_ignored_refusals() == [["jit(f)", 2], ["jit(g)", None]]
    assert met.take_ignored_refusals() == []


def test_what_was_shown_is_not_told_and_ends_the_cell(met: Mismatches) -> None:
    """The first that was shown is the cell's error; one of the same line that was caught is told all the same."""
    first, second = raised(met), raised(met, "jit(g)", 3)
    raised(met)
    for error in (ValueError("of a repr"), first, second, first):
        met.note_shown(error)
    assert met.take_shown() is first
    assert met.take_ignored_refusals() == [["jit(f)", 2]]


@pytest.mark.parametrize("hidden", [False, True])
def test_an_error_that_came_of_one_shows_it_unless_it_hides_that(met: Mismatches, *, hidden: bool) -> None:
    """`raise ... from None` leaves the reason out of the traceback."""
    error = grown(ValueError("no sum"), raised(met), hidden=hidden)
    met.note_shown(error)
    assert (met.take_shown() is error, met.take_ignored_refusals()) == (
        (False, [["jit(f)", 2]]) if hidden else (True, [])
    )


@pytest.mark.parametrize("outer", [SystemExit(1), OrderMismatch("another", result=None)])
def test_what_is_shown_as_one_text_shows_nothing_below_it(met: Mismatches, outer: BaseException) -> None:
    """Neither an exit nor an error of ours has a traceback that names its cause."""
    met.note_shown(grown(outer, raised(met)))
    assert (met.take_shown(), met.take_ignored_refusals()) == (None, [["jit(f)", 2]])


def test_a_group_shows_its_members(met: Mismatches) -> None:
    """That of an asyncio.TaskGroup, in which a task had one."""
    group = ExceptionGroup("tasks", [ValueError("no"), ExceptionGroup("inner", [raised(met)])])
    met.note_shown(group)
    assert (met.take_shown(), met.take_ignored_refusals()) == (group, [])


def test_errors_that_come_of_each_other_end(met: Mismatches) -> None:
    """A ring of causes is made easily, and IPython shows it once."""
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    met.note_shown(one)
    assert met.take_shown() is None


def test_an_earlier_cells_is_none_of_this_ones(met: Mismatches) -> None:
    """`%tb` shows it again."""
    old = raised(met)
    met.begin_cell()
    met.note_shown(old)
    assert (met.take_shown(), met.take_ignored_refusals()) == (None, [])


def test_none_is_kept_alive(met: Mismatches) -> None:
    """Its frames hold the arrays of the cell, and a loop may catch many."""
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
