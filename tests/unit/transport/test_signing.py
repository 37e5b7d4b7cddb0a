"""Signatures: unsigned, changed and replayed messages are refused."""

from __future__ import annotations

import pytest

from mhnb.errors import UnknownMessage
from mhnb.transport.security import Signer, Verifier
from mhnb.types import Frame

FRAMES = [b"header", b"payload"]


def signed_message() -> list[Frame]:
    """A signed message of rank 0."""
    return Signer(b"key", b"r0").sign(FRAMES)


def test_verify_returns_the_signed_frames() -> None:
    """`verify` removes the seal and returns the original frames."""
    assert Verifier(b"key", b"r0").verify(signed_message()) == FRAMES


@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: [f[0], b"Header", f[2]],
        lambda f: [f[0], b"headerp", b"ayload"],
        lambda f: [b"\x02" + f[0][1:], *f[1:]],
        lambda f: [*f, b""],
        lambda f: f[:-1],
        lambda f: f[1:],
        lambda _: [],
        lambda f: [f[0]],
    ],
    ids=["changed", "moved between frames", "recounted", "one more", "one less", "seal gone", "nothing", "seal alone"],
)
def test_changed_message_is_refused(spoil: object) -> None:
    """Any change to the frames or the seal makes the message invalid."""
    with pytest.raises(UnknownMessage):
        Verifier(b"key", b"r0").verify(spoil(signed_message()))  # type: ignore[operator]


def test_wrong_sender_or_key_is_refused() -> None:
    """A seal is valid for one sender and one key only."""
    with pytest.raises(UnknownMessage):
        Verifier(b"key", b"r1").verify(signed_message())
    with pytest.raises(UnknownMessage):
        # The bytes of name and frames together are the same.
        Verifier(b"key", b"r0h").verify([signed_message()[0], b"eader", b"payload"])
    with pytest.raises(UnknownMessage):
        Verifier(b"other", b"r0").verify(signed_message())


def test_replayed_message_is_refused() -> None:
    """A recorded message is refused, because message numbers only rise."""
    verifier, message = Verifier(b"key", b"r0"), signed_message()
    verifier.verify(message)
    with pytest.raises(UnknownMessage, match="second time"):
        verifier.verify(message)
