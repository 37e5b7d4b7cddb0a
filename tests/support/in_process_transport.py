"""A transport inside one process, in place of the sockets: it passes the same contract tests as the socket transport."""

from __future__ import annotations

import queue

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
