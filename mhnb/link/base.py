"""What a link is: peers by name, messages in and out, and a way to wake the one who waits.

Peers are named `r3` (rank 3) and `s0` (the supervisor of the first machine).
One thread, the reader, polls and closes; `send` and `wake` may be called from any thread.
"""

from __future__ import annotations

from typing import Protocol

from mhnb.core.wire.protocol import Message

__all__ = ["Link", "rank_peer", "supervisor_peer"]


def rank_peer(rank: int) -> str:
    """Name the peer that is a rank."""
    return f"r{rank}"


def supervisor_peer(supervisor: int) -> str:
    """Name the peer that is a machine's supervisor."""
    return f"s{supervisor}"


class Link(Protocol):
    """Carries messages between the notebook and its ranks."""

    refused: int
    """Messages dropped because they were not signed with this cluster's key."""

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Wait for messages or a wake-up, at most `timeout_s` (None: for ever); return what came, in order per peer.

        It may return early with nothing, when a peer has come or gone.
        """

    def poll_named(self, timeout_s: float | None) -> list[tuple[str, Message]]:
        """Do as `poll`, and name the peer that each message came from."""

    def cut(self, peer: str) -> None:
        """End the connection of a peer that breaks the rules. To be called by the reader."""

    def take_cut(self) -> list[tuple[str, str]]:
        """Give each peer that was cut off because it has the key and sent what is no message, and why. To be called by the reader."""

    def send(self, peer: str, message: Message) -> None:
        """Send a message to a peer that has been heard from."""

    def take_lost(self) -> list[str]:
        """Give the peers whose connection has ended since the last call. To be called by the reader."""

    def wake(self) -> None:
        """Make a `poll` that waits in the reader thread return. Callable from any thread."""

    def close(self) -> None:
        """Let go of sockets. Nothing is delivered afterwards."""
