"""A link within one process, for tests of everything above it; it passes the same contract tests as the real one."""

from __future__ import annotations

import queue

from mhnb.core.wire.codec import decode, encode
from mhnb.core.wire.protocol import Message

__all__ = ["MemoryLink", "MemoryPeer"]


class MemoryPeer:
    """The far end: what a rank or a supervisor holds."""

    def __init__(self, inbox: queue.SimpleQueue[list[bytes] | None]) -> None:
        self._outbox = inbox
        self._inbox: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()

    def send(self, message: Message) -> None:
        """Send to the notebook."""
        self._outbox.put(encode(message))

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message, or None when none comes in time."""
        try:
            return decode(self._inbox.get(timeout=timeout_s))
        except queue.Empty:
            return None

    def deliver(self, frames: list[bytes]) -> None:
        """Take what the link sends here."""
        self._inbox.put(frames)


class MemoryLink:
    """A `Link` of queues. Messages are encoded and decoded as on the wire."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._peers: dict[str, MemoryPeer] = {}
        self._lost: list[str] = []
        self.refused = 0

    def connect(self, peer: str) -> MemoryPeer:
        """Make a far end of that name."""
        self._peers[peer] = MemoryPeer(self._inbox)
        return self._peers[peer]

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Wait for messages or a wake-up; return every message that is there."""
        found: list[Message] = []
        try:
            item = self._inbox.get(timeout=timeout_s)
            while True:
                if item is not None:
                    found.append(decode(item))
                item = self._inbox.get_nowait()
        except queue.Empty:
            return found

    def send(self, peer: str, message: Message) -> None:
        """Send to a peer; one that is not there gets nothing."""
        if peer in self._peers:
            self._peers[peer].deliver(encode(message))

    def drop(self, peer: str) -> None:
        """End the connection of a peer."""
        del self._peers[peer]
        self._lost.append(peer)
        self.wake()

    def take_lost(self) -> list[str]:
        """Give the peers whose connection has ended since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def wake(self) -> None:
        """Make a waiting `poll` return."""
        self._inbox.put(None)

    def close(self) -> None:
        """Forget every peer."""
        self._peers.clear()
