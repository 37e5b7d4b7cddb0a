"""The far end of the link: one socket of a rank or a supervisor.

Sends may come from any thread; what arrives is read by the owner's main loop.
"""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from collections.abc import Iterable, Sequence

from mhnb.core.framing import Frame, MessageCutter, join_frames
from mhnb.core.protocol import Message, decode, encode
from mhnb.errors import UnknownMessage
from mhnb.sealing import make_opener, make_sealer

__all__ = ["Channel"]

_BUFFER_NBYTES = 1 << 18


class Channel:
    """Signed messages to and from the notebook.

    Args:
        url: where the notebook listens, `unix:PATH`, `tcp:ADDRESS:PORT`, or `sealed:ADDRESS:PORT` where messages are encrypted.
        key: shared by all of one start.
        peer: this end's name, `r3` or `s0`.
    """

    def __init__(self, url: str, key: bytes, peer: str) -> None:
        self._socket = _connect(url)
        encrypt = url.startswith("sealed:")
        self._signer = make_sealer(key, peer.encode(), encrypt=encrypt)
        self._verifier = make_opener(key, encrypt=encrypt)
        self._sender = b"notebook" + peer.encode()
        self._lock = threading.Lock()
        self._cutter = MessageCutter()
        self._buffer = memoryview(bytearray(_BUFFER_NBYTES))
        self._arrived: deque[Message] = deque()
        self.closed = False
        """The notebook's end is gone: nothing will come, and nobody hears what is sent."""
        self._put([peer.encode(), *self._signer.sign([peer.encode()])])

    @property
    def address(self) -> str:
        """The address of this machine that the notebook is reached from; empty where it is this machine."""
        return "" if self._socket.family == socket.AF_UNIX else str(self._socket.getsockname()[0])

    def fileno(self) -> int:
        """The descriptor that is readable while something is to be received, or after the end."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send, and wait while the notebook is slower than we are. Large payloads are not copied."""
        self._send(encode(message))

    def _send(self, frames: list[bytes]) -> None:
        with self._lock:
            self._put(self._signer.sign(frames))

    def _put(self, frames: Sequence[Frame]) -> None:
        try:
            for piece in join_frames(frames):
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


def _connect(url: str) -> socket.socket:
    kind, _, place = url.partition(":")
    if kind == "unix":
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(place)
    else:
        address, _, port = place.rpartition(":")
        connected = socket.create_connection((address, int(port)))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected
