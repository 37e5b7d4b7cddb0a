"""Seal the frames of a message that travels between machines: nobody on the way can read it, change it or play it back.

The same face as `core.signing`, which is for messages that stay on one machine and only need to be ours.
AES-256-GCM (NIST SP 800-38D). The nonce is the sender's count and the frame's place, so none is used twice under a sender's key;
the number of frames is authenticated with each of them, so none can be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from mhnb.core.wire.signing import Signer, Verifier
from mhnb.errors import UnknownMessage
from mhnb.values import Frame

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = [
    "CHALLENGE_NBYTES",
    "MessageOpener",
    "MessageSealer",
    "Opener",
    "Sealer",
    "make_opener",
    "make_sealer",
    "session_key",
]

CHALLENGE_NBYTES = 16

_COUNT_NBYTES = 8


class MessageSealer(Protocol):
    """Makes a message ours."""

    def sign(self, frames: Sequence[bytes]) -> list[Frame]:
        """Give the frames to send."""


class MessageOpener(Protocol):
    """Finds out whether a message is ours."""

    def verify(self, sender: bytes, frames: Sequence[Frame]) -> list[Frame]:
        """Give the frames as they were. Raises UnknownMessage."""


def session_key(key: bytes, challenge: bytes, answer: bytes) -> bytes:
    """Make the key of one connection from the cluster's, and from what each end has made up for it.

    So nothing that was recorded on an older connection can be played back on this one, to either end.

    >>> len(session_key(b"k", b"c" * 16, b"a" * 16))
    32
    """
    return blake2b(challenge + answer, digest_size=32, key=key, person=b"mhnb session").digest()


def make_sealer(key: bytes, sender: bytes, *, encrypt: bool) -> MessageSealer:
    """Make the sealer of one sender, for one receiver."""
    return Sealer(key, sender) if encrypt else Signer(key, sender)


def make_opener(key: bytes, *, encrypt: bool) -> MessageOpener:
    """Make the opener of one receiver, for all of its senders."""
    return Opener(key) if encrypt else Verifier(key)


def _cipher(key: bytes, sender: bytes) -> AESGCM:
    # Here: most clusters are of one machine, and pay nothing for it.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(blake2b(sender, digest_size=32, key=key, person=b"mhnb link").digest())


def _nonce(count: Frame, place: int) -> bytes:
    return bytes(count) + place.to_bytes(4, "little")


class Sealer:
    """Seals what one sender sends to one receiver.

    >>> frames = Sealer(b"k", b"r0").sign([b"hello"])
    >>> b"hello" in b"".join(frames), Opener(b"k").verify(b"r0", frames)
    (False, [b'hello'])
    """

    def __init__(self, key: bytes, sender: bytes) -> None:
        self._cipher, self._count = _cipher(key, sender), 0

    def sign(self, frames: Sequence[bytes]) -> list[Frame]:
        """Give the count, which is no secret, and each frame encrypted."""
        self._count += 1
        count = self._count.to_bytes(_COUNT_NBYTES, "little")
        number = len(frames).to_bytes(4, "little")
        return [count, *(self._cipher.encrypt(_nonce(count, at), frame, number) for at, frame in enumerate(frames))]


class Opener:
    """Opens what many senders send to one receiver."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._ciphers: dict[bytes, AESGCM] = {}
        self._seen: dict[bytes, int] = {}

    def verify(self, sender: bytes, frames: Sequence[Frame]) -> list[Frame]:
        """Give the frames in clear.

        Raises:
            UnknownMessage: sealed with another key or not at all, changed on the way, or seen before.
        """
        from cryptography.exceptions import InvalidTag

        if len(frames) < 2 or len(frames[0]) != _COUNT_NBYTES:
            raise UnknownMessage(f"an unsealed message of {len(frames)} frames came from {sender!r}; it was dropped")
        count, sealed = frames[0], frames[1:]
        cipher = self._ciphers.get(sender) or _cipher(self._key, sender)
        number = len(sealed).to_bytes(4, "little")
        try:
            opened: list[Frame] = [cipher.decrypt(_nonce(count, at), frame, number) for at, frame in enumerate(sealed)]
        except InvalidTag:
            raise UnknownMessage(f"a message with a broken seal came from {sender!r}; it was dropped") from None
        order = int.from_bytes(count, "little")
        if order <= self._seen.get(sender, 0):
            raise UnknownMessage(f"message {order} of {sender!r} came a second time; it was dropped")
        # Only of those that have shown the key: strangers could name any number of senders.
        self._ciphers[sender], self._seen[sender] = cipher, order
        return opened
