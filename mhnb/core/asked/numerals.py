"""Numbers that stand behind a flag; one that is none is told with what was expected."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError

__all__ = ["seconds", "whole_number"]


def whole_number(text: str) -> int:
    """Read a whole number.

    Raises:
        ArgumentTypeError: it is none; argparse names the flag before this text.

    >>> whole_number("4")
    4
    """
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a whole number, as 4, and got {text!r}") from None


def seconds(text: str) -> float:
    """Read a duration.

    Raises:
        ArgumentTypeError: it is none; argparse names the flag before this text.

    >>> seconds("0.5")
    0.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ArgumentTypeError(f"expected a number of seconds, as 30 or 0.5, and got {text!r}")
    return number
