"""Compress a cell's launch record for sending: a loop that alternates between programs is written once, with its count.

The record already merges consecutive rows of one program. A loop of two programs makes two rows per iteration, 100 bytes
each. Here the programs are listed once, and a run of rows that repeats is written as one iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mhnb.core.wire.protocol import LaunchRow

__all__ = ["compress_launches", "decompress_launches", "is_launch_record"]

_MAX_UNCOMPRESSED_ROWS = 32
"""This many rows are sent as they are, because most cells have one or two."""
_MAX_PERIOD = 64
"""The longest iteration that is searched for, because a comparison at every row takes as long as the iteration.

Each row of a longer iteration is written.
"""
_COMPRESSED = "packed"
_MAX_ROWS = 1 << 27
"""An unpacked row is one reference, so this many take one gibibyte."""


def compress_launches(rows: list[LaunchRow]) -> list[Any]:
    """Compress rows if there are many.

    >>> two = [["a", "f", [0, 1], 1, 1], ["b", "g", [0, 1], 2, 1]]
    >>> compress_launches(two * 1000)[2]
    [[[[0, 1], [1, 1]], 1000]]
    """
    if len(rows) <= _MAX_UNCOMPRESSED_ROWS:
        return rows
    program_numbers: dict[tuple[Any, ...], int] = {}
    entries = [
        (program_numbers.setdefault((fingerprint, name, tuple(ranks), line), len(program_numbers)), count)
        for fingerprint, name, ranks, line, count in rows
    ]
    return [_COMPRESSED, [list(program) for program in program_numbers], _group_repetitions(entries)]


def decompress_launches(packed: Sequence[Any]) -> list[LaunchRow]:
    """Return the original rows. Repetitions of a row are the same object.

    >>> rows = [["a", "f", [0, 1], 1, 1], ["b", "g", [0, 1], 2, 1]] * 40
    >>> decompress_launches(compress_launches(rows)) == rows
    True
    """
    if not packed or packed[0] != _COMPRESSED:
        return list(packed)
    _, programs, blocks = packed
    rows: list[LaunchRow] = []
    for entries, times in blocks:
        rows += [[*_copy_program(programs[number]), count] for number, count in entries] * times
    return rows


def is_launch_record(packed: Any) -> bool:
    """Return whether this is the format of `compress_launches`, with no more rows than a cell can have launched.

    >>> is_launch_record(compress_launches([["a", "f", [0, 1], 1, 1]])), is_launch_record([["a"]])
    (True, False)
    >>> is_launch_record(["packed", [["a", "f", [0], None]], [[[[0, 1]], 10**12]]])
    False
    """
    if type(packed) is not list:
        return False
    if not packed or packed[0] != _COMPRESSED:
        return all(
            type(row) is list and len(row) == 5 and _is_program(row[:4]) and _is_launch_count(row[4]) for row in packed
        )
    match packed:
        case [_, list(programs), list(blocks)] if all(map(_is_program, programs)):
            return all(_is_block(block, len(programs)) for block in blocks) and _count_rows(blocks) <= _MAX_ROWS
    return False


def _is_program(program: Any) -> bool:
    match program:
        case [str() | int(), str(), list(ranks), int() | None]:
            return all(type(rank) is int for rank in ranks)
    return False


def _is_block(block: Any, programs: int) -> bool:
    match block:
        case [list(entries), int(times)] if 0 <= times <= _MAX_ROWS:
            return all(
                type(entry) is list
                and len(entry) == 2
                and type(entry[0]) is int
                and 0 <= entry[0] < programs
                and _is_launch_count(entry[1])
                for entry in entries
            )
    return False


def _is_launch_count(count: Any) -> bool:
    return type(count) is int and 0 <= count < 1 << 63


def _count_rows(blocks: Sequence[Any]) -> int:
    return sum(len(entries) * int(times) for entries, times in blocks)


def _copy_program(program: Sequence[Any]) -> list[Any]:
    fingerprint, name, ranks, line = program
    return [fingerprint, name, list(ranks), line]


def _group_repetitions(entries: Sequence[tuple[int, int]]) -> list[list[Any]]:
    """Group entries into blocks with repetition counts. The only period tried is the distance to the next equal entry."""
    following = _find_next_equal(entries)
    blocks: list[list[Any]] = []
    single: list[list[int]] = []
    position = 0
    while position < len(entries):
        period = following[position] - position if following[position] else 0
        times = _count_repetitions(entries, position, period) if 0 < period <= _MAX_PERIOD else 1
        if times < 2:
            single.append(list(entries[position]))
            position += 1
            continue
        if single:
            blocks.append([single, 1])
            single = []
        blocks.append([[list(entry) for entry in entries[position : position + period]], times])
        position += period * times
    return [*blocks, [single, 1]] if single else blocks


def _find_next_equal(entries: Sequence[tuple[int, int]]) -> list[int]:
    """Return the position of the next equal entry for each entry; 0 if there is none."""
    seen: dict[tuple[int, int], int] = {}
    following = [0] * len(entries)
    for position in range(len(entries) - 1, -1, -1):
        following[position] = seen.get(entries[position], 0)
        seen[entries[position]] = position
    return following


def _count_repetitions(entries: Sequence[tuple[int, int]], position: int, period: int) -> int:
    block, times = entries[position : position + period], 1
    while entries[position + times * period : position + (times + 1) * period] == block:
        times += 1
    return times
