"""Messages of a widget while a cell blocks, with and without the private name of ipykernel that this needs."""

from __future__ import annotations

from types import SimpleNamespace

from mhnb.view.live.widget import handle_messages_while_blocked


def test_message_stays_where_it_arrived() -> None:
    """A comm that sends messages to the thread of its creation, as ipykernel's do since 7.4, keeps each where it arrived."""
    comm = SimpleNamespace(_reply_subshell_for=lambda _data, _default: "the blocked thread")
    handle_messages_while_blocked(SimpleNamespace(comm=comm))
    assert comm._reply_subshell_for({}, "the subshell of the message") == "the subshell of the message"


def test_comm_without_the_private_name_is_left_alone() -> None:
    """Earlier versions handle messages where they arrive, and have no such name."""
    comm = SimpleNamespace()
    handle_messages_while_blocked(SimpleNamespace(comm=comm))
    assert vars(comm) == {}
