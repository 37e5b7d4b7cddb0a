"""Why a value is not the same on each process, from JAX's own text."""

from __future__ import annotations

import pytest

from mhnb.core.hints import classify_unequal_value, shorten_values
from mhnb.core.messages import shorten_text


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Expected: [0.33333334 1. 0.33333334 1.]; got: [0.33333333 1.].", "rounded"),
        ("Expected: [[1. 0.1]\n [2. 0.2]\n [1. 0.1]\n [2. 0.2]]; got: [[1. 0.10000001]\n [2. 0.2]].", "rounded"),
        ("Expected: [-1.5e-07 -1.5e-07]; got: [-1.50000001e-07].", "rounded"),
        ("Expected: [0.01234568 0.01234568]; got: [0.01234568].", "unknown"),
        ("Expected: [1.+0.1j 1.+0.2j]; got: [1.+0.1j].", "unknown"),
        ("Expected: [1. nan 1. nan]; got: [1. nan].", "nan"),
        ("Expected: [1. 2. 1. 3.]; got: [1. 2.].", "differs"),
        ("Expected: [1. 2. 1. 3.]; got: [1. 3.].", "differs"),
        ("Expected: [0 1 0 1]; got: [4294967296 4294967297].", "unknown"),
        ("Expected: [0.1 0.2 ... 0.1 0.2]; got: [0.1 0.2 ... 0.1 0.2].", "unknown"),
        ("Expected: [b'a' b'a']; got: [b'a'].", "unknown"),
        ("Expected: [1 2 3]; got: [1 2].", "unknown"),
        ("nothing of the kind", "unknown"),
    ],
)
def test_cause_is_classified(text: str, cause: str) -> None:
    """A value counts as rounded only if the text proves it; values that cannot be compared have an unknown cause."""
    assert classify_unequal_value(f"passed to device_put is not the same. {text}") == cause


@pytest.mark.parametrize(
    "values",
    [
        str(list(range(1000))),
        str([[1.5e-3, -2.0, float("nan"), float("inf")]] * 100),
        "[" + "1 0\n " * 300 + "1]",
        str([1j] * 300),
    ],
)
def test_long_values_are_shortened(values: str) -> None:
    """The first and last values of a printed array stay, with the words around it."""
    text = shorten_values(f"Expected: {values}; got: {values}.")
    assert len(text) < 500
    assert text.startswith(f"Expected: {values[:20]}")
    assert text.endswith(f"{values[-10:]}.")


@pytest.mark.parametrize(
    "text", ["x" * 5000, "[" + "word " * 300 + "]", str(list(range(50))), "Got [1, 2]; " * 200, "[" * 1_000_000]
)
def test_other_long_texts_are_unchanged(text: str) -> None:
    """Words in brackets, and many short arrays, are not a long array."""
    assert shorten_values(text) == text


def test_values_whose_middle_was_left_out_are_shortened() -> None:
    """A rank shortens a message before it sends it; the two halves still count as one array."""
    text = shorten_text(f"got {list(range(50_000))}; expected [1]", 64 * 1024, "rank0.log")
    assert len(shorten_values(text)) < 400
    assert shorten_values(text).endswith("49999]; expected [1]")
