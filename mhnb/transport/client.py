"""Client end of the transport: one socket of a rank or a supervisor.

Any thread may send; the owner's main loop reads what arrives.
"""

from __future__ import annotations

import secrets
import select
import socket
import threading
from collections import deque
from collections.abc import Iterable, Sequence

from mhnb.core.codec import decode, encode
from mhnb.core.messages import Message, shorten_message
from mhnb.errors import UnknownMessage
from mhnb.transport.framing import FrameDecoder, encode_frames
from mhnb.transport.security import CHALLENGE_NBYTES, derive_session_key, make_frame_reader, make_frame_writer
from mhnb.types import Frame

_BUFFER_NBYTES = 1 << 18
_LARGE_NBYTES = 64 * 1024
"""A message above this size may contain a text that is too long."""
_RECONNECT_TIMEOUT_S = 1.0
_CHALLENGE_S, _RECONNECT_CHALLENGE_S = 60.0, 5.0


class TransportClient:
    """Signed messages to and from the notebook.

    Args:
        url: where the notebook listens, `unix:PATH`, `tcp:ADDRESS:PORT`, or `sealed:ADDRESS:PORT` if messages are encrypted.
        key: shared by all processes of one start.
        peer: the name of this end, `r3` or `s0`.
    """

    def __init__(self, url: str, key: bytes, peer: str) -> None:
        self._url, self._key, self._peer = url, key, peer.encode()
        self._lock = threading.Lock()
        self._buffer = memoryview(bytearray(_BUFFER_NBYTES))
        self._received: deque[Message] = deque()
        self.is_closed = False
        """Whether the notebook's end is closed: no message will arrive, and none that is sent is received."""
        self._open_session(connect(url))

    def _open_session(self, connected: socket.socket, wait_s: float = _CHALLENGE_S) -> None:
        """Authenticate to the notebook's end, which has begun with a challenge."""
        self._socket, self._cutter = connected, FrameDecoder()
        challenge, answer = _read_challenge(connected, wait_s), secrets.token_bytes(CHALLENGE_NBYTES)
        key, encrypt = derive_session_key(self._key, challenge, answer), self._url.startswith("sealed:")
        self._signer = make_frame_writer(key, self._peer, encrypt=encrypt)
        self._verifier = make_frame_reader(key, encrypt=encrypt)
        self._sender = b"notebook" + self._peer
        self._write_frames([self._peer, answer, *self._signer.sign([self._peer])])

    def reconnect(self) -> bool:
        """Try to connect to a notebook at the same address again. Return whether there is a connection now."""
        try:
            connected = connect(self._url, timeout_s=_RECONNECT_TIMEOUT_S)
        except OSError:
            return False
        with self._lock:
            self._socket.close()
            self._received.clear()
            self.is_closed = False
            try:
                # Another program may have the port by now and send nothing; the caller has other things to do.
                self._open_session(connected, _RECONNECT_CHALLENGE_S)
            except OSError:
                self.is_closed = True
        return not self.is_closed

    @property
    def address(self) -> str:
        """The address of this machine that the notebook is reached from; empty string if it is this machine."""
        return "" if self._socket.family == socket.AF_UNIX else str(self._socket.getsockname()[0])

    def fileno(self) -> int:
        """Return the descriptor that is readable while a message is to be received, or after the end."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message, and wait while the notebook is slower than this process. Large payloads are not copied."""
        frames = encode(message)
        if len(frames[0]) > _LARGE_NBYTES:
            frames = encode(shorten_message(message))
        self._send_signed(frames)

    def _send_signed(self, frames: list[bytes]) -> None:
        with self._lock:
            self._write_frames(self._signer.sign(frames))

    def _write_frames(self, frames: Sequence[Frame]) -> None:
        try:
            for piece in encode_frames(frames):
                self._socket.sendall(piece)
        except OSError:
            # A rank without a notebook is ended by its supervisor, by the rules of the start.
            self.is_closed = True

    def receive(self) -> Message | None:
        """Return the next message that has arrived, or None."""
        while not self._received:
            try:
                count = self._socket.recv_into(self._buffer, flags=socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError:
                count = 0
            if count == 0:
                self.is_closed = True
                return None
            self._decode_messages(self._cutter.feed(self._buffer[:count]))
        return self._received.popleft()

    def _decode_messages(self, found: Iterable[list[memoryview]]) -> None:
        for frames in found:
            try:
                self._received.append(decode(self._verifier.verify(self._sender, frames)))
            except UnknownMessage as error:
                print(f"mhnb: {error}", flush=True)

    def poll(self, timeout_s: float) -> bool:
        """Wait for a message; for the supervisor and tests, never for a rank's loop."""
        return bool(self._received) or bool(select.select([self._socket], [], [], timeout_s)[0])

    def close(self) -> None:
        """Close the connection. Messages that were sent arrive."""
        self._socket.close()


def connect(url: str, timeout_s: float | None = None) -> socket.socket:
    """Connect to `unix:PATH` or `tcp:ADDRESS:PORT`; an IPv6 address may be in brackets.

    Args:
        timeout_s: for TCP; None leaves it to the system, which tries for minutes.

    Raises:
        OSError: no process listens there.
    """
    kind, _, target = url.partition(":")
    if kind == "unix":
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(target)
        except OSError:
            connected.close()
            raise
    else:
        address, _, port = target.rpartition(":")
        connected = socket.create_connection((address.strip("[]"), int(port)), timeout_s)
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _read_challenge(connected: socket.socket, wait_s: float) -> bytes:
    """Wait for the notebook's first bytes, the challenge.

    Raises:
        OSError: they do not arrive, because the process that listens there is not a notebook.
    """
    connected.settimeout(wait_s)
    challenge = b""
    while len(challenge) < CHALLENGE_NBYTES:
        piece = connected.recv(CHALLENGE_NBYTES - len(challenge))
        if not piece:
            raise ConnectionResetError("the notebook's end closed the connection at once")
        challenge += piece
    connected.settimeout(None)
    return challenge
