"""The notebook's end of the transport: one listening socket to which every rank and supervisor connects.

It handles frames and signatures, and does not interpret messages.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mhnb.core.codec import decode, encode
from mhnb.core.messages import Message
from mhnb.errors import UnknownMessage
from mhnb.transport.addresses import ACCEPT_PAUSE_S, RESOURCE_ERRNOS, max_unauthenticated
from mhnb.transport.framing import FrameDecoder, encode_frames
from mhnb.transport.security import (
    CHALLENGE_NBYTES,
    FrameReader,
    FrameWriter,
    derive_session_key,
    make_frame_reader,
    make_frame_writer,
)

_BUFFER_NBYTES = 1 << 20
_UNAUTHENTICATED_LIMIT_NBYTES = 4096
"""Size limit of a message from a peer that has not been authenticated."""
_NOTEBOOK = b"notebook"
_BACKLOG = 1024
_MESSAGE_LIMIT_NBYTES = 1 << 32
"""Size limit of a message from an authenticated peer. No message is near it; a longer one would never be complete."""
_PEER = re.compile(rb"[rs]\d{1,6}")
_PATH_LIMIT_NBYTES = 100
"""Length limit for the path of a Unix domain socket; Linux allows 107 bytes, macOS 103."""


@dataclass(eq=False, slots=True)
class _Connection:
    """One peer's socket, its partly received message, and the bytes not sent yet."""

    socket: socket.socket
    decoder: FrameDecoder
    challenge: bytes
    """Random challenge from this end for this connection."""
    name: bytes = b""
    """Empty until the peer has sent its name, authenticated with the key."""
    frame_reader: FrameReader | None = None
    frame_writer: FrameWriter | None = None
    unsent: deque[memoryview] = field(default_factory=deque)


class SocketServer:
    """A `Transport` over a Unix domain socket, or over TCP.

    Args:
        key: shared with the ranks of this start; signs messages in both directions.
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
        self._key, self._encrypt, self._clock = key, encrypt, clock
        self._path = path if path is not None and len(os.fsencode(path)) <= _PATH_LIMIT_NBYTES else None
        self._listener, self.url = (
            _listen_file(self._path) if self._path else _listen_tcp(address, port, "sealed" if encrypt else "tcp")
        )
        self._listener.setblocking(False)
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
        # Only the reader thread uses the selector; senders hold the lock.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._drain_wakes)
        self._lock = threading.Lock()
        self._blocked: list[_Connection] = []
        """Connections with unsent bytes that the reader does not watch yet."""
        self._last_encoded: tuple[Message | None, list[bytes]] = (None, [])
        self.rejected_count = 0

    # -- receiving

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Wait for messages or a wake-up; return all messages that have arrived."""
        return [message for _, message in self.poll_with_peers(timeout_s)]

    def poll_with_peers(self, timeout_s: float | None) -> list[tuple[str, Message]]:
        """Poll like `poll`, and return the name of the sending peer with each message."""
        self._watch_blocked()
        if self._accept_paused_until is not None:
            timeout_s = ACCEPT_PAUSE_S if timeout_s is None else min(timeout_s, ACCEPT_PAUSE_S)
            if self._clock() >= self._accept_paused_until:
                self._accept_paused_until = None
                self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        messages: list[tuple[str, Message]] = []
        for key, _ in self._selector.select(timeout_s):
            read_ready: Callable[[], list[tuple[str, Message]]] = key.data
            messages += read_ready()
        return messages

    def _drain_wakes(self) -> list[tuple[str, Message]]:
        os.read(self._wake_read, 4096)
        return []

    def _accept(self) -> list[tuple[str, Message]]:
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
            return []
        accepted.setblocking(False)
        connection = _Connection(
            accepted, FrameDecoder(_UNAUTHENTICATED_LIMIT_NBYTES), secrets.token_bytes(CHALLENGE_NBYTES)
        )
        try:
            if accepted.family != socket.AF_UNIX:
                # macOS raises if the peer has already disconnected.
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.send(connection.challenge)
        except OSError:
            accepted.close()
            return []
        self._unauthenticated[connection] = None
        self._selector.register(accepted, selectors.EVENT_READ, partial(self._read, connection))
        if len(self._unauthenticated) > self._max_unauthenticated:
            self._drop_oldest_unauthenticated()
        return []

    def _drop_oldest_unauthenticated(self) -> None:
        self.rejected_count += 1
        self._drop_connection(next(iter(self._unauthenticated)))

    def _read(self, connection: _Connection) -> list[tuple[str, Message]]:
        """Read what has arrived, once: the selector reports the connection again if more is left."""
        if connection.socket.fileno() < 0:
            # An unauthenticated connection that was just dropped in favour of another one.
            return []
        if connection.unsent:
            self._send_unsent(connection)
        try:
            count = connection.socket.recv_into(self._buffer)
        except BlockingIOError:
            return []
        except OSError:
            count = 0
        messages: list[tuple[str, Message]] = []
        try:
            for frames in connection.decoder.feed(self._buffer[:count]):
                messages += self._verify_and_decode(connection, frames)
        except UnknownMessage as error:
            # An unauthenticated peer, a peer that sent an invalid message, or a stream that cannot be parsed further.
            self.rejected_count += 1
            if connection.name:
                self._violators.append((connection.name.decode(), str(error)))
            count = 0
        if count == 0:
            self._drop_connection(connection)
        return messages

    def _verify_and_decode(self, connection: _Connection, frames: list[memoryview]) -> list[tuple[str, Message]]:
        """Verify and decode a message; the first one of a connection contains the peer's name.

        Raises:
            UnknownMessage: the peer did not prove that it has the key, or it did and sent an invalid message.
        """
        if connection.frame_reader is None:
            self._authenticate(connection, frames)
            return []
        try:
            opened = connection.frame_reader.verify(connection.name, frames)
        except UnknownMessage:
            # Messages that fail verification are counted; status shows the number.
            self.rejected_count += 1
            return []
        return [(connection.name.decode(), decode(opened))]

    def _authenticate(self, connection: _Connection, frames: list[memoryview]) -> None:
        if len(frames) < 3:
            raise UnknownMessage("a peer has not said its name")
        name, answer = bytes(frames[0]), bytes(frames[1])
        if not _PEER.fullmatch(name):
            raise UnknownMessage(f"a peer calls itself {name[:20]!r}, which is no name of a rank or a supervisor")
        key = derive_session_key(self._key, connection.challenge, answer)
        frame_reader = make_frame_reader(key, encrypt=self._encrypt)
        if frame_reader.verify(name, frames[2:]) != [name]:
            raise UnknownMessage(f"a peer that calls itself {name!r} has shown the key with another name")
        connection.frame_reader, connection.frame_writer = (
            frame_reader,
            make_frame_writer(key, _NOTEBOOK + name, encrypt=self._encrypt),
        )
        connection.name, connection.decoder.limit_nbytes = name, _MESSAGE_LIMIT_NBYTES
        self._unauthenticated.pop(connection, None)
        with self._lock:
            self._connections[name.decode()] = connection

    def _drop_connection(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        self._unauthenticated.pop(connection, None)
        with self._lock:
            if self._connections.get(connection.name.decode()) is connection:
                del self._connections[connection.name.decode()]
                self._disconnected.append(connection.name.decode())
            connection.socket.close()

    # -- sending

    def send(self, peer: str, message: Message) -> None:
        """Send to a peer, from any thread. A peer that has disconnected is not an error here: its exit is a separate event."""
        with self._lock:
            connection = self._connections.get(peer)
            if connection is None or connection.frame_writer is None:
                return
            if message is not self._last_encoded[0]:
                # A cell that goes to every rank is encoded once.
                self._last_encoded = (message, encode(message))
            idle = not connection.unsent
            connection.unsent.extend(
                memoryview(piece) for piece in encode_frames(connection.frame_writer.sign(self._last_encoded[1]))
            )
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
        """Close the connection of a peer that violates the protocol."""
        with self._lock:
            connection = self._connections.get(peer)
        if connection is not None:
            self._drop_connection(connection)

    def pop_violators(self) -> list[tuple[str, str]]:
        """Return each peer that sent an invalid message, and why it is invalid."""
        violators, self._violators = self._violators, []
        return violators

    def pop_disconnected(self) -> list[str]:
        """Return the peers whose connection has ended since the last call."""
        disconnected, self._disconnected = self._disconnected, []
        return disconnected

    def wake(self) -> None:
        """Make a waiting `poll` return."""
        try:
            os.write(self._wake_write, b"w")
        except BlockingIOError:
            # The pipe is full of wake-ups not read yet, so the reader will wake in any case.
            return

    def close(self) -> None:
        """Close the sockets and the wake-up pipe. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for connection in (*self._connections.values(), *self._unauthenticated):
                connection.socket.close()
            self._connections.clear()
        self._listener.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


def _listen_file(path: Path) -> tuple[socket.socket, str]:
    # A notebook that was killed left its socket file. Only its owner can listen here.
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(path))
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    return listener, f"unix:{path}"


def _listen_tcp(address: str, port: int, kind: str) -> tuple[socket.socket, str]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    return listener, f"{kind}:{address}:{listener.getsockname()[1]}"


def _flush(connection: _Connection) -> bool:
    """Send what the kernel accepts; return True if nothing is left, also if the peer has disconnected."""
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
