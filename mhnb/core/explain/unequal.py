"""Explain why JAX found that a value is not the same on each process, from the text of its error.

JAX gathers the value of every process, in the types that it computes with, and compares it with the process's own value.
So a NumPy array of float64 differs from itself if JAX rounds it to float32, and NaN differs from everything.
"""

from __future__ import annotations

import math
import re
from typing import Literal, TypeAlias

__all__ = ["UnequalCause", "classify_unequal_value", "shorten_values"]

UnequalCause: TypeAlias = Literal["differs", "rounded", "nan", "unknown"]

_GATHERED = re.compile(r"Expected: (?P<all>.*); got: (?P<own>.*)\.\s*$", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)(?![\w.])")
_COMPLEX = re.compile(r"[\d.]j")
_VALUES = re.compile(r"\[(?:[\[\]\d\s.,+\-()]|e[-+]?\d|nan|inf|j|True|False|characters left out[^\]]*)*+")
"""Text that may be an array. The pattern is possessive (no backtracking), so a text is scanned once.

The rank has already removed the middle of a very long array, and the text says so.
"""
_MAX_VALUES_CHARS, _HEAD, _TAIL = 400, 120, 60
"""Characters: longer values are cut to their beginning and end."""
_RELATIVE_TOLERANCE = 1e-6
"""Relative: float32 has 24 bits, and NumPy prints 8 digits of it."""


def classify_unequal_value(text: str) -> UnequalCause:
    """Return why the check failed.

    `unknown` if the message has no numbers, or if they are cut short, complex, or written alike though they differ.

    Args:
        text: the whole message.

    >>> classify_unequal_value("Expected: [0.1 0.33333334 0.1 0.33333334]; got: [0.1 0.33333333].")
    'rounded'
    >>> classify_unequal_value("Expected: [0.1 0.2 0.1 0.3]; got: [0.1 0.2].")
    'differs'
    """
    found = _GATHERED.search(text)
    if found is None or "..." in found[0] or _COMPLEX.search(found[0]):
        return "unknown"
    gathered, own = (_NUMBER.findall(found[part]) for part in ("all", "own"))
    if not own or len(gathered) % len(own):
        return "unknown"
    parts = [gathered[at : at + len(own)] for at in range(0, len(gathered), len(own))]
    # All of them went through the same rounding.
    if any(part != parts[0] for part in parts):
        return "differs"
    if "nan" in own:
        return "nan"
    # Digits that are not printed may differ between ranks too, so only visible rounding counts as rounding.
    return "rounded" if parts[0] != own and all(map(_is_close, parts[0], own)) else "unknown"


def shorten_values(text: str) -> str:
    """Cut long arrays in a message down to their beginning and end.

    >>> shorten_values(f"got {list(range(1000))}!")[-40:]
    '992, 993, 994, 995, 996, 997, 998, 999]!'
    """
    return _VALUES.sub(_shorten_match, text) if len(text) > _MAX_VALUES_CHARS else text


def _shorten_match(found: re.Match[str]) -> str:
    values, closed, rest = found[0].rpartition("]")
    if len(values) <= _MAX_VALUES_CHARS:
        return found[0]
    return f"{values[:_HEAD].rpartition(' ')[0]} … {values[-_TAIL:].partition(' ')[2]}{closed}{rest}"


def _is_close(gathered: str, own: str) -> bool:
    return math.isclose(float(gathered), float(own), rel_tol=_RELATIVE_TOLERANCE)
