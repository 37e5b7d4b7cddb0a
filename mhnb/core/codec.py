"""JSON codec of protocol messages: a JSON header, then raw payload frames.

The types of a message's fields are checked when it is decoded. A field that holds its default is not written, because the end of a
cell has many fields that are nearly always empty. The transport carries and signs the frames.

JSON has no NaN and no infinity, and msgspec would write null for them: values of any type must not hold them. Displays hold them as text.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mhnb.core.messages import Message, RankReply, RankRequest
from mhnb.core.typed_json import MessageCodec
from mhnb.errors import UnknownMessage
from mhnb.types import Frame

_CODEC: MessageCodec[Message] = MessageCodec(Message)
_SHOWN_NBYTES, _SHOWN_CHARS = 120, 300


def encode(message: Message) -> list[bytes]:
    """Encode a message as frames: a JSON header, then the payload.

    >>> from mhnb.core.messages import SkipCell
    >>> encode(SkipCell(generation=1, seq=4))
    [b'{"kind":"SkipCell","generation":1,"seq":4}']
    """
    if isinstance(message, RankRequest | RankReply) and message.payload:
        return [_CODEC.encode(msgspec.structs.replace(message, payload=())), *message.payload]
    return [_CODEC.encode(message)]


def decode(frames: Sequence[Frame]) -> Message:
    """Decode a message from its frames.

    Raises:
        UnknownMessage: the header is not JSON, the kind is unknown, or a field is missing, unknown or of another type.

    >>> decode([b'{"kind":"SkipCell","generation":1,"seq":4}'])
    SkipCell(generation=1, seq=4, count=1)
    >>> decode([b'{"kind":"SkipCell","generation":1,"seq":"x"}'])  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    mhnb.errors.UnknownMessage: a SkipCell cannot be read: Expected `int`, got `str` - at `$.seq`
    """
    header = frames[0] if frames else b""
    try:
        message = _CODEC.decode(header)
    except (ValueError, RecursionError) as error:
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
    except (ValueError, RecursionError):
        return "a message"
