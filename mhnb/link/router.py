"""The notebook's end of the link: one ZeroMQ ROUTER that every rank and supervisor connects to.

It knows frames and signatures, and nothing of what the messages mean.
"""

from __future__ import annotations

import os

import zmq

from mhnb.core.protocol import Message, decode, encode
from mhnb.core.signing import Signer, Verifier
from mhnb.errors import UnknownMessage

__all__ = ["RouterLink"]

_COPY_LIMIT = 64 * 1024
_NOTEBOOK = b"notebook"


class RouterLink:
    """A `Link` over TCP. The owner's reader thread uses it; only `wake` is for others.

    Args:
        key: shared with the ranks of this start; signs both ways.
        address: the one interface to listen on, an IP address.
    """

    def __init__(self, key: bytes, *, address: str = "127.0.0.1") -> None:
        self._key = key
        # A context of our own: closing it must not wait for the sockets of the user's own ZeroMQ programs.
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        port = self._socket.bind_to_random_port(f"tcp://{address}")
        self.url = f"tcp://{address}:{port}"
        self._verifier = Verifier(key)
        self._signers: dict[str, Signer] = {}
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._last_sent: tuple[Message | None, list[bytes]] = (None, [])
        self.refused = 0

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Wait for messages or a wake-up; return every message that is there."""
        ready = dict(self._poller.poll(None if timeout_s is None else max(0, int(timeout_s * 1000))))
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        return self._drain() if self._socket in ready else []

    def _drain(self) -> list[Message]:
        messages: list[Message] = []
        while True:
            try:
                peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append(decode(self._verifier.verify(peer, frames)))
            except UnknownMessage:
                # Anyone who can reach the port may send; what is not ours is counted and shown by status.
                self.refused += 1

    def send(self, peer: str, message: Message) -> None:
        """Send to a peer. A peer that is gone is no error here: its exit is an event of its own."""
        if (signer := self._signers.get(peer)) is None:
            signer = self._signers[peer] = Signer(self._key, _NOTEBOOK + peer.encode())
        if message is not self._last_sent[0]:
            # One cell goes to every rank: it is written once.
            self._last_sent = (message, encode(message))
        frames = [peer.encode(), *signer.sign(self._last_sent[1])]
        try:
            self._socket.send_multipart(frames, copy=all(len(frame) < _COPY_LIMIT for frame in frames))
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise

    def wake(self) -> None:
        """Make a waiting `poll` return."""
        try:
            os.write(self._wake_write, b"w")
        except BlockingIOError:
            # The pipe is full of wake-ups nobody has read yet: the reader will wake all the same.
            return

    def close(self) -> None:
        """Close the sockets and the wake-up pipe."""
        self._socket.close(0)
        self._context.term()
        os.close(self._wake_read)
        os.close(self._wake_write)
