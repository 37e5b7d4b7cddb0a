"""Server end of the transport: authenticated frames, and the notebook's messages.

`FrameServer` handles frames and signatures, and does not interpret messages: `SocketServer` does for the control connections of ranks
and supervisors, and `rank/guard/agreement_server.py` for the agreement on launches.
Plain sockets, because thread switches dominate the latency of a cell: the sending thread writes to the kernel itself, and the kernel
wakes the waiting one.
"""

from __future__ import annotations

import os
import re
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from mhnb.core.addresses import Address
from mhnb.core.codec import decode, encode
from mhnb.core.messages import Message
from mhnb.errors import UnknownMessage
from mhnb.transport.addresses import ACCEPT_PAUSE_S, BACKLOG, RESOURCE_ERRNOS, listen_tcp, max_unauthenticated
from mhnb.transport.framing import MESSAGE_LIMIT_NBYTES, FrameDecoder, encode_frames
from mhnb.transport.security import CHALLENGE_NBYTES, FrameReader, FrameWriter, open_session
from mhnb.types import Frame

_BUFFER_NBYTES = 1 << 20
_UNAUTHENTICATED_LIMIT_NBYTES = 4096
"""Size limit of a message from a client that has not been authenticated."""
_PEER = re.compile(r"[rs][0-9]{1,6}")
_PATH_LIMIT_NBYTES = 100
"""Length limit for the path of a Unix domain socket; Linux allows 107 bytes, macOS 103."""


class FrameHandler(Protocol):
    """Protocol of a `FrameServer`'s owner, called by the server's `poll`."""

    def admit(self, peer: str) -> bool:
        """Return whether to admit an authenticated client with this name."""

    def handle(self, peer: str, frames: list[Frame]) -> None:
        """Handle a verified message of an admitted client.

        Raises:
            UnknownMessage: the message is invalid; the client then loses its connection.
        """


@dataclass(eq=False, slots=True)
class _Connection:
    """One client's socket, with partly received and unsent data."""

    socket: socket.socket
    challenge: bytes
    """Random challenge from this end for this connection."""
    decoder: FrameDecoder = field(default_factory=lambda: FrameDecoder(_UNAUTHENTICATED_LIMIT_NBYTES))
    peer: str = ""
    """Empty until the client has sent its name, authenticated with the key."""
    reader: FrameReader | None = None
    writer: FrameWriter | None = None
    unsent: deque[memoryview] = field(default_factory=deque)


class FrameServer:
    """Exchanges frames with authenticated clients; others cannot block or end it.

    One thread, the reader, polls and closes; `send` and `wake` may be called from any thread.

    Args:
        listener: where the clients connect; owned by this object from now on.
        key: shared with the clients; the key of each connection is derived from it.
        handler: decides whom to admit, and handles the messages.
        encrypt: encrypt messages, because they travel between machines; otherwise they are signed.
        drops_unverified: whether a message of an admitted client that fails verification is dropped alone. A forked child of a
            rank may send one, because it counts its messages as its parent does. If False, the client loses its connection,
            because it would wait for the answer forever.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        *,
        handler: FrameHandler,
        encrypt: bool,
        drops_unverified: bool,
        clock: Callable[[], float],
    ) -> None:
        self._listener, self._key, self._handler = listener, key, handler
        self._encrypt, self._drops_unverified, self._clock = encrypt, drops_unverified, clock
        self._disconnected: list[str] = []
        self._violators: list[tuple[str, str]] = []
        self._accept_paused_until: float | None = None
        """Time until which no connection is accepted; None while the listener is watched."""
        self._closed = False
        self._connections: dict[str, _Connection] = {}
        self._unauthenticated: dict[_Connection, None] = {}
        """Ordered by age, oldest first."""
        self._max_unauthenticated = max_unauthenticated()
        self._buffer = memoryview(bytearray(_BUFFER_NBYTES))
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        listener.setblocking(False)
        # Only the reader thread uses the selector; senders hold the lock.
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._drain_wakes)
        self._lock = threading.Lock()
        self._blocked: list[_Connection] = []
        """Connections with unsent bytes that the reader does not watch yet."""
        self.rejected_count = 0
        """Number of messages and connections rejected as unauthenticated or invalid."""

    # -- receiving

    def poll(self, timeout_s: float | None) -> bool:
        """Wait for messages or a wake-up and handle them; False on timeout.

        Args:
            timeout_s: how long to wait at most; None for no limit.
        """
        self._watch_blocked()
        if self._accept_paused_until is not None:
            timeout_s = ACCEPT_PAUSE_S if timeout_s is None else min(timeout_s, ACCEPT_PAUSE_S)
            if self._clock() >= self._accept_paused_until:
                self._accept_paused_until = None
                self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        events = self._selector.select(timeout_s)
        for key, _ in events:
            on_ready: Callable[[], None] = key.data
            on_ready()
        return bool(events)

    def _drain_wakes(self) -> None:
        os.read(self._wake_read, 4096)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in RESOURCE_ERRNOS and self._unauthenticated:
                # No descriptor is left: unauthenticated connections must not keep a rank out.
                self._drop_oldest_unauthenticated()
            elif error.errno in RESOURCE_ERRNOS:
                # The caller waits in the system's queue.
                self._selector.unregister(self._listener)
                self._accept_paused_until = self._clock() + ACCEPT_PAUSE_S
            # Otherwise the caller disconnected before it was accepted.
            return
        accepted.setblocking(False)
        connection = _Connection(accepted, secrets.token_bytes(CHALLENGE_NBYTES))
        try:
            if accepted.family != socket.AF_UNIX:
                # macOS raises if the peer has already disconnected.
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.send(connection.challenge)
        except OSError:
            accepted.close()
            return
        self._unauthenticated[connection] = None
        self._selector.register(accepted, selectors.EVENT_READ, partial(self._read, connection))
        if len(self._unauthenticated) > self._max_unauthenticated:
            self._drop_oldest_unauthenticated()

    def _drop_oldest_unauthenticated(self) -> None:
        self.rejected_count += 1
        self._drop_connection(next(iter(self._unauthenticated)))

    def _read(self, connection: _Connection) -> None:
        """Read once; the selector reports the connection again if more is left."""
        if connection.socket.fileno() < 0:
            # An unauthenticated connection that was just dropped in favour of another one.
            return
        if connection.unsent:
            self._send_unsent(connection)
        try:
            count = connection.socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        try:
            for frames in connection.decoder.feed(self._buffer[:count]):
                self._handle_frames(connection, frames)
        except UnknownMessage as error:
            # An unauthenticated peer, a peer that sent an invalid message, or a stream that cannot be parsed further.
            self.rejected_count += 1
            if connection.peer:
                self._violators.append((connection.peer, str(error)))
            count = 0
        if count == 0:
            self._drop_connection(connection)

    def _handle_frames(self, connection: _Connection, frames: list[memoryview]) -> None:
        """Verify a message and pass it on; the first authenticates the client.

        Raises:
            UnknownMessage: the client did not prove that it has the key, or it did and sent an invalid message.
        """
        if connection.reader is None:
            self._authenticate(connection, frames)
            return
        try:
            verified = connection.reader.verify(frames)
        except UnknownMessage:
            if not self._drops_unverified:
                raise
            # Messages that fail verification are counted; status shows the number.
            self.rejected_count += 1
            return
        self._handler.handle(connection.peer, verified)

    def _authenticate(self, connection: _Connection, frames: list[memoryview]) -> None:
        if len(frames) < 3:
            raise UnknownMessage("a peer did not send its name")
        name, answer = bytes(frames[0]), bytes(frames[1])
        writer, reader = open_session(
            self._key, connection.challenge, answer, name, is_server=True, encrypt=self._encrypt
        )
        if reader.verify(frames[2:]) != [name]:
            raise UnknownMessage(f"a peer with the name {name[:20]!r} authenticated with another name")
        peer = name.decode(errors="replace")
        if not self._handler.admit(peer):
            raise UnknownMessage(f"a peer with the name {name[:20]!r} cannot connect here now")
        connection.writer, connection.reader = writer, reader
        connection.peer, connection.decoder.limit_nbytes = peer, MESSAGE_LIMIT_NBYTES
        self._unauthenticated.pop(connection, None)
        with self._lock:
            self._connections[peer] = connection

    def _drop_connection(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        self._unauthenticated.pop(connection, None)
        with self._lock:
            if self._connections.get(connection.peer) is connection:
                del self._connections[connection.peer]
                self._disconnected.append(connection.peer)
            connection.socket.close()

    # -- sending

    def send(self, peer: str, frames: Sequence[bytes]) -> None:
        """Send to a client, from any thread; ignore a disconnected one."""
        with self._lock:
            connection = self._connections.get(peer)
            if connection is None or connection.writer is None:
                return
            idle = not connection.unsent
            connection.unsent.extend(memoryview(piece) for piece in encode_frames(connection.writer.sign(frames)))
            if idle and not _flush(connection):
                self._blocked.append(connection)
                self.wake()

    def _watch_blocked(self) -> None:
        with self._lock:
            blocked, self._blocked = self._blocked, []
        for connection in blocked:
            if connection.socket.fileno() >= 0:
                self._set_interest(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _send_unsent(self, connection: _Connection) -> None:
        with self._lock:
            done = _flush(connection)
        if done:
            self._set_interest(connection, selectors.EVENT_READ)

    def _set_interest(self, connection: _Connection, events: int) -> None:
        self._selector.modify(connection.socket, events, partial(self._read, connection))

    def disconnect(self, peer: str) -> None:
        """Close the connection of a client. To be called by the reader."""
        with self._lock:
            connection = self._connections.get(peer)
        if connection is not None:
            self._drop_connection(connection)

    def pop_violators(self) -> list[tuple[str, str]]:
        """Pop the admitted clients that sent invalid messages, with reasons (reader only)."""
        violators, self._violators = self._violators, []
        return violators

    def pop_disconnected(self) -> list[str]:
        """Pop the clients whose connection has ended (reader only)."""
        disconnected, self._disconnected = self._disconnected, []
        return disconnected

    def wake(self) -> None:
        """Make a waiting `poll` return."""
        try:
            os.write(self._wake_write, b"w")
        except BlockingIOError:
            # The pipe is full of wake-ups not read yet, so the reader will wake in any case.
            return

    def close(self) -> bool:
        """Close the sockets and the pipe; return False on a second call."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            for connection in (*self._connections.values(), *self._unauthenticated):
                connection.socket.close()
            self._connections.clear()
        self._listener.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        return True


def _listen_file(path: Path) -> socket.socket:
    # A notebook that was killed left its socket file. Only its owner can listen here.
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(path))
    path.chmod(0o600)
    listener.listen(BACKLOG)
    return listener


def _flush(connection: _Connection) -> bool:
    """Send what the kernel accepts; return True if nothing remains unsent."""
    unsent = connection.unsent
    try:
        while unsent:
            count = connection.socket.send(unsent[0])
            if count == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][count:]
    except BlockingIOError:
        return False
    except OSError:
        # The reader detects the end of the stream and removes the peer.
        unsent.clear()
    return True


# -- messages


class SocketServer:
    """The notebook's `Transport` over a Unix domain socket or TCP.

    Args:
        key: shared with the ranks of this start; authenticates messages in both directions.
        path: the socket's file, for peers of this machine: half the kernel work of TCP, and only its owner may connect.
            With None, or a path longer than the system allows, TCP is used.
        address: for TCP, the one interface to listen on, an IP address.
        port: for TCP; 0 for any.
        encrypt: encrypt messages, because they travel between machines.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        key: bytes,
        *,
        path: Path | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
        encrypt: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path if path is not None and len(os.fsencode(path)) <= _PATH_LIMIT_NBYTES else None
        if self._path:
            listener = _listen_file(self._path)
            self.url = str(Address(kind="unix", path=os.fspath(self._path)))
        else:
            listener = listen_tcp(Address(address, port))
            self.url = str(Address(address, listener.getsockname()[1], "sealed" if encrypt else "tcp"))
        self.frames = FrameServer(listener, key, handler=self, encrypt=encrypt, drops_unverified=True, clock=clock)
        self.wake, self.disconnect = self.frames.wake, self.frames.disconnect
        self.pop_violators, self.pop_disconnected = self.frames.pop_violators, self.frames.pop_disconnected
        self._received: list[tuple[str, Message]] = []
        self._last_encoded: tuple[Message | None, list[bytes]] = (None, [])

    # -- receiving

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Wait for messages or a wake-up; return all messages that have arrived."""
        return [message for _, message in self.poll_with_peers(timeout_s)]

    def poll_with_peers(self, timeout_s: float | None) -> list[tuple[str, Message]]:
        """Poll, and return each message with the name of its sender."""
        self.frames.poll(timeout_s)
        received, self._received = self._received, []
        return received

    def admit(self, peer: str) -> bool:
        """Return whether this is a rank or supervisor; they may reconnect."""
        return bool(_PEER.fullmatch(peer))

    def handle(self, peer: str, frames: list[Frame]) -> None:
        """Decode a message, to be returned by the poll that received it."""
        self._received.append((peer, decode(frames)))

    @property
    def rejected_count(self) -> int:
        """Return the number of messages and connections rejected as unauthenticated or invalid."""
        return self.frames.rejected_count

    # -- sending

    def send(self, peer: str, message: Message) -> None:
        """Send to a peer, from any thread; ignore a disconnected one."""
        encoded = self._last_encoded
        if message is not encoded[0]:
            # A cell that goes to every rank is encoded once.
            encoded = self._last_encoded = (message, encode(message))
        self.frames.send(peer, encoded[1])

    def close(self) -> None:
        """Close the sockets and remove the socket's file; idempotent."""
        if self.frames.close() and self._path is not None:
            self._path.unlink(missing_ok=True)
