"""Client end of the transport: authenticated frames and messages over a socket.

`FrameClient` is the other end of `FrameServer`, and the agreement on launches uses it, too (`rank/guard/remote_agreement.py`).
Any thread may send; one thread reads what arrives.
"""

from __future__ import annotations

import secrets
import select
import socket
import threading
from collections import deque
from collections.abc import Sequence

from mhnb.core.addresses import parse_address
from mhnb.core.codec import decode, encode
from mhnb.core.messages import Message, shorten_message
from mhnb.errors import UnknownMessage
from mhnb.transport.framing import MESSAGE_LIMIT_NBYTES, FrameDecoder, encode_frames
from mhnb.transport.security import CHALLENGE_NBYTES, open_session
from mhnb.types import Frame

_BUFFER_NBYTES = 1 << 18
_LARGE_NBYTES = 64 * 1024
"""A message above this size may contain a text that is too long."""
_JOINED_NBYTES = 512 * 1024
"""A message up to this size is sent by one call."""
_RECONNECT_TIMEOUT_S = 1.0
_CHALLENGE_S, _RECONNECT_CHALLENGE_S = 60.0, 5.0


class FrameClient:
    """Exchanges frames with a `FrameServer`.

    Args:
        connected: connection to it; owned by this object from now on.
        key: shared with it; the key of this connection is derived from it.
        peer: the name of this end.
        encrypt: encrypt messages, because they travel between machines; otherwise they are signed.
        challenge_s: how long the server may take to send its challenge.
        limit_nbytes: size limit of a message of the server.

    Raises:
        OSError: no challenge came, because the process that listens there is not such a server.
    """

    def __init__(
        self,
        connected: socket.socket,
        key: bytes,
        peer: str,
        *,
        encrypt: bool,
        challenge_s: float = _CHALLENGE_S,
        limit_nbytes: int = MESSAGE_LIMIT_NBYTES,
    ) -> None:
        self.peer, self._key, self._encrypt, self._limit_nbytes = peer, key, encrypt, limit_nbytes
        self._lock = threading.Lock()
        self._buffer = memoryview(bytearray(_BUFFER_NBYTES))
        self.end_reason = ""
        """Why the connection has ended; empty until then. What had arrived before can still be received."""
        self._open_session(connected, challenge_s)

    def _open_session(self, connected: socket.socket, challenge_s: float) -> None:
        """Authenticate to the server, which has begun with a challenge."""
        self._socket, self._decoder = connected, FrameDecoder(self._limit_nbytes)
        challenge, answer = _read_challenge(connected, challenge_s), secrets.token_bytes(CHALLENGE_NBYTES)
        name = self.peer.encode()
        self._writer, self._reader = open_session(
            self._key, challenge, answer, name, is_server=False, encrypt=self._encrypt
        )
        # The name also precedes its seal, because the seal cannot be checked without it.
        self._write([name, answer, *self._writer.sign([name])])

    def reopen(self, connected: socket.socket, challenge_s: float) -> bool:
        """Replace the connection while senders wait; return whether it is open."""
        with self._lock:
            self._socket.close()
            self.end_reason = ""
            try:
                self._open_session(connected, challenge_s)
            except OSError as error:
                self.end_reason = str(error) or repr(error)
        return not self.end_reason

    @property
    def address(self) -> str:
        """Return this machine's address on the connection; empty for a Unix socket."""
        return "" if self._socket.family == socket.AF_UNIX else str(self._socket.getsockname()[0])

    def fileno(self) -> int:
        """Return the descriptor; it is readable on a message or the end."""
        return self._socket.fileno()

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message without copying large payloads; wait for a slow server."""
        with self._lock:
            self._write(self._writer.sign(frames))

    def _write(self, frames: Sequence[Frame]) -> None:
        pieces = encode_frames(frames)
        if sum(map(len, pieces)) <= _JOINED_NBYTES:
            # An exception out of a user's signal handler between two calls would leave half of the message in the stream.
            pieces = [b"".join(pieces)]
        try:
            for piece in pieces:
                self._socket.sendall(piece)
        except OSError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                # Not the socket's own error: a user's signal handler came just now, and raised a TimeoutError, say.
                raise
            self.end(str(error) or repr(error))

    def receive(self, *, wait: bool = False) -> list[list[memoryview]] | None:
        """Receive once, and return the messages complete by now, unverified.

        Return None if nothing has arrived, or the connection has ended.

        Args:
            wait: wait until something arrives; None then means the end.
        """
        try:
            count = self._socket.recv_into(self._buffer, flags=0 if wait else socket.MSG_DONTWAIT)
            if count:
                return list(self._decoder.feed(self._buffer[:count]))
        except BlockingIOError:
            return None
        except (OSError, UnknownMessage) as error:
            # The connection is broken, or the stream cannot be parsed further.
            self.end(str(error) or repr(error))
        self.end_reason = self.end_reason or "the other end closed it"
        return None

    def verify(self, frames: Sequence[Frame]) -> list[Frame]:
        """Return the original frames of a message that was received.

        Raises:
            UnknownMessage: it is not a message of the server, or was received before.
        """
        return self._reader.verify(frames)

    def end(self, reason: str) -> None:
        """End the connection, from any thread; arrived messages can still be received."""
        if self.end_reason:
            return
        self.end_reason = reason
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            self.end_reason = f"{reason} ({error})"

    def close(self) -> None:
        """Close this process's socket. Messages that were sent arrive."""
        self._socket.close()


class TransportClient:
    """Signed messages to and from the notebook.

    Args:
        url: where the notebook listens, `unix:PATH`, `tcp:ADDRESS:PORT`, or `sealed:ADDRESS:PORT` if messages are encrypted.
        key: shared by all processes of one start.
        peer: the name of this end, `r3` or `s0`.
    """

    def __init__(self, url: str, key: bytes, peer: str) -> None:
        self._url = url
        self._received: deque[Message] = deque()
        self.frames = FrameClient(connect(url), key, peer, encrypt=url.startswith("sealed:"))
        self.fileno, self.close = self.frames.fileno, self.frames.close

    def reconnect(self) -> bool:
        """Try to reconnect to the notebook's address; return whether it succeeded."""
        try:
            connected = connect(self._url, timeout_s=_RECONNECT_TIMEOUT_S)
        except OSError:
            return False
        self._received.clear()
        # Another program may have the port by now and send nothing; the caller has other things to do.
        return self.frames.reopen(connected, _RECONNECT_CHALLENGE_S)

    @property
    def is_closed(self) -> bool:
        """Return whether the connection to the notebook has ended.

        A rank without a notebook is ended by its supervisor, by the rules of the start.
        """
        return bool(self.frames.end_reason)

    @property
    def address(self) -> str:
        """Return this machine's address on the connection; empty for a Unix socket."""
        return self.frames.address

    def send(self, message: Message) -> None:
        """Send a message without copying large payloads; wait for a slow notebook."""
        frames = encode(message)
        if len(frames[0]) > _LARGE_NBYTES:
            frames = encode(shorten_message(message))
        self.frames.send(frames)

    def receive(self) -> Message | None:
        """Return the next message that has arrived, or None."""
        while not self._received:
            found = self.frames.receive()
            if found is None:
                return None
            for frames in found:
                try:
                    self._received.append(decode(self.frames.verify(frames)))
                except UnknownMessage as error:
                    print(f"mhnb: {error}", flush=True)
        return self._received.popleft()

    def poll(self, timeout_s: float) -> bool:
        """Return whether a message comes in time; not for a rank's loop."""
        return bool(self._received) or bool(select.select([self.frames], [], [], timeout_s)[0])


def connect(url: str, timeout_s: float | None = None) -> socket.socket:
    """Connect to an address.

    Args:
        timeout_s: for TCP; None leaves it to the system, which tries for minutes.

    Raises:
        OSError: no process listens there.
        InvalidRequest: the text is not an address.
    """
    address = parse_address(url, "the address to connect to")
    if address.kind == "unix":
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(address.path)
        except OSError:
            connected.close()
            raise
    else:
        connected = socket.create_connection((address.host, address.port), timeout_s)
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _read_challenge(connected: socket.socket, wait_s: float) -> bytes:
    """Wait for the server's first bytes, the challenge.

    Raises:
        OSError: they do not arrive, because the process that listens there is not such a server.
    """
    connected.settimeout(wait_s)
    challenge = b""
    while len(challenge) < CHALLENGE_NBYTES:
        piece = connected.recv(CHALLENGE_NBYTES - len(challenge))
        if not piece:
            raise ConnectionResetError("the other end closed the connection at once")
        challenge += piece
    connected.settimeout(None)
    return challenge
