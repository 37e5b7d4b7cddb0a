"""Message encoding: invalid messages are refused, and the format changes only together with its version."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from mhnb.core.codec import decode, encode
from mhnb.core.guard.launch_report import LaunchReport
from mhnb.core.messages import (
    PROTOCOL_VERSION,
    CellEnded,
    HostSpec,
    HostUp,
    Message,
    RankReply,
    RankRequest,
    SkipCell,
    StartRanks,
)
from mhnb.core.output.events import Stream
from mhnb.errors import UnknownMessage

FORMAT = (29, "0aa33867e083f117")
ENCODED = b'{"kind":"SkipCell","generation":1,"seq":2}'


def test_format_has_a_version() -> None:
    """Detached ranks may meet another version of mhnb. If this fails, raise PROTOCOL_VERSION and enter both values here."""
    # The schema includes the structs inside messages, and the defaults, because a field that holds its default is not written.
    schemas, components = msgspec.json.schema_components(get_args(Message))
    text = json.dumps([encode(SkipCell(1, 2))[0].decode(), schemas, _without_descriptions(components)], sort_keys=True)
    assert (PROTOCOL_VERSION, blake2b(text.encode(), digest_size=8).hexdigest()) == FORMAT


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _without_descriptions(part) for name, part in schema.items() if name != "description"}
    return [_without_descriptions(part) for part in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize(
    "message", [RankRequest(3, "pull", {"name": "x"}, (b"a", b"")), RankReply(3, 1, True, {}, (b"z",))]
)
def test_payload_is_decoded_with_its_message(message: Message) -> None:
    """The payload has its own frames, in order."""
    assert decode(encode(message)) == message


def test_a_default_is_not_written() -> None:
    """A value that differs from the default is written, even if both are empty or false."""
    ended = CellEnded(3, 17, "ok", [], 0.5, LaunchReport(interrupted_before=0))
    assert (
        encode(ended)[0]
        == b'{"kind":"CellEnded","rank":3,"seq":17,"outcome":"ok","events":[],"wall_s":0.5,"launches":{"interrupted_before":0}}'
    )
    assert decode(encode(ended)) == ended


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"7",
        b'"skip_cell"',
        ENCODED[:-1],
        ENCODED + b"}",
        ENCODED.replace(b"SkipCell", b"no such kind"),
        ENCODED.replace(b"seq", b"number"),
        ENCODED.replace(b',"seq":2', b""),
        ENCODED.replace(b"}", b',"more":1}'),
        ENCODED.replace(b"1", b"true"),
        ENCODED.replace(b"2", b"9223372036854775808"),
        b'["SkipCell",1,2]',
        b'{"generation":1,"seq":2}',
        b"\xff",
    ],
)
def test_invalid_message_is_refused(header: bytes) -> None:
    """Whatever is wrong with the message, the error shows its beginning."""
    assert decode([ENCODED]) == SkipCell(1, 2)
    with pytest.raises(UnknownMessage, match=r"cannot be read: .*; the message begins"):
        decode([header])


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (
            b'{"kind":"CellRefused","rank":"x","seq":1,"reason":""}',
            "a CellRefused cannot be read: Expected `int`, got `str` - at `$.rank`",
        ),
        (
            b'{"kind":"OutputProduced","rank":0,"seq":1,"events":[["Stream","stdout",7]]}',
            "an OutputProduced cannot be read: Expected `str`, got `int` - at `$.events[0][2]`",
        ),
        (b"7", "a message cannot be read: Expected `object`, got `int`"),
    ],
)
def test_error_names_kind_field_and_what_was_expected(header: bytes, words: str) -> None:
    """Whoever reads it needs not look at the bytes."""
    with pytest.raises(UnknownMessage, match=re.escape(words)):
        decode([header])


@pytest.mark.parametrize("text", ["\ud800", "a\udcff", "€\udcffü"])
def test_half_a_character_arrives(text: str) -> None:
    """A name of a file that is not UTF-8 holds a lone surrogate, and is output like any other text."""
    ended = CellEnded(3, 17, "ok", [Stream("stdout", text)], 0.5, facts={"n": [1, None, 1.5, {"x": text}]})
    assert decode(encode(ended)) == ended


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_number_that_is_not_finite_is_refused(number: str) -> None:
    """Also beside text that is not valid UTF-8."""
    for text in (b"x", b"\xed\xa0\x80"):
        with pytest.raises(UnknownMessage):
            decode(
                [
                    b'{"kind":"RankReply","rank":0,"request_id":1,"ok":true,"value":["'
                    + text
                    + b'",'
                    + number.encode()
                    + b"]}"
                ]
            )


class _OwnText(str):
    """Text of a class of the user's, as a `__repr__` may return it."""

    __slots__ = ()


@pytest.mark.parametrize("text", ["a", "\ud800"])
def test_text_of_a_class_of_the_users_arrives_as_text(text: str) -> None:
    """So do other values of a class that is derived from a class of JSON."""
    reply = RankReply(3, 1, ok=True, value={_OwnText("x"): [_OwnText(text), np.float64(1.5)]})
    assert decode(encode(reply)) == RankReply(3, 1, ok=True, value={"x": [text, 1.5]})


def test_secrets_are_not_shown() -> None:
    """The key and the hub's connection file are in no text of a message, nor is a payload."""
    host_spec = HostSpec("tcp:127.0.0.1:1", "secret", 0, 1, 1, [0], 2, "", {}, {}, ".", ".", connection="secret")
    for value in (host_spec, StartRanks("a", "b", "secret", {}), HostUp(0, 1, "h", None, connection="secret")):
        assert "secret" not in repr(value)
    assert "secret" not in repr(RankReply(3, 1, ok=True, value={}, payload=(b"secret",)))
