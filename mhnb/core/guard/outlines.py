"""Find how programs of one name and shape differ: the first different line of their lowered modules, and variables of the call.

Each program's outline is sent as one text of limited size, and is parsed only if the ranks disagree.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

__all__ = ["CALLBACK", "MOST_PACKED", "Outline", "find_differences", "pack_outline", "unpack_outline"]

CALLBACK = "host callback"
"""Prefix of an outline's lines that name the Python functions which a program calls."""
MOST_PACKED = 1 << 18
"""Most characters of a packed outline. Of a longer module only the first lines are compared."""
_MOST_LINES, _LONGEST_LINE = 20_000, 2_000
_AROUND, _MOST_SHOWN = 70, 160
"""Characters shown before the first difference in a line, and in total."""
_MOST_NAMES = 5
_VALUE = re.compile(r"^%[\w:#, %]* = ")
_CALLBACK = re.compile(rf"{CALLBACK} \d+: ")
_MAX_UNPACKED = 1 << 26


class Outline(NamedTuple):
    """What is kept of a program to explain a mismatch."""

    names: Mapping[str, str]
    """Values of plain variables of the call that compiled it, as their `repr`."""
    lines: Sequence[str]
    """Lines of the lowered module."""


def pack_outline(module: str, names: Mapping[str, str]) -> str:
    r"""Pack an outline into one text of at most `MOST_PACKED` characters.

    >>> unpack_outline(pack_outline("a\nb", {"k": "2"}))
    Outline(names={'k': '2'}, lines=['a', 'b'])
    """
    lines = [line.strip()[:_LONGEST_LINE] for line in module.splitlines()[:_MOST_LINES]]
    while True:
        data = json.dumps([dict(names), lines]).encode()
        packed = base64.b64encode(zlib.compress(data, 1)).decode()
        if len(packed) <= MOST_PACKED:
            return packed
        names, lines = (names, lines[: len(lines) // 2]) if lines else ({}, lines)


def unpack_outline(packed: str) -> Outline | None:
    """Unpack an outline; None if it cannot be read, for example because it was only partly written.

    >>> unpack_outline("half of one")
    """
    try:
        told = json.loads(zlib.decompressobj().decompress(base64.b64decode(packed), _MAX_UNPACKED))
    except (binascii.Error, zlib.error, ValueError):
        return None
    match told:
        case [dict(names), list(lines)]:
            return Outline({str(name): str(value) for name, value in names.items()}, list(map(str, lines)))
    return None


def find_differences(outlines: Mapping[int, Outline]) -> dict[int, str]:
    """Return for each program how it differs from the others; empty if the outlines are equal.

    Args:
        outlines: by fingerprint, of two programs or more.

    >>> two, three = (Outline({"k": k}, ["module {", f"%0 = chlo.top_k(%arg0, k = {k})"]) for k in "23")
    >>> find_differences({7: two, 9: three})
    {7: 'chlo.top_k(%arg0, k = 2), compiled where k = 2', 9: 'chlo.top_k(%arg0, k = 3), compiled where k = 3'}
    """
    lines = _first_different([outline.lines for outline in outlines.values()])
    names = _different_names([outline.names for outline in outlines.values()])
    found = {}
    for line, (fingerprint, outline) in zip(lines or [""] * len(outlines), outlines.items(), strict=True):
        told = [f"{name} = {outline.names[name]}" for name in names]
        where = f"compiled where {', '.join(told)}" if told else ""
        found[fingerprint] = ", ".join(part for part in (line, where) if part)
    return found if any(found.values()) else {}


def _first_different(texts: Sequence[Sequence[str]]) -> list[str]:
    for lines in zip_longest(*texts, fillvalue="(its module ends before that)"):
        if len(set(lines)) > 1:
            return _cut(lines)
    return []


def _cut(lines: Sequence[str]) -> list[str]:
    """Return the part of each line around the first character that differs, without the numbers of its values."""
    lines = [_VALUE.sub("", line) for line in lines]
    if len(set(lines)) == 1:
        return list(lines)
    shortest = min(map(len, lines))
    at = next((place for place in range(shortest) if len({line[place] for line in lines}) > 1), shortest)
    begin = max(at - _AROUND, 0) if at > _MOST_SHOWN // 2 else 0
    return [_cut_one(line, begin) for line in lines]


def _cut_one(line: str, begin: int) -> str:
    shown = line[begin : begin + _MOST_SHOWN]
    head = found[0] if begin and (found := _CALLBACK.match(line)) else ""
    return f"{head}{'…' if begin else ''}{shown}{'…' if len(line) > begin + _MOST_SHOWN else ''}"


def _different_names(names: Sequence[Mapping[str, str]]) -> list[str]:
    common = set(names[0]).intersection(*names[1:])
    return sorted(name for name in common if len({each[name] for each in names}) > 1)[:_MOST_NAMES]
