"""The far end of the link: one ZeroMQ DEALER of a rank or a supervisor.

Sends may come from any thread; what arrives is read by the owner's main loop.
"""

from __future__ import annotations

import threading

import zmq

from mhnb.core.protocol import Message, decode, encode
from mhnb.core.signing import Signer, Verifier
from mhnb.errors import UnknownMessage

__all__ = ["Channel"]

_COPY_LIMIT = 64 * 1024


class Channel:
    """Signed messages to and from the notebook.

    Args:
        url: the notebook's ROUTER.
        key: shared by all of one start.
        peer: this end's name, `r3` or `s0`.
    """

    def __init__(self, url: str, key: bytes, peer: str) -> None:
        # Made after the fork: a context does not survive it.
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, peer.encode())
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(url)
        self._signer = Signer(key, peer.encode())
        self._verifier = Verifier(key)
        self._sender = b"notebook" + peer.encode()
        # One lock for both directions: a ZeroMQ socket may change threads only behind a full fence.
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The edge-triggered descriptor that says when to call `receive`."""
        return int(self._socket.getsockopt(zmq.FD))

    def send(self, message: Message) -> None:
        """Send; never blocks. Large payloads are not copied."""
        frames = encode(message)
        with self._lock:
            sealed = self._signer.sign(frames)
            self._socket.send_multipart(sealed, copy=all(len(frame) < _COPY_LIMIT for frame in sealed))

    def receive(self) -> Message | None:
        """Return the next message, or None. Call until None: the descriptor tells of edges, not of levels."""
        while True:
            with self._lock:
                try:
                    frames = self._socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    return None
            try:
                return decode(self._verifier.verify(self._sender, frames))
            except UnknownMessage as error:
                print(f"mhnb: {error}", flush=True)

    def poll(self, timeout_s: float) -> bool:
        """Wait for a message; for the supervisor and tests, never for a rank's loop."""
        return bool(self._socket.poll(int(timeout_s * 1000)))

    def close(self) -> None:
        """Send what is queued, then let go."""
        self._socket.close()
        self._context.term()
