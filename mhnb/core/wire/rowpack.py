"""Compress a cell's launch record for sending: a loop that alternates between programs is written once, with its count.

The record already merges consecutive rows of one program. A loop of two programs makes two rows per iteration, 100 bytes
each. Here the programs are listed once, and a run of rows that repeats is written as one iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mhnb.core.wire.protocol import LaunchRow

__all__ = ["check_rows", "pack_rows", "unpack_rows"]

_FEW = 32
"""This many rows are sent as they are, because most cells have one or two."""
_LONGEST_TURN = 64
"""The longest iteration that is searched for, because a comparison at every row takes as long as the iteration.

Each row of a longer iteration is written.
"""
_PACKED = "packed"
_MOST_ROWS = 1 << 27
"""An unpacked row is one reference, so this many take one gibibyte."""


def pack_rows(rows: list[LaunchRow]) -> list[Any]:
    """Compress rows if there are many.

    >>> two = [["a", "f", [0, 1], 1, 1], ["b", "g", [0, 1], 2, 1]]
    >>> pack_rows(two * 1000)[2]
    [[[[0, 1], [1, 1]], 1000]]
    """
    if len(rows) <= _FEW:
        return rows
    numbers: dict[tuple[Any, ...], int] = {}
    words = [
        (numbers.setdefault((fingerprint, name, tuple(ranks), line), len(numbers)), count)
        for fingerprint, name, ranks, line, count in rows
    ]
    return [_PACKED, [list(program) for program in numbers], _fold(words)]


def unpack_rows(packed: Sequence[Any]) -> list[LaunchRow]:
    """Return the original rows. Repetitions of a row are the same object.

    >>> rows = [["a", "f", [0, 1], 1, 1], ["b", "g", [0, 1], 2, 1]] * 40
    >>> unpack_rows(pack_rows(rows)) == rows
    True
    """
    if not packed or packed[0] != _PACKED:
        return list(packed)
    _, programs, blocks = packed
    rows: list[LaunchRow] = []
    for words, times in blocks:
        rows += [[*_program(programs[number]), count] for number, count in words] * times
    return rows


def check_rows(packed: Any) -> bool:
    """Return whether this is the format of `pack_rows`, with no more rows than a cell can have launched.

    >>> check_rows(pack_rows([["a", "f", [0, 1], 1, 1]])), check_rows([["a"]])
    (True, False)
    >>> check_rows(["packed", [["a", "f", [0], None]], [[[[0, 1]], 10**12]]])
    False
    """
    if type(packed) is not list:
        return False
    if not packed or packed[0] != _PACKED:
        return all(type(row) is list and len(row) == 5 and _is_program(row[:4]) and _counts(row[4]) for row in packed)
    match packed:
        case [_, list(programs), list(blocks)] if all(map(_is_program, programs)):
            return all(_is_block(block, len(programs)) for block in blocks) and _count_rows(blocks) <= _MOST_ROWS
    return False


def _is_program(program: Any) -> bool:
    match program:
        case [str() | int(), str(), list(ranks), int() | None]:
            return all(type(rank) is int for rank in ranks)
    return False


def _is_block(block: Any, programs: int) -> bool:
    match block:
        case [list(words), int(times)] if 0 <= times <= _MOST_ROWS:
            return all(
                type(word) is list
                and len(word) == 2
                and type(word[0]) is int
                and 0 <= word[0] < programs
                and _counts(word[1])
                for word in words
            )
    return False


def _counts(count: Any) -> bool:
    return type(count) is int and 0 <= count < 1 << 63


def _count_rows(blocks: Sequence[Any]) -> int:
    return sum(len(words) * int(times) for words, times in blocks)


def _program(program: Sequence[Any]) -> list[Any]:
    fingerprint, name, ranks, line = program
    return [fingerprint, name, list(ranks), line]


def _fold(words: Sequence[tuple[int, int]]) -> list[list[Any]]:
    """Group entries into blocks with repetition counts. The only period tried is the distance to the next equal entry."""
    following = _next_equal(words)
    blocks: list[list[Any]] = []
    single: list[list[int]] = []
    place = 0
    while place < len(words):
        period = following[place] - place if following[place] else 0
        times = _count_turns(words, place, period) if 0 < period <= _LONGEST_TURN else 1
        if times < 2:
            single.append(list(words[place]))
            place += 1
            continue
        if single:
            blocks.append([single, 1])
            single = []
        blocks.append([[list(word) for word in words[place : place + period]], times])
        place += period * times
    return [*blocks, [single, 1]] if single else blocks


def _next_equal(words: Sequence[tuple[int, int]]) -> list[int]:
    """Return the position of the next equal entry for each entry; 0 if there is none."""
    seen: dict[tuple[int, int], int] = {}
    following = [0] * len(words)
    for place in range(len(words) - 1, -1, -1):
        following[place] = seen.get(words[place], 0)
        seen[words[place]] = place
    return following


def _count_turns(words: Sequence[tuple[int, int]], place: int, period: int) -> int:
    turn, times = words[place : place + period], 1
    while words[place + times * period : place + (times + 1) * period] == turn:
        times += 1
    return times
