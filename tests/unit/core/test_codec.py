"""Message encoding: invalid messages are refused, and the format changes only together with its version."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from hashlib import blake2b
from typing import Any, get_args

import pytest

from mhnb.core.codec import decode, encode
from mhnb.core.messages import PROTOCOL_VERSION, CellEnded, Message, RankReply, RankRequest, SkipCell
from mhnb.errors import UnknownMessage

FORMAT = (17, "302baa8c0c8efcd0")
ENCODED = b'["skip_cell",{"generation":1,"seq":2}]'


def test_format_has_a_version() -> None:
    """Detached ranks may meet another version of mhnb. If this fails, raise PROTOCOL_VERSION and enter both values here."""
    # Defaults are included, because a field that holds its default is not written.
    schema = {
        cls.kind: sorted((part.name, part.type, *_defaults(part)) for part in fields(cls)) for cls in get_args(Message)
    }
    digest = blake2b(repr((encode(SkipCell(1, 2)), sorted(schema.items()))).encode(), digest_size=8).hexdigest()
    assert (PROTOCOL_VERSION, digest) == FORMAT


def _defaults(message_field: Field[Any]) -> list[str]:
    defaults = [] if message_field.default_factory is MISSING else [repr(message_field.default_factory())]
    return defaults if message_field.default is MISSING else [repr(message_field.default)]


@pytest.mark.parametrize(
    "message", [RankRequest(3, "pull", {"name": "x"}, (b"a", b"")), RankReply(3, 1, True, {}, (b"z",))]
)
def test_payload_is_decoded_with_its_message(message: Message) -> None:
    """The payload has its own frames, in order."""
    assert decode(encode(message)) == message


def test_a_default_is_not_written() -> None:
    """A value that differs from the default is written, even if both are empty or false."""
    ended = CellEnded(3, 17, "ok", [], [], abandoned=0, wall_s=0.5, interrupted_before=0)
    assert (
        encode(ended)[0]
        == b'["cell_ended",{"rank":3,"seq":17,"outcome":"ok","events":[],"launches":[],"abandoned":0,"wall_s":0.5,"interrupted_before":0}]'
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
        ENCODED + b"]",
        ENCODED.replace(b"skip_cell", b"no such kind"),
        ENCODED.replace(b"seq", b"number"),
        ENCODED.replace(b',"seq":2', b""),
        b'["skip_cell",1,2]',
        b'["skip_cell",[1,2]]',
        b"\xff",
    ],
)
def test_invalid_message_is_refused(header: bytes) -> None:
    """Whatever is wrong with the message, the error shows its beginning."""
    assert decode([ENCODED]) == SkipCell(1, 2)
    with pytest.raises(UnknownMessage, match="cannot read a message that begins"):
        decode([header])
