"""Find how programs of one name and shape differ.

They are compared by the first different line of their lowered modules, and by variables of the call. Each program's
outline is sent as one text of limited size, and is parsed only if the ranks disagree.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from mhnb.core.typed_json import decode_json, encode_json

CALLBACK_PREFIX = "host callback"
"""Prefix of an outline's lines that name the Python functions which a program calls."""
CALLS = " that calls "
"""Separates a program from its host callback, in the name of what made an array."""
MAX_PACKED_CHARS = 1 << 18
"""Most characters of a packed outline. Of a longer module only the first lines are compared."""
_MAX_LINES, _MAX_LINE_CHARS = 20_000, 2_000
_CHARS_BEFORE, _MAX_SHOWN_CHARS = 70, 160
"""Characters shown before the first difference in a line, and in total."""
_MAX_NAMES = 5
_VALUE = re.compile(r"^%[\w:#, %]* = ")
_CALLBACK = re.compile(rf"{CALLBACK_PREFIX} \d+: ")
_MAX_UNPACKED = 1 << 26


class Outline(NamedTuple):
    """The part of a program that is stored to explain a mismatch."""

    names: Mapping[str, str]
    """Values of plain variables of the call that compiled it, as their `repr`."""
    lines: Sequence[str]
    """Lines of the lowered module."""


def pack_outline(module: str, names: Mapping[str, str]) -> str:
    r"""Pack an outline into one text of at most `MAX_PACKED_CHARS` characters.

    >>> unpack_outline(pack_outline("a\nb", {"k": "2"}))
    Outline(names={'k': '2'}, lines=['a', 'b'])
    """
    lines = [line.strip()[:_MAX_LINE_CHARS] for line in module.splitlines()[:_MAX_LINES]]
    while True:
        data = encode_json(Outline(names, lines)).encode()
        packed = base64.b64encode(zlib.compress(data, 1)).decode()
        if len(packed) <= MAX_PACKED_CHARS:
            return packed
        names, lines = (names, lines[: len(lines) // 2]) if lines else ({}, lines)


def unpack_outline(packed: str) -> Outline | None:
    """Unpack an outline; None if it cannot be read.

    >>> unpack_outline("half of one")
    """
    try:
        return decode_json(zlib.decompressobj().decompress(base64.b64decode(packed), _MAX_UNPACKED), Outline)
    except (binascii.Error, zlib.error, ValueError):
        return None


def find_differences(outlines: Mapping[int, Outline]) -> dict[int, str]:
    """Return how each program differs; empty if the outlines are equal.

    Args:
        outlines: by fingerprint, of two programs or more.

    >>> two, three = (Outline({"k": k}, ["module {", f"%0 = chlo.top_k(%arg0, k = {k})"]) for k in "23")
    >>> find_differences({7: two, 9: three})
    {7: 'chlo.top_k(%arg0, k = 2), compiled where k = 2', 9: 'chlo.top_k(%arg0, k = 3), compiled where k = 3'}
    """
    lines = _find_first_difference([outline.lines for outline in outlines.values()])
    names = _find_different_names([outline.names for outline in outlines.values()])
    found = {}
    for line, (fingerprint, outline) in zip(lines or [""] * len(outlines), outlines.items(), strict=True):
        values = [f"{name} = {outline.names[name]}" for name in names]
        where = f"compiled where {', '.join(values)}" if values else ""
        found[fingerprint] = ", ".join(part for part in (line, where) if part)
    return found if any(found.values()) else {}


def _find_first_difference(texts: Sequence[Sequence[str]]) -> list[str]:
    for lines in zip_longest(*texts, fillvalue="(its module ends before that)"):
        if len(set(lines)) > 1:
            return _clip_lines(lines)
    return []


def _clip_lines(lines: Sequence[str]) -> list[str]:
    """Return each line's part around the first difference, without value numbers."""
    lines = [_VALUE.sub("", line) for line in lines]
    if len(set(lines)) == 1:
        return list(lines)
    shortest = min(map(len, lines))
    at = next((place for place in range(shortest) if len({line[place] for line in lines}) > 1), shortest)
    begin = max(at - _CHARS_BEFORE, 0) if at > _MAX_SHOWN_CHARS // 2 else 0
    return [_clip_line(line, begin) for line in lines]


def _clip_line(line: str, begin: int) -> str:
    shown = line[begin : begin + _MAX_SHOWN_CHARS]
    head = found[0] if begin and (found := _CALLBACK.match(line)) else ""
    return f"{head}{'…' if begin else ''}{shown}{'…' if len(line) > begin + _MAX_SHOWN_CHARS else ''}"


def _find_different_names(names: Sequence[Mapping[str, str]]) -> list[str]:
    common = set(names[0]).intersection(*names[1:])
    return sorted(name for name in common if len({each[name] for each in names}) > 1)[:_MAX_NAMES]
