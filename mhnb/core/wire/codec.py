"""JSON codec of protocol messages: one JSON header frame, followed by the payload frames (raw bytes).

A field that holds its default is not written, because the end of a cell has many fields that are nearly always empty.
The transport carries and signs the frames.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from math import isfinite
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mhnb.core.guard.provenance import are_input_rows
from mhnb.core.wire.protocol import CellEnded, Message
from mhnb.core.wire.rowpack import is_launch_record
from mhnb.errors import UnknownMessage
from mhnb.values import Frame

__all__ = ["decode", "encode"]

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

    >>> from mhnb.core.wire.protocol import SkipCell
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
