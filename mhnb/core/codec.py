"""JSON codec of protocol messages: one JSON header frame, followed by the payload frames (raw bytes).

The types of a message's fields are checked when it is decoded. A field that holds its default is not written, because the end of a
cell has many fields that are nearly always empty. The transport carries and signs the frames.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite

import msgspec

from mhnb.core.messages import Message, RankReply, RankRequest
from mhnb.core.typed_json import convert, to_base_type, to_json_types
from mhnb.errors import UnknownMessage
from mhnb.types import Frame

_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_encode_json = msgspec.json.Encoder(enc_hook=to_base_type).encode
_READ_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)
"""What reading JSON of any bytes may raise."""
_SHOWN_NBYTES, _SHOWN_CHARS = 120, 300


def encode(message: Message) -> list[bytes]:
    """Encode a message as frames: a JSON header, then the payload.

    >>> from mhnb.core.messages import SkipCell
    >>> encode(SkipCell(generation=1, seq=4))
    [b'{"kind":"SkipCell","generation":1,"seq":4}']
    """
    if isinstance(message, RankRequest | RankReply) and message.payload:
        return [_write_json(msgspec.structs.replace(message, payload=())), *message.payload]
    return [_write_json(message)]


def decode(frames: Sequence[Frame]) -> Message:
    """Decode a message from its frames.

    Raises:
        UnknownMessage: the header is not JSON, the kind is unknown, or a field is missing, unknown or of another type.

    >>> decode([b'{"kind":"SkipCell","generation":1,"seq":4}'])
    SkipCell(generation=1, seq=4)
    >>> decode([b'{"kind":"SkipCell","generation":1,"seq":"x"}'])  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    mhnb.errors.UnknownMessage: a SkipCell cannot be read: Expected `int`, got `str` - at `$.seq`
    """
    header = frames[0] if frames else b""
    try:
        message = _read_json(header)
    except _READ_ERRORS as error:
        shown = bytes(header[:_SHOWN_NBYTES])
        raise UnknownMessage(
            f"{_name_kind(header)} cannot be read: {str(error)[:_SHOWN_CHARS]}; the message begins {shown!r}"
        ) from error
    if isinstance(message, RankRequest | RankReply):
        return msgspec.structs.replace(message, payload=tuple(frames[1:]))
    return message


class _Header(msgspec.Struct):
    """The part of a message that names its kind."""

    kind: str


def _name_kind(header: Frame) -> str:
    try:
        kind = msgspec.json.decode(header, type=_Header).kind[:40]
        return f"{'an' if kind[:1] in 'AEIOU' else 'a'} {kind}"
    except _READ_ERRORS:
        return "a message"


def _write_json(message: Message) -> bytes:
    try:
        return _encode_json(message)
    except UnicodeEncodeError:
        # A lone surrogate, as in the name of a file that is not UTF-8: msgspec writes valid UTF-8 only.
        plain = to_json_types(message)
        return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _read_json(text: Frame) -> Message:
    try:
        return _DECODER.decode(text)
    except UnicodeDecodeError:
        plain = json.loads(str(text, "utf-8", "surrogatepass"), parse_float=_parse_finite, parse_constant=_parse_finite)
        return convert(plain, _DECODER.type)


def _parse_finite(text: str) -> float:
    """Parse a number as msgspec does, which knows no NaN and no infinity.

    Raises:
        ValueError: it is not a finite number.
    """
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number
