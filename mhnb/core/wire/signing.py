"""Sign the frames of a message, and reject messages that are unsigned or repeated.

The key is created for one start of one cluster. Each sender counts its messages under the signature. Each receiver accepts
a sender's numbers only in rising order, so that a recorded message cannot be replayed.
A keyed BLAKE2b is a message authentication code by design (RFC 7693), and signs a short message in half the time of HMAC-SHA256.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import blake2b

from mhnb.errors import UnknownMessage
from mhnb.values import Frame

__all__ = ["MAC_NBYTES", "Signer", "Verifier"]

MAC_NBYTES = 16
_COUNT_NBYTES = 8


def _mac(key: bytes, sender: bytes, count: Frame, frames: Sequence[Frame]) -> bytes:
    mac = blake2b(sender, digest_size=MAC_NBYTES, key=key)
    mac.update(count)
    for frame in frames:
        # The length goes first, so that bytes cannot move from one frame to the next.
        mac.update(len(frame).to_bytes(8, "little"))
        mac.update(frame)
    return mac.digest()


class Signer:
    """Signs the messages of one sender to one receiver.

    >>> frames = Signer(b"k", b"r0").sign([b"hello"])
    >>> Verifier(b"k").verify(b"r0", frames)
    [b'hello']
    """

    def __init__(self, key: bytes, sender: bytes) -> None:
        self._key, self._sender, self._count = key, sender, 0

    def sign(self, frames: Sequence[bytes]) -> list[Frame]:
        """Prepend the seal (count and code) to the frames."""
        self._count += 1
        count = self._count.to_bytes(_COUNT_NBYTES, "little")
        return [count + _mac(self._key, self._sender, count, frames), *frames]


class Verifier:
    """Checks the messages of many senders to one receiver."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._last_counts: dict[bytes, int] = {}

    def verify(self, sender: bytes, frames: Sequence[Frame]) -> list[Frame]:
        """Check and remove the seal.

        Raises:
            UnknownMessage: the seal is missing, wrong, or was received before.
        """
        if len(frames) < 2 or len(frames[0]) != _COUNT_NBYTES + MAC_NBYTES:
            raise UnknownMessage(f"an unsigned message of {len(frames)} frames came from {sender!r}; it was dropped")
        count, code = frames[0][:_COUNT_NBYTES], frames[0][_COUNT_NBYTES:]
        if not hmac.compare_digest(code, _mac(self._key, sender, count, frames[1:])):
            raise UnknownMessage(f"a message with a wrong signature came from {sender!r}; it was dropped")
        number = int.from_bytes(count, "little")
        if number <= self._last_counts.get(sender, 0):
            raise UnknownMessage(f"message {number} of {sender!r} came a second time; it was dropped")
        self._last_counts[sender] = number
        return list(frames[1:])
