"""Which values count as equal when their pickles differ."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.core.pickling import GlobalArrayPlaceholder, find_difference

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


@dataclass
class Box:
    """A user's class."""

    content: Any = None
    shape: list[int] = field(default_factory=list)


class Plain:
    """A class that compares by identity."""

    def __init__(self, content: object) -> None:
        self.content = content


@given(values)
def test_copy_is_equal(value: Any) -> None:
    """A deep copy never differs, NaN included."""
    assert find_difference(value, copy.deepcopy(value)) is None


@given(values, values)
def test_different_contents_are_found(left: Any, right: Any) -> None:
    """Two values with different representations are not equal."""
    if repr(left).replace("-0.0", "0.0") != repr(right).replace("-0.0", "0.0") and not _unordered(left, right):
        assert find_difference(left, right) is not None


def _unordered(left: Any, right: Any) -> bool:
    """Check whether the difference may be an order that does not count."""
    return "{" in repr(left) and "{" in repr(right)


@pytest.mark.parametrize(
    ("left", "right", "where"),
    [
        ({"a": 1}, {"b": 1}, "only one has the key 'a'"),
        ([1, [2, 3]], [1, [2, 4]], "[1][1]: 3 and 4"),
        ([1], [1, 2], "1 and 2 items"),
        (Box(1), Box(2), ".content: 1 and 2"),
        (Plain({"n": 1}), Plain({"n": 2}), ".__dict__['content']['n']: 1 and 2"),
        (1, True, "1 and True"),
        (1, 1.0, "1 and 1.0"),
        ([np.arange(3)], [np.arange(3) + 1], "[0]: two ndarray of other content"),
        ([np.zeros(1, "f4")], [np.zeros(1, "f8")], "[0]: two ndarray of other content"),
        ([{1, 2}], [{1, 3}], "[0]: two set of other content"),
    ],
)
def test_the_first_difference_is_named(left: Any, right: Any, where: str) -> None:
    """The result is the path to the first difference and both sides, shortened."""
    assert find_difference(left, right) == where


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": np.array([1.0, np.nan]), "b": {3, 1, 2}},
        lambda: Box(np.arange(4), [1]),
        lambda: Plain([Plain(3)]),
        lambda: np.array([1, "x", None], dtype=object),
        lambda: range(3),
    ],
)
def test_values_built_by_the_same_code_are_equal(make: Any) -> None:
    """Two values made by the same code do not differ."""
    assert find_difference(make(), make()) is None


def test_comparing_recursive_values_terminates() -> None:
    """A cycle is compared once."""
    left: list[Any] = [1]
    right: list[Any] = [1]
    left.append(left)
    right.append(right)
    assert find_difference(left, right) is None


def test_global_arrays_are_paired_by_key() -> None:
    """Arrays that pickle visited in another order are matched by their key."""
    pairs: dict[int, int] = {}
    left = {"w": GlobalArrayPlaceholder(0), "b": GlobalArrayPlaceholder(1)}
    right = {"b": GlobalArrayPlaceholder(0), "w": GlobalArrayPlaceholder(1)}
    assert find_difference(left, right, pairs) is None
    assert pairs == {0: 1, 1: 0}


def test_one_array_twice_is_not_two_arrays() -> None:
    """One array used twice on one rank does not match two arrays on the other."""
    assert (
        find_difference(
            [GlobalArrayPlaceholder(0), GlobalArrayPlaceholder(0)],
            [GlobalArrayPlaceholder(0), GlobalArrayPlaceholder(1)],
        )
        is not None
    )


def test_values_that_cannot_be_compared_differ() -> None:
    """A comparison that raises does not prove equality."""

    class Awkward:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    assert find_difference(Awkward(), Awkward()) is not None
