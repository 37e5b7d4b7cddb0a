"""Units of durations, and of the counts by `%timeit`: the words after a number that may differ by rank together with it.

`940 µs` on one rank and `1.01 ms` on another differ in a number. Any other word after a number is text.
"""

from __future__ import annotations

import re

__all__ = ["LONG_TIME", "find_unit", "parse_measure"]

_S = r"\d+s"
_MIN = rf"\d+min(?: {_S})?"
_H = rf"\d+h (?:{_MIN}|{_S})"
_D = rf"\d+d (?:{_H}|\d+h|{_MIN}|{_S})"
LONG_TIME = rf"(?<![\w.])(?:{_D}|{_H}|{_MIN})(?!\w)"
"""A minute and more, as formatted by IPython: `1min 2s`."""
_LONG_UNIT = re.compile(r"min|\d[hd]")

_UNIT = re.compile(r"(?P<time> ?[mnuµμ]?s)(?!\w|-[^\W\d])|(?P<loops> loops?)(?= each\b)")
_NAME_END = re.compile(r"[\w.]$")
"""Matches the end of a text after which a number is part of a name, as in `shard_3`."""
_MEASURE = re.compile(r"(\S+?) ?(min|loops?|[mnuµμ]?s|[hd])(?= |$)")
_SECONDS_PER_UNIT = {
    "d": 86400.0,
    "h": 3600.0,
    "min": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ns": 1e-9,
}


def find_unit(before: str, number: str, after: str) -> tuple[str, str]:
    """Return the unit of a number from the text after it.

    Args:
        before: the text before the number, back to the previous number.
        number: with the blanks before it.
        after: the text after it, up to the next number.

    Returns:
        The kind of quantity, empty if there is no such unit, and the unit as written, empty if it is part of the number.

    >>> find_unit("Wall time:", " 940", " µs"), find_unit("", "3", " km")
    (('time', ' µs'), ('', ''))
    """
    if number[-1:].isalpha() and _LONG_UNIT.search(number):
        return "time", ""
    found = _UNIT.match(after)
    if found is None or (not number.startswith(" ") and _NAME_END.search(before)):
        return "", ""
    return str(found.lastgroup), found[0]


def parse_measure(text: str) -> float:
    """Parse a number with or without a unit, durations in seconds.

    >>> parse_measure("1min 2s"), parse_measure("2 ms"), parse_measure("1,000 loops"), parse_measure("-7")
    (62.0, 0.002, 1000.0, -7.0)
    """
    measures = _MEASURE.findall(text)
    if not measures:
        return float(text.replace(",", ""))
    return sum(float(number.replace(",", "")) * _SECONDS_PER_UNIT.get(unit, 1.0) for number, unit in measures)
