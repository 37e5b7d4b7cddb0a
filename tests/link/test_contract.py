"""What every link does: the same tests for the real one over TCP and the one in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pytest

from mhnb.core.protocol import Answer, Ask, Message, RunCell, SkipCell, StopHost
from mhnb.link.base import Link
from mhnb.link.memory import MemoryLink
from mhnb.link.sockets import SocketLink
from mhnb.rank.channel import Channel

KEY = b"k" * 32
WAIT_S = 20.0


class FarEnd(Protocol):
    """What the tests need of a rank's end."""

    def send(self, message: Message) -> None: ...

    def take(self) -> Message | None: ...


@dataclass
class Rig:
    """A link, and a way to make far ends."""

    link: Link
    connect: Callable[[str], FarEnd]


class _Tcp:
    def __init__(self, channel: Channel) -> None:
        self.channel, self.send = channel, channel.send

    def take(self) -> Message | None:
        return self.channel.receive() if self.channel.poll(WAIT_S) else None


class _Memory:
    def __init__(self, link: MemoryLink, name: str) -> None:
        self.peer = link.connect(name)
        self.send = self.peer.send

    def take(self) -> Message | None:
        return self.peer.receive(WAIT_S)


@pytest.fixture(params=["tcp", "memory"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Each kind of link in turn."""
    if request.param == "memory":
        memory = MemoryLink()
        yield Rig(memory, lambda name: _Memory(memory, name))
        return
    link, ends = SocketLink(KEY), []

    def connect(name: str) -> FarEnd:
        ends.append(Channel(link.url, KEY, name))
        return _Tcp(ends[-1])

    yield Rig(link, connect)
    for end in ends:
        end.close()
    link.close()


def collect(link: Link, count: int) -> list[Message]:
    """Poll until so many messages came."""
    found: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        found += link.poll(1.0)
        assert time.monotonic() < deadline, f"had {found}"
    return found


def test_messages_of_one_peer_keep_their_order(rig: Rig) -> None:
    """Live output comes before the reply it belongs to."""
    end = rig.connect("r0")
    messages = [SkipCell(1, seq) for seq in range(200)]
    for message in messages:
        end.send(message)
    assert collect(rig.link, 200) == messages


def test_a_peer_is_reached_by_its_name(rig: Rig) -> None:
    """A cell goes to the rank it is for, and to no other."""
    ends = {name: rig.connect(name) for name in ("r0", "r1", "s0")}
    for end in ends.values():
        end.send(SkipCell(1, 1))
    collect(rig.link, 3)
    rig.link.send("r1", RunCell(1, 2, "x"))
    rig.link.send("s0", StopHost())
    assert ends["r1"].take() == RunCell(1, 2, "x")
    assert ends["s0"].take() == StopHost()


def test_payload_travels_as_it_is(rig: Rig) -> None:
    """Bytes of arrays are not text."""
    end = rig.connect("r0")
    payload = (bytes(range(256)) * 1000, b"")
    end.send(Answer(0, 1, True, {"n": 2}, payload))
    (answer,) = collect(rig.link, 1)
    assert isinstance(answer, Answer)
    assert tuple(bytes(frame) for frame in answer.payload) == payload
    rig.link.send("r0", Ask(2, "push", {}, payload))
    ask = end.take()
    assert isinstance(ask, Ask)
    assert tuple(bytes(frame) for frame in ask.payload) == payload


def test_wake_ends_a_wait(rig: Rig) -> None:
    """A submitter does not wait for the next tick."""
    waker = threading.Timer(0.05, rig.link.wake)
    waker.start()
    assert rig.link.poll(WAIT_S) == []
    waker.join()


def test_a_peer_that_is_not_there_gets_nothing(rig: Rig) -> None:
    """Its exit is an event of its own; the send is no error."""
    rig.link.send("r9", SkipCell(1, 1))
    assert rig.link.poll(0) == []


def test_an_unsigned_or_wrongly_signed_message_is_dropped_and_counted() -> None:
    """Nobody without the key is heard."""
    link = SocketLink(KEY)
    stranger, friend = Channel(link.url, b"x" * 32, "r0"), Channel(link.url, KEY, "r1")
    try:
        stranger.send(SkipCell(1, 1))
        friend.send(SkipCell(1, 2))
        assert collect(link, 1) == [SkipCell(1, 2)]
        assert link.refused == 1
    finally:
        stranger.close()
        friend.close()
        link.close()
