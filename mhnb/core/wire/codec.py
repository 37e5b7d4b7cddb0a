"""How a message is written: one JSON header frame, followed by its payload frames (raw bytes).

A field that holds its default is not written: a rank's end has many that are nearly always empty.
What carries the frames, and how they are signed, is the link's business.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, get_args

from mhnb.core.wire.framing import Frame
from mhnb.core.wire.protocol import Message
from mhnb.errors import UnknownMessage

__all__ = ["decode", "encode"]

_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Message)}
# Made once: `json.dumps` with separators of one's own makes an encoder a call.
_write_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_read_json = json.JSONDecoder().decode
_NEEDED = object()
"""Stands for the default of a field that has none; equal to nothing that a field holds."""


def _default(part: Field[Any]) -> Any:
    if part.default_factory is not MISSING:
        return part.default_factory()
    return _NEEDED if part.default is MISSING else part.default


_DEFAULTS = {cls: {part.name: _default(part) for part in fields(cls)} for cls in _KINDS.values()}


def encode(message: Message) -> list[bytes]:
    """Write a message as frames: a JSON header, then the payload.

    >>> from mhnb.core.wire.protocol import SkipCell
    >>> encode(SkipCell(generation=1, seq=4))
    [b'["skip_cell",{"generation":1,"seq":4}]']
    """
    cls = type(message)
    body = {name: value for name, default in _DEFAULTS[cls].items() if (value := getattr(message, name)) != default}
    payload = body.pop("payload", ())
    return [_write_json([cls.kind, body]).encode("utf-8", "surrogatepass"), *payload]


def decode(frames: Sequence[Frame]) -> Message:
    """Read a message from its frames.

    Raises:
        UnknownMessage: no JSON, an unknown kind, or fields that do not fit.

    >>> decode([b'["skip_cell",{"generation":1,"seq":4}]'])
    SkipCell(generation=1, seq=4)
    """
    try:
        kind, body = _read_json(str(frames[0], "utf-8", "surrogatepass"))
        cls = _KINDS[kind]
        if "payload" in _DEFAULTS[cls]:
            body["payload"] = tuple(frames[1:])
        message: Message = cls(**body)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        shown = bytes(frames[0][:120]) if frames else b""
        raise UnknownMessage(f"cannot read a message that begins {shown!r}: {error!r}") from error
    return message
