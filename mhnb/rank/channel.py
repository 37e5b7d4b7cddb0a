"""The far end of the link: one socket of a rank or a supervisor.

Sends may come from any thread; what arrives is read by the owner's main loop.
"""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from collections.abc import Iterable

from mhnb.core.framing import MessageCutter, join_frames
from mhnb.core.protocol import Message, decode, encode
from mhnb.core.signing import Signer, Verifier
from mhnb.errors import UnknownMessage

__all__ = ["Channel", "connect"]

_BUFFER_NBYTES = 1 << 18


class Channel:
    """Signed messages to and from the notebook.

    Args:
        url: where the notebook listens, `unix:PATH` or `tcp:ADDRESS:PORT`.
        key: shared by all of one start.
        peer: this end's name, `r3` or `s0`.
    """

    def __init__(self, url: str, key: bytes, peer: str) -> None:
        self._socket = connect(url)
        self._signer = Signer(key, peer.encode())
        self._verifier = Verifier(key)
        self._sender = b"notebook" + peer.encode()
        self._lock = threading.Lock()
        self._cutter = MessageCutter()
        self._buffer = memoryview(bytearray(_BUFFER_NBYTES))
        self._arrived: deque[Message] = deque()
        self.closed = False
        """The notebook's end is gone: nothing will come, and nobody hears what is sent."""
        self._send([peer.encode()])

    def fileno(self) -> int:
        """The descriptor that is readable while something is to be received, or after the end."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send, and wait while the notebook is slower than we are. Large payloads are not copied."""
        self._send(encode(message))

    def _send(self, frames: list[bytes]) -> None:
        with self._lock:
            try:
                for piece in join_frames(self._signer.sign(frames)):
                    self._socket.sendall(piece)
            except OSError:
                # What ends a rank whose notebook is gone is its supervisor, by the rules of the start.
                self.closed = True

    def receive(self) -> Message | None:
        """Return the next message that has arrived, or None."""
        while not self._arrived:
            try:
                count = self._socket.recv_into(self._buffer, flags=socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError:
                count = 0
            if count == 0:
                self.closed = True
                return None
            self._open(self._cutter.feed(self._buffer[:count]))
        return self._arrived.popleft()

    def _open(self, found: Iterable[list[memoryview]]) -> None:
        for frames in found:
            try:
                self._arrived.append(decode(self._verifier.verify(self._sender, frames)))
            except UnknownMessage as error:
                print(f"mhnb: {error}", flush=True)

    def poll(self, timeout_s: float) -> bool:
        """Wait for a message; for the supervisor and tests, never for a rank's loop."""
        return bool(self._arrived) or bool(select.select([self._socket], [], [], timeout_s)[0])

    def close(self) -> None:
        """Let go. What was sent arrives."""
        self._socket.close()


def connect(url: str, timeout_s: float | None = None) -> socket.socket:
    """Connect to `unix:PATH` or `tcp:ADDRESS:PORT`; an IPv6 address may stand in brackets.

    Args:
        timeout_s: for TCP; None leaves it to the system, which tries for minutes.

    Raises:
        OSError: nobody listens there.
    """
    kind, _, place = url.partition(":")
    if kind == "unix":
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(place)
    else:
        address, _, port = place.rpartition(":")
        connected = socket.create_connection((address.strip("[]"), int(port)), timeout_s)
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected
