"""Short forms of arguments: shapes such as `4x2`, and leading rank sets."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from mhnb.errors import InvalidRequest

_SHAPE = re.compile(r"([0-9]+)(?:\s*[x×]\s*([0-9]+))?")  # the sign that mhnb's own summaries have
_Value = TypeVar("_Value")
_RANKS = re.compile(r"[0-9][0-9,-]*")


class ShapeArgument(NamedTuple):
    """A number of ranks, and of devices per rank."""

    ranks: int
    devices: int | None
    """None if only the number of ranks was given."""


def shape_argument(text: str) -> ShapeArgument:
    """Parse a shape, as an argparse type.

    Raises:
        ArgumentTypeError: the text has another form.

    >>> shape_argument("4"), shape_argument("4x2")
    (ShapeArgument(ranks=4, devices=None), ShapeArgument(ranks=4, devices=2))
    """
    found = _SHAPE.fullmatch(text.strip())
    if found is None:
        raise ArgumentTypeError(f"expected ranks, or ranks x devices, for example 4 or 4x2; got {text!r}")
    return ShapeArgument(int(found[1]), None if found[2] is None else int(found[2]))


def find_shape_word(words: Sequence[str]) -> ShapeArgument | None:
    """Return the shape in a `start` line's first word, or None.

    >>> find_shape_word(["4x2", "--keep"]), find_shape_word(["-n", "4"])
    (ShapeArgument(ranks=4, devices=2), None)
    """
    return shape_argument(words[0]) if words and _SHAPE.fullmatch(words[0]) else None


def split_ranks_word(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split off the ranks in a `%%mhjax` line's first word, if any.

    >>> split_ranks_word(["0,2-3", "--quiet"]), split_ranks_word(["--ranks", "0"])
    (('0,2-3', ['--quiet']), (None, ['--ranks', '0']))
    """
    if words and _RANKS.fullmatch(words[0]):
        return words[0], list(words[1:])
    return None, list(words)


def merge_values(first: _Value | None, second: _Value | None, *, names: tuple[str, str]) -> _Value | None:
    """Return the value of an argument that has two spellings.

    Args:
        first: one value; None if it was not given.
        second: the other one.
        names: how the user has typed each, for the message.

    Raises:
        InvalidRequest: both were given, and differ.

    >>> merge_values(4, None, names=("4", "-n"))
    4
    """
    if first is not None and second is not None and first != second:
        raise InvalidRequest(f"{names[0]} contradicts {names[1]}; give one of them")
    return second if first is None else first
