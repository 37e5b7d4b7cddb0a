"""Transport protocol: messages to and from named peers, and wake-ups.

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
    """Protocol for messages between the notebook and its ranks."""

    @property
    def rejected_count(self) -> int:
        """Return the number of messages and connections rejected as unauthenticated or invalid."""

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Wait for messages or a wake-up; return messages in order per peer.

        It waits at most `timeout_s`, without limit if None. A peer that connects or disconnects may end the wait early,
        with an empty list.
        """

    def poll_with_peers(self, timeout_s: float | None) -> list[tuple[str, Message]]:
        """Poll, and return each message with the name of its sender."""

    def disconnect(self, peer: str) -> None:
        """Disconnect a peer that violates the protocol (reader only)."""

    def pop_violators(self) -> list[tuple[str, str]]:
        """Pop the peers disconnected for invalid messages, with reasons (reader only)."""

    def send(self, peer: str, message: Message) -> None:
        """Send a message to a peer that has connected."""

    def pop_disconnected(self) -> list[str]:
        """Pop the peers whose connection has ended (reader only)."""

    def wake(self) -> None:
        """Make a waiting `poll` return; callable from any thread."""

    def close(self) -> None:
        """Close the sockets. No message is delivered afterwards."""
