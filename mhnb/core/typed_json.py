"""JSON text to values of declared types and back: every field is checked when a value is decoded.

`json` reads and writes the text and msgspec checks the types, because msgspec's own JSON refuses lone surrogates. Those occur in the
source of cells, in the names of threads, and in paths that are not UTF-8. The text has the same bytes as that of earlier versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

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


def convert(value: Any, kind: type[T]) -> T:
    """Convert what JSON holds (lists, tables with text as keys) to a value of a type.

    Raises:
        ValueError: it is not of this type; the message names the field and what was expected.

    >>> convert({"0": 7}, dict[int, int])
    {0: 7}
    """
    return msgspec.convert(value, kind, str_keys=True)


def encode_json(value: object) -> str:
    r"""Encode a value of a declared type as JSON, with spaces and escapes as `json` writes them by default.

    >>> encode_json({0: ("a", "\ud800")})
    '{"0": ["a", "\\ud800"]}'
    """
    return json.dumps(to_json_types(value))


def to_json_types(value: object) -> Any:
    """Convert a value of a declared type to what JSON holds: tables, lists, text, numbers, None."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=to_base_type)


def to_base_type(value: object) -> object:
    """Convert what msgspec refuses: read-only tables, and values of a type derived from one of JSON's, as users' settings hold."""
    if isinstance(value, Mapping):
        return dict(value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}, which JSON has no form for")
