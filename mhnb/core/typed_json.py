"""Convert typed values to JSON and back, checking every field when decoding.

`json` reads and writes the text and msgspec checks the types, because msgspec's own JSON refuses lone surrogates. Those occur in the
source of cells, in the names of threads, and in paths that are not UTF-8. The text has the same bytes as that of earlier versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, Generic, TypeVar, cast

import msgspec

from mhnb.types import Frame

T = TypeVar("T")


def decode_json(text: str | bytes, kind: type[T]) -> T:
    """Decode JSON to a value of a type.

    Raises:
        ValueError: the text is not JSON or not of this type; the message names the field and what was expected.

    >>> decode_json("[1, 2]", tuple[int, ...])
    (1, 2)
    >>> decode_json('{"a": ["b"]}', dict[str, tuple[int, ...]])
    Traceback (most recent call last):
    msgspec.ValidationError: Expected `int`, got `str` - at `$[...][0]`
    """
    try:
        return convert(json.loads(text), kind)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


class MessageCodec(Generic[T]):
    r"""Compact JSON codec for one message type, with support for lone surrogates.

    >>> codec = MessageCodec(tuple[int, str])
    >>> codec.encode((1, "a")), codec.decode(codec.encode((1, "\ud800")))
    (b'[1,"a"]', (1, '\ud800'))
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decoder, self._encoder = msgspec.json.Decoder(kind), msgspec.json.Encoder(enc_hook=to_base_type)

    def encode(self, message: T) -> bytes:
        """Encode a message."""
        try:
            return self._encoder.encode(message)
        except UnicodeEncodeError:
            plain = to_json_types(message)
            return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")

    def decode(self, text: Frame) -> T:
        """Decode a message.

        Raises:
            ValueError: the text is not JSON or not of this type; the message names the field and what was expected.
        """
        try:
            return cast(T, self._decoder.decode(text))
        except UnicodeDecodeError:
            plain = json.loads(
                str(text, "utf-8", "surrogatepass"), parse_float=_parse_finite, parse_constant=_parse_finite
            )
            return cast(T, convert(plain, self._kind))
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def _parse_finite(text: str) -> float:
    """Parse a number as msgspec does, without NaN and infinity.

    Raises:
        ValueError: it is not a finite number.
    """
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


def convert(value: Any, kind: type[T]) -> T:
    """Convert decoded JSON (lists, tables with text keys) to a type.

    Raises:
        ValueError: it is not of this type; the message names the field and what was expected.

    >>> convert({"0": 7}, dict[int, int])
    {0: 7}
    """
    return msgspec.convert(value, kind, str_keys=True)


def encode_json(value: object) -> str:
    r"""Encode a typed value as JSON in the default format of `json`.

    >>> encode_json({0: ("a", "\ud800")})
    '{"0": ["a", "\\ud800"]}'
    """
    return json.dumps(to_json_types(value))


def to_json_types(value: object) -> Any:
    """Convert a typed value to JSON's types: tables, lists, text, numbers, None."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=to_base_type)


def to_base_type(value: object) -> object:
    """Convert what msgspec refuses: read-only tables, and subclasses in users' settings."""
    if isinstance(value, Mapping):
        return dict(value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}, which JSON has no form for")
