"""Transport protocol: named peers, messages in both directions, a way to wake the reader; and an in-process transport for tests.

Peers are named `r3` (rank 3) and `s0` (the supervisor of the first machine).
One thread, the reader, polls and closes; `send` and `wake` may be called from any thread.
The in-process transport passes the same contract tests as the socket transport.
"""

from __future__ import annotations

import queue
from typing import Protocol

from mhnb.core.codec import decode, encode
from mhnb.core.messages import Message
from mhnb.errors import UnknownMessage


class InProcessPeer:
    """The remote end of the transport, in place of a rank or a supervisor."""

    def __init__(self, name: str, inbox: queue.SimpleQueue[tuple[str, list[bytes]] | None]) -> None:
        self._name, self._outbox = name, inbox
        self._inbox: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()

    def send(self, message: Message) -> None:
        """Send to the notebook."""
        self.send_frames(encode(message))

    def send_frames(self, frames: list[bytes]) -> None:
        """Send frames that may not be a valid message."""
        self._outbox.put((self._name, frames))

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message; None if none arrives in time."""
        try:
            return decode(self._inbox.get(timeout=timeout_s))
        except queue.Empty:
            return None

    def deliver(self, frames: list[bytes]) -> None:
        """Accept frames that the notebook's end sends to this peer."""
        self._inbox.put(frames)


class InProcessTransport:
    """A `Transport` made of queues. Messages are encoded and decoded as on the wire."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[tuple[str, list[bytes]] | None] = queue.SimpleQueue()
        self._peers: dict[str, InProcessPeer] = {}
        self._disconnected: list[str] = []
        self._violators: list[tuple[str, str]] = []
        self.rejected_count = 0

    def connect(self, peer: str) -> InProcessPeer:
        """Create a remote end with that name."""
        self._peers[peer] = InProcessPeer(peer, self._inbox)
        return self._peers[peer]

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Wait for messages or a wake-up; return all messages that have arrived."""
        return [message for _, message in self.poll_with_peers(timeout_s)]

    def poll_with_peers(self, timeout_s: float | None) -> list[tuple[str, Message]]:
        """Poll like `poll`, and return the name of the sending peer with each message."""
        found: list[tuple[str, Message]] = []
        try:
            item = self._inbox.get(timeout=timeout_s)
            while True:
                if item is not None:
                    found += self._decode_from(*item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            return found

    def _decode_from(self, peer: str, frames: list[bytes]) -> list[tuple[str, Message]]:
        if peer not in self._peers:
            return []
        try:
            return [(peer, decode(frames))]
        except UnknownMessage as error:
            self._violators.append((peer, str(error)))
            self.disconnect(peer)
            return []

    def disconnect(self, peer: str) -> None:
        """Close the connection of a peer that violates the protocol."""
        if peer in self._peers:
            self.drop(peer)

    def pop_violators(self) -> list[tuple[str, str]]:
        """Return each peer that sent an invalid message, and why it is invalid."""
        violators, self._violators = self._violators, []
        return violators

    def send(self, peer: str, message: Message) -> None:
        """Send to a peer; do nothing if it is not connected."""
        if peer in self._peers:
            self._peers[peer].deliver(encode(message))

    def drop(self, peer: str) -> None:
        """Close the connection of a peer."""
        del self._peers[peer]
        self._disconnected.append(peer)
        self.wake()

    def pop_disconnected(self) -> list[str]:
        """Return the peers whose connection has ended since the last call."""
        disconnected, self._disconnected = self._disconnected, []
        return disconnected

    def wake(self) -> None:
        """Make a waiting `poll` return."""
        self._inbox.put(None)

    def close(self) -> None:
        """Remove all peers."""
        self._peers.clear()


# -- the transport protocol


def rank_peer(rank: int) -> str:
    """Return the peer name of a rank."""
    return f"r{rank}"


def supervisor_peer(supervisor: int) -> str:
    """Return the peer name of a machine's supervisor."""
    return f"s{supervisor}"


class Transport(Protocol):
    """Protocol of an object that carries messages between the notebook and its ranks."""

    rejected_count: int
    """Number of messages dropped because they were not signed with this cluster's key."""

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Wait for messages or a wake-up, at most `timeout_s` (None: forever); return the messages received, in order per peer.

        It may return an empty list early if a peer has connected or disconnected.
        """

    def poll_with_peers(self, timeout_s: float | None) -> list[tuple[str, Message]]:
        """Poll like `poll`, and return the name of the sending peer with each message."""

    def disconnect(self, peer: str) -> None:
        """Close the connection of a peer that violates the protocol. To be called by the reader."""

    def pop_violators(self) -> list[tuple[str, str]]:
        """Return the peers disconnected for an invalid message despite having the key, and why. To be called by the reader."""

    def send(self, peer: str, message: Message) -> None:
        """Send a message to a peer that has connected."""

    def pop_disconnected(self) -> list[str]:
        """Return the peers whose connection has ended since the last call. To be called by the reader."""

    def wake(self) -> None:
        """Make a `poll` that waits in the reader thread return. Callable from any thread."""

    def close(self) -> None:
        """Close the sockets. No message is delivered afterwards."""
