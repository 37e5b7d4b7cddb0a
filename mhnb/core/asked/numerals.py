"""argparse types for numeric flags, with errors that state what was expected."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError

__all__ = ["int_argument", "seconds_argument"]


def int_argument(text: str) -> int:
    """Parse a whole number.

    Raises:
        ArgumentTypeError: the text is not a whole number; argparse names the flag before this message.

    >>> int_argument("4")
    4
    """
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a whole number, as 4, and got {text!r}") from None


def seconds_argument(text: str) -> float:
    """Parse a duration.

    Raises:
        ArgumentTypeError: the text is not a number; argparse names the flag before this message.

    >>> seconds_argument("0.5")
    0.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ArgumentTypeError(f"expected a number of seconds, as 30 or 0.5, and got {text!r}")
    return number
