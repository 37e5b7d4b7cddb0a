"""JSON codec of protocol messages: one JSON header frame, followed by the payload frames (raw bytes).

A field that holds its default is not written, because the end of a cell has many fields that are nearly always empty.
The transport carries and signs the frames.

A cell's launch record is compressed: a loop that alternates between programs is written once, with its count. The record already
merges consecutive rows of one program. A loop of two programs makes two rows per iteration, 100 bytes each. Here the programs
are listed once, and a run of rows that repeats is written as one iteration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from math import isfinite
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mhnb.core.guard.provenance import are_input_rows
from mhnb.core.messages import CellEnded, LaunchRow, Message
from mhnb.errors import UnknownMessage
from mhnb.types import Frame

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


# -- JSON codec of protocol messages


_CLASS_BY_KIND: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Message)}
# Built once, because `json.dumps` with custom separators builds an encoder on every call.
_write_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_read_json = json.JSONDecoder().decode
_NO_DEFAULT = object()
"""Stands for the default of a field without a default. It equals no value that a field can hold."""


def _get_default(field_spec: Field[Any]) -> Any:
    if field_spec.default_factory is not MISSING:
        return field_spec.default_factory()
    return _NO_DEFAULT if field_spec.default is MISSING else field_spec.default


_DEFAULTS = {cls: {part.name: _get_default(part) for part in fields(cls)} for cls in _CLASS_BY_KIND.values()}


_Check = Callable[[Any], bool]
"""Checks whether a value has the type of a field."""
_INTEGER_LIMIT = 1 << 63


def _make_check(kind: Any) -> _Check:
    """Build the check for a type that the fields of messages use."""
    if kind is Any:
        return lambda _value: True
    if kind is int:
        # Numbers are stored in words of 8 bytes, and used as process numbers.
        return lambda value: type(value) is int and -_INTEGER_LIMIT <= value < _INTEGER_LIMIT
    if kind is float:
        return lambda value: (
            (type(value) is float and isfinite(value))
            or (type(value) is int and -_INTEGER_LIMIT <= value < _INTEGER_LIMIT)
        )
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return lambda value: type(value) is str and value in parts
    if origin is UnionType:
        either = [_make_check(part) for part in parts]
        return lambda value: any(fits(value) for fits in either)
    if origin is list:
        item = _make_check(parts[0])
        return lambda value: type(value) is list and (parts[0] is Any or all(map(item, value)))
    if origin is dict:
        item = _make_check(parts[1])
        return lambda value: type(value) is dict and (parts[1] is Any or all(map(item, value.values())))
    if origin is tuple:
        return lambda value: type(value) is tuple
    return lambda value: type(value) is kind


_is_text, _is_number, _is_dict, _are_ranks = (_make_check(kind) for kind in (str, int, dict[str, Any], list[int]))
_EVENT_CHECKS: dict[str, tuple[_Check, ...]] = {
    "stdout": (_is_text,),
    "stderr": (_is_text,),
    "noise": (_is_text,),
    "display": (_is_dict, _is_dict, _make_check(str | None)),
    "update": (_is_dict, _is_dict, _is_text),
    "result": (_is_dict, _is_dict),
    "clear": (_make_check(bool),),
    "omitted": (_is_text, _is_number),
    "error": (
        _is_text,
        _is_text,
        _make_check(list[str]),
        _make_check(int | None),
        _make_check(str | None),
        _make_check(float),
    ),
}
"""The values that follow the kind of an output event. An error event may end with a site, which is a list."""
_SITE_CHECKS = [
    _is_text,
    _is_text,
    _is_text,
    _make_check(dict[str, bool]),
    _make_check(bool),
    _make_check(dict[str, list[Any]]),
]


def _is_event(event: Any) -> bool:
    if type(event) is not list or not event or type(event[0]) is not str or event[0] not in _EVENT_CHECKS:
        return False
    checks, values = _EVENT_CHECKS[event[0]], event[1:]
    site = values[len(checks) :]
    if site and not (event[0] == "error" and len(site) == 1 and _is_site(site[0])):
        return False
    return len(values) >= len(checks) and all(fits(value) for fits, value in zip(checks, values, strict=False))


def _is_site(site: Any) -> bool:
    return type(site) is list and len(site) <= len(_SITE_CHECKS) and all(map(_passes, _SITE_CHECKS, site))


def _passes(check: _Check, value: Any) -> bool:
    return check(value)


def _are_events(events: Any) -> bool:
    return type(events) is list and all(map(_is_event, events))


def _are_launch_counts(rows: Any) -> bool:
    return type(rows) is list and all(
        type(row) is list and len(row) == 2 and _is_participant_count(*row) for row in rows
    )


def _is_participant_count(participants: Any, launches: Any) -> bool:
    return _are_ranks(participants) and _is_number(launches)


def _build_checks(cls: type[Any]) -> dict[str, _Check]:
    hints = get_type_hints(cls)
    known = {"events": _are_events, "launches": is_launch_record, "counts": _are_launch_counts}
    if cls is CellEnded:
        known["refused_inputs"] = are_input_rows
    return {part.name: known.get(part.name) or _make_check(hints[part.name]) for part in fields(cls)}


_CHECKS = {cls: _build_checks(cls) for cls in _CLASS_BY_KIND.values()}


def encode(message: Message) -> list[bytes]:
    """Encode a message as frames: a JSON header, then the payload.

    >>> from mhnb.core.messages import SkipCell
    >>> encode(SkipCell(generation=1, seq=4))
    [b'["skip_cell",{"generation":1,"seq":4}]']
    """
    cls = type(message)
    body = {name: value for name, default in _DEFAULTS[cls].items() if (value := getattr(message, name)) != default}
    payload = body.pop("payload", ())
    return [_write_json([cls.kind, body]).encode("utf-8", "surrogatepass"), *payload]


def decode(frames: Sequence[Frame]) -> Message:
    """Decode a message from its frames.

    Raises:
        UnknownMessage: the header is not JSON, the kind is unknown, or a field is missing, unknown or of another type.

    >>> decode([b'["skip_cell",{"generation":1,"seq":4}]'])
    SkipCell(generation=1, seq=4)
    """
    try:
        kind, body = _read_json(str(frames[0], "utf-8", "surrogatepass"))
        cls = _CLASS_BY_KIND[kind]
        if "payload" in _DEFAULTS[cls]:
            body["payload"] = tuple(frames[1:])
        message: Message = cls(**body)
        checks = _CHECKS[cls]
        for name, value in body.items():
            if not checks[name](value):
                raise TypeError(f"{name} is {str(value)[:80]}")
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        shown = bytes(frames[0][:120]) if frames else b""
        raise UnknownMessage(f"cannot read a message that begins {shown!r}: {error!r}") from error
    return message
