"""What happens to the mismatches of a cell: each is either shown or reported as caught, and never both."""

from __future__ import annotations

import gc
import weakref

import pytest

from mhnb.core.guard.launch_report import LaunchPlace
from mhnb.core.messages import RunCell
from mhnb.errors import OrderMismatch
from mhnb.rank.guard.launch_gate import Mismatches


@pytest.fixture
def cell_mismatches() -> Mismatches:
    """The mismatches of a cell that has begun."""
    mismatches = Mismatches()
    mismatches.begin_cell(RunCell(1, 2, ""))
    return mismatches


def record_mismatch(cell_mismatches: Mismatches, name: str = "jit(f)", line: int | None = 2) -> OrderMismatch:
    """Record a mismatch as raised in the cell's code."""
    error = OrderMismatch("nothing was launched", result=None)
    cell_mismatches.note_raised(error, name, line)
    return error


def with_context(outer: BaseException, inner: BaseException, *, hidden: bool = False) -> BaseException:
    """Return `outer` with `inner` as its context, as if it was raised while `inner` was handled."""
    outer.__context__, outer.__suppress_context__ = inner, hidden
    return outer


def test_each_refused_launch_is_reported_once(cell_mismatches: Mismatches) -> None:
    """A loop that catches a thousand mismatches makes one row."""
    for _ in range(1000):
        record_mismatch(cell_mismatches)
    record_mismatch(cell_mismatches, "jit(g)", None)
    assert cell_mismatches.take_shown() is None
    assert cell_mismatches.take_ignored_refusals() == [LaunchPlace("jit(f)", 2), LaunchPlace("jit(g)", None)]
    assert cell_mismatches.take_ignored_refusals() == []


def test_shown_mismatch_is_the_cells_error(cell_mismatches: Mismatches) -> None:
    """The first mismatch that was shown is the cell's error; a caught one of the same line is still reported."""
    first, second = record_mismatch(cell_mismatches), record_mismatch(cell_mismatches, "jit(g)", 3)
    record_mismatch(cell_mismatches)
    for error in (ValueError("of a repr"), first, second, first):
        cell_mismatches.note_shown(error)
    assert cell_mismatches.take_shown() is first
    assert cell_mismatches.take_ignored_refusals() == [LaunchPlace("jit(f)", 2)]


@pytest.mark.parametrize("hidden", [False, True])
def test_chained_error_shows_its_mismatch_unless_suppressed(cell_mismatches: Mismatches, *, hidden: bool) -> None:
    """A chained error shows its mismatch, unless `raise ... from None` leaves it out of the traceback."""
    error = with_context(ValueError("no sum"), record_mismatch(cell_mismatches), hidden=hidden)
    cell_mismatches.note_shown(error)
    assert (cell_mismatches.take_shown() is error, cell_mismatches.take_ignored_refusals()) == (
        (False, [LaunchPlace("jit(f)", 2)]) if hidden else (True, [])
    )


@pytest.mark.parametrize("outer", [SystemExit(1), OrderMismatch("another", result=None)])
def test_exit_and_mhnb_errors_do_not_show_their_cause(cell_mismatches: Mismatches, outer: BaseException) -> None:
    """The traceback of an exit or of an mhnb error does not show its cause."""
    cell_mismatches.note_shown(with_context(outer, record_mismatch(cell_mismatches)))
    assert (cell_mismatches.take_shown(), cell_mismatches.take_ignored_refusals()) == (None, [LaunchPlace("jit(f)", 2)])


def test_exception_group_shows_its_members(cell_mismatches: Mismatches) -> None:
    """A group shows its members, such as the mismatch of a task in an asyncio.TaskGroup."""
    group = ExceptionGroup("tasks", [ValueError("no"), ExceptionGroup("inner", [record_mismatch(cell_mismatches)])])
    cell_mismatches.note_shown(group)
    assert (cell_mismatches.take_shown(), cell_mismatches.take_ignored_refusals()) == (group, [])


def test_cycle_of_causes_ends(cell_mismatches: Mismatches) -> None:
    """A cycle of causes is easily made, and IPython shows each error of it once."""
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    cell_mismatches.note_shown(one)
    assert cell_mismatches.take_shown() is None


def test_mismatch_of_an_earlier_cell_does_not_count(cell_mismatches: Mismatches) -> None:
    """`%tb` in a later cell shows an earlier cell's mismatch again, but it does not belong to the later cell."""
    old = record_mismatch(cell_mismatches)
    cell_mismatches.begin_cell(RunCell(1, 2, ""))
    cell_mismatches.note_shown(old)
    assert (cell_mismatches.take_shown(), cell_mismatches.take_ignored_refusals()) == (None, [])


@pytest.mark.slow
def test_mismatches_are_not_kept_alive(cell_mismatches: Mismatches) -> None:
    """A mismatch is not kept alive, because its frames hold the arrays of the cell, and a loop may catch many."""
    alive = weakref.ref(record_mismatch(cell_mismatches))
    gc.collect()
    assert alive() is None
    shown = record_mismatch(cell_mismatches)
    cell_mismatches.note_shown(shown)
    cell_mismatches.take_shown()
    alive = weakref.ref(shown)
    del shown
    gc.collect()
    assert alive() is None
