"""Transport protocol: named peers, messages in both directions, a way to wake the reader.

Peers are named `r3` (rank 3) and `s0` (the supervisor of the first machine).
One thread, the reader, polls and closes; `send` and `wake` may be called from any thread.
"""

from __future__ import annotations

from typing import Protocol

from mhnb.core.messages import Message


def rank_peer(rank: int) -> str:
    """Return the peer name of a rank."""
    return f"r{rank}"


def supervisor_peer(supervisor: int) -> str:
    """Return the peer name of a machine's supervisor."""
    return f"s{supervisor}"


class Transport(Protocol):
    """Protocol of an object that carries messages between the notebook and its ranks."""

    @property
    def rejected_count(self) -> int:
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
