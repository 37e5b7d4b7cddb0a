"""Short forms: `4x2`, and ranks as the first word of a `%%mhjax` line."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from mhnb.core.export import read_notebook
from mhnb.core.shorthand import merge_values, shape_argument, split_ranks_word
from mhnb.errors import InvalidRequest


@pytest.mark.parametrize("text", ["x2", "4x", "4x2x1", "-4", "four", ""])
def test_other_forms_are_no_shape(text: str) -> None:
    """A shape is one or two whole numbers."""
    with pytest.raises(ArgumentTypeError, match="for example 4 or 4x2"):
        shape_argument(text)


@pytest.mark.parametrize("words", [["--quiet"], ["stray"], ["-1"], ["0x1"], []])
def test_other_first_words_are_no_ranks(words: list[str]) -> None:
    """Only a word of digits, commas and dashes that begins with a digit names ranks."""
    assert split_ranks_word(words) == (None, words)


def test_two_different_values_are_refused() -> None:
    """An argument that was given twice must have one value."""
    assert merge_values(4, 4, names=("a", "b")) == 4
    with pytest.raises(InvalidRequest, match="start 4 contradicts -n 8; give one of them"):
        merge_values(4, 8, names=("start 4", "-n 8"))


def test_exported_notebook_may_use_short_forms() -> None:
    """`start 3x1` and `%%mhjax 0,2` mean the same in a notebook file that is exported."""
    cells = ["%mhjax start 3x1", "%%mhjax 0,2\nx = 1"]
    steps = read_notebook({"cells": [{"cell_type": "code", "source": cell} for cell in cells]})
    assert (steps.process_count, steps.devices) == (3, 1)
    assert [step.ranks for step in steps.steps] == [(0, 2)]
