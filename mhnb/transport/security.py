"""Authenticate messages: signed on one machine, sealed (encrypted) between machines.

The key is created for one start of one cluster. Each sender counts its messages under the signature. Each receiver accepts
a sender's numbers only in rising order, so that a recorded message cannot be replayed.
A keyed BLAKE2b is a message authentication code by design (RFC 7693), and signs a short message in half the time of HMAC-SHA256.

A sealed message cannot be read, changed or replayed on the way. Signing and sealing have the same interface.
Sealing uses AES-256-GCM (NIST SP 800-38D). The nonce is the sender's count and the frame's position, so no nonce is used twice under
a sender's key. The number of frames is authenticated with each of them, so none can be left out.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias

from mhnb.errors import UnknownMessage
from mhnb.types import Frame

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


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
    >>> Verifier(b"k", b"r0").verify(frames)
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
    """Checks the messages of one sender to one receiver."""

    def __init__(self, key: bytes, sender: bytes) -> None:
        self._key, self._sender, self._last_count = key, sender, 0

    def verify(self, frames: Sequence[Frame]) -> list[Frame]:
        """Check and remove the seal.

        Raises:
            UnknownMessage: the seal is missing, wrong, or was received before.
        """
        if len(frames) < 2 or len(frames[0]) != _COUNT_NBYTES + MAC_NBYTES:
            raise UnknownMessage(
                f"an unsigned message of {len(frames)} frames came from {self._sender!r}; it was dropped"
            )
        count, code = frames[0][:_COUNT_NBYTES], frames[0][_COUNT_NBYTES:]
        if not hmac.compare_digest(code, _mac(self._key, self._sender, count, frames[1:])):
            raise UnknownMessage(f"a message with a wrong signature came from {self._sender!r}; it was dropped")
        number = int.from_bytes(count, "little")
        if number <= self._last_count:
            raise UnknownMessage(f"message {number} of {self._sender!r} came a second time; it was dropped")
        self._last_count = number
        return list(frames[1:])


# -- encryption


def _cipher(key: bytes, sender: bytes) -> AESGCM:
    # Imported late: most clusters run on one machine and never need it.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(blake2b(sender, digest_size=32, key=key, person=b"mhnb link").digest())


def _nonce(count: Frame, index: int) -> bytes:
    return bytes(count) + index.to_bytes(4, "little")


class Encryptor:
    """Encrypts the messages of one sender to one receiver.

    >>> frames = Encryptor(b"k", b"r0").sign([b"hello"])
    >>> b"hello" in b"".join(frames), Decryptor(b"k", b"r0").verify(frames)
    (False, [b'hello'])
    """

    def __init__(self, key: bytes, sender: bytes) -> None:
        self._cipher, self._count = _cipher(key, sender), 0

    def sign(self, frames: Sequence[bytes]) -> list[Frame]:
        """Return the counter, which is not secret, and each frame encrypted."""
        self._count += 1
        count = self._count.to_bytes(_COUNT_NBYTES, "little")
        number = len(frames).to_bytes(4, "little")
        return [count, *(self._cipher.encrypt(_nonce(count, at), frame, number) for at, frame in enumerate(frames))]


class Decryptor:
    """Decrypts the messages of one sender to one receiver."""

    def __init__(self, key: bytes, sender: bytes) -> None:
        self._cipher, self._sender, self._last_count = _cipher(key, sender), sender, 0

    def verify(self, frames: Sequence[Frame]) -> list[Frame]:
        """Return the decrypted frames.

        Raises:
            UnknownMessage: the message was encrypted with another key, not encrypted, changed in transit, or received before.
        """
        from cryptography.exceptions import InvalidTag

        if len(frames) < 2 or len(frames[0]) != _COUNT_NBYTES:
            raise UnknownMessage(
                f"an unsealed message of {len(frames)} frames came from {self._sender!r}; it was dropped"
            )
        count, encrypted = frames[0], frames[1:]
        number = len(encrypted).to_bytes(4, "little")
        try:
            decrypted: list[Frame] = [
                self._cipher.decrypt(_nonce(count, at), frame, number) for at, frame in enumerate(encrypted)
            ]
        except InvalidTag:
            raise UnknownMessage(f"a message with a broken seal came from {self._sender!r}; it was dropped") from None
        order = int.from_bytes(count, "little")
        if order <= self._last_count:
            raise UnknownMessage(f"message {order} of {self._sender!r} came a second time; it was dropped")
        self._last_count = order
        return decrypted


# -- one connection


CHALLENGE_NBYTES = 16

FrameWriter: TypeAlias = Signer | Encryptor
FrameReader: TypeAlias = Verifier | Decryptor


def open_session(
    key: bytes, challenge: bytes, answer: bytes, client: bytes, *, is_server: bool, encrypt: bool
) -> tuple[FrameWriter, FrameReader]:
    """Return the writer and reader of one end of a connection.

    The key of the connection is derived from the cluster's key and a random value of each end. So messages recorded on an older
    connection cannot be replayed on this one, to either end.

    Args:
        key: of the cluster.
        challenge: random value of the server.
        answer: random value of the client.
        client: the client's name. The server's messages have another sender, so that none can be sent back to it.
        is_server: which end it is.
        encrypt: encrypt messages, instead of only signing them.
    """
    session_key = blake2b(challenge + answer, digest_size=32, key=key, person=b"mhnb session").digest()
    own, other = (b"to " + client, client) if is_server else (client, b"to " + client)
    if encrypt:
        return Encryptor(session_key, own), Decryptor(session_key, other)
    return Signer(session_key, own), Verifier(session_key, other)
