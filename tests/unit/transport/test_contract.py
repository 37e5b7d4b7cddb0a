"""Contract tests for every transport: the socket transport over a Unix domain socket and TCP, and the in-process one."""

from __future__ import annotations

import os
import resource
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from mhnb.core.codec import encode
from mhnb.core.messages import Message, RankReply, RankRequest, RunCell, SkipCell, StopHost
from mhnb.transport import server
from mhnb.transport.base import Transport
from mhnb.transport.client import FrameClient, TransportClient, connect
from mhnb.transport.framing import encode_frames
from mhnb.transport.security import CHALLENGE_NBYTES, open_session
from mhnb.transport.server import SocketServer
from mhnb.types import Frame
from tests.support.in_process_transport import InProcessTransport
from tests.support.source import ROOT

KEY = b"k" * 32
WAIT_S = 20.0


class RemoteEnd(Protocol):
    """What the tests need of a rank's end."""

    def send(self, message: Message) -> None: ...

    def receive(self) -> Message | None: ...


@dataclass
class Rig:
    """A transport, and a function that connects a remote end to it."""

    transport: Transport
    connect: Callable[[str], RemoteEnd]


class _SocketEnd:
    def __init__(self, channel: TransportClient) -> None:
        self.channel, self.send = channel, channel.send

    def receive(self) -> Message | None:
        deadline = time.monotonic() + WAIT_S
        while (message := self.channel.receive()) is None and time.monotonic() < deadline:
            self.channel.poll(1.0)
        return message


class _InProcessEnd:
    def __init__(self, link: InProcessTransport, name: str) -> None:
        self.peer = link.connect(name)
        self.send = self.peer.send

    def receive(self) -> Message | None:
        return self.peer.receive(WAIT_S)


def connect_client(server: SocketServer, key: bytes, name: str) -> TransportClient:
    """Connect while the transport is polled, as the reader does, because each end first sends a challenge."""
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(TransportClient, server.url, key, name)
        deadline = time.monotonic() + WAIT_S
        while not opening.done():
            assert server.poll(0.01) == []
            assert time.monotonic() < deadline
    return opening.result()


@pytest.fixture(params=["unix", "tcp", "sealed", "memory"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Yield each kind of transport in turn."""
    if request.param == "memory":
        memory = InProcessTransport()
        yield Rig(memory, lambda name: _InProcessEnd(memory, name))
        return
    path = tmp_path_factory.mktemp("l") / "link" if request.param == "unix" else None
    link, ends = SocketServer(KEY, path=path, encrypt=request.param == "sealed"), []
    assert link.url.startswith(request.param)

    def connect(name: str) -> RemoteEnd:
        ends.append(connect_client(link, KEY, name))
        return _SocketEnd(ends[-1])

    yield Rig(link, connect)
    for end in ends:
        end.close()
    link.close()


def poll_messages(transport: Transport, count: int) -> list[Message]:
    """Poll until that many messages have arrived."""
    found: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        found += transport.poll(1.0)
        assert time.monotonic() < deadline, f"had {found}"
    return found


def send_and_receive(
    transport: Transport, end: RemoteEnd, send: Callable[[], None], count: int = 1
) -> list[Message | None]:
    """Send, and receive that many messages at the remote end while this end polls, as the reader does."""
    received: list[Message | None] = []
    reading = threading.Thread(target=lambda: received.extend(end.receive() for _ in range(count)))
    send()
    reading.start()
    deadline = time.monotonic() + WAIT_S
    while reading.is_alive():
        transport.poll(0.1)
        assert time.monotonic() < deadline
    return received


def test_messages_of_one_peer_arrive_in_order(rig: Rig) -> None:
    """Messages of one peer arrive in order, so that live output arrives before the reply it belongs to."""
    end = rig.connect("r0")
    messages = [SkipCell(1, seq) for seq in range(200)]
    for message in messages:
        end.send(message)
    assert poll_messages(rig.transport, 200) == messages


def test_message_reaches_only_the_named_peer(rig: Rig) -> None:
    """A message reaches only the peer that it is sent to."""
    ends = {name: rig.connect(name) for name in ("r0", "r1", "s0")}
    for end in ends.values():
        end.send(SkipCell(1, 1))
    poll_messages(rig.transport, 3)
    rig.transport.send("r1", RunCell(1, 2, "x"))
    rig.transport.send("s0", StopHost())
    assert ends["r1"].receive() == RunCell(1, 2, "x")
    assert ends["s0"].receive() == StopHost()


def test_binary_payload_arrives_unchanged(rig: Rig) -> None:
    """Binary payloads, such as the bytes of arrays, arrive unchanged in both directions."""
    end = rig.connect("r0")
    payload = (bytes(range(256)) * 1000, b"")
    # From a thread, because a remote end waits for a notebook that does not read.
    sending = threading.Thread(target=end.send, args=(RankReply(0, 1, True, {"n": 2}, payload),))
    sending.start()
    (answer,) = poll_messages(rig.transport, 1)
    sending.join()
    assert isinstance(answer, RankReply)
    assert tuple(bytes(frame) for frame in answer.payload) == payload
    request = send_and_receive(
        rig.transport, end, lambda: rig.transport.send("r0", RankRequest(2, "push", {}, payload))
    )[0]
    assert isinstance(request, RankRequest)
    assert tuple(bytes(frame) for frame in request.payload) == payload


def test_message_with_many_frames_arrives_complete(rig: Rig) -> None:
    """A message with thousands of frames arrives complete, for example a list of thousands of small arrays."""
    end = rig.connect("r0")
    payload = tuple(bytes([n % 256]) for n in range(10_000))
    sending = threading.Thread(target=end.send, args=(RankReply(0, 1, True, None, payload),))
    sending.start()
    (answer,) = poll_messages(rig.transport, 1)
    sending.join()
    assert isinstance(answer, RankReply)
    assert [bytes(frame) for frame in answer.payload] == list(payload)
    request = send_and_receive(
        rig.transport, end, lambda: rig.transport.send("r0", RankRequest(2, "push", {}, payload))
    )[0]
    assert isinstance(request, RankRequest)
    assert len(request.payload) == 10_000


def test_wake_ends_poll(rig: Rig) -> None:
    """`wake` ends a `poll`, so that a submitter does not wait for the next tick."""
    waker = threading.Timer(0.05, rig.transport.wake)
    waker.start()
    assert rig.transport.poll(WAIT_S) == []
    waker.join()


def test_send_to_unknown_peer_is_ignored(rig: Rig) -> None:
    """A send to an unknown peer is not an error, because the exit of a peer is a separate event."""
    rig.transport.send("r9", SkipCell(1, 1))
    assert rig.transport.poll(0) == []


def test_message_without_the_key_is_dropped_and_counted() -> None:
    """Messages from a peer without the key are dropped and counted."""
    link = SocketServer(KEY)
    stranger, friend = connect_client(link, b"x" * 32, "r0"), connect_client(link, KEY, "r1")
    try:
        stranger.send(SkipCell(1, 1))
        friend.send(SkipCell(1, 2))
        assert poll_messages(link, 1) == [SkipCell(1, 2)]
        assert link.rejected_count == 1
    finally:
        stranger.close()
        friend.close()
        link.close()


def test_too_long_socket_path_falls_back_to_tcp(tmp_path: Path) -> None:
    """A socket path that is too long, as in a deep home directory, makes the server fall back to TCP."""
    link = SocketServer(KEY, path=tmp_path / ("d" * 120))
    try:
        assert link.url.startswith("tcp:127.0.0.1:")
    finally:
        link.close()


def test_socket_file_is_private_and_removed_on_close(tmp_path: Path) -> None:
    """The socket file has mode 0600, so that no other user can connect, and is removed when the server closes."""
    path = tmp_path / "link"
    link = SocketServer(KEY, path=path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link.close()
    assert not path.exists()


@pytest.mark.slow
def test_large_messages_to_busy_peer_arrive_complete(rig: Rig) -> None:
    """The notebook never waits for a rank that does not read, and sends the unsent bytes later."""
    end = rig.connect("r0")
    end.send(SkipCell(1, 1))
    poll_messages(rig.transport, 1)
    payload = bytes(range(256)) * 100_000

    def send() -> None:
        for seq in range(3):
            rig.transport.send("r0", RankRequest(seq, "push", {}, (payload,)))

    received = send_and_receive(rig.transport, end, send, count=3)
    assert [(m.request_id, m.payload[0] == payload) for m in received if isinstance(m, RankRequest)] == [
        (n, True) for n in range(3)
    ]


def test_unauthenticated_peer_is_cut_off_at_long_message() -> None:
    """A peer that has not authenticated is disconnected at its first long message, and other peers are still served."""
    link, friend = SocketServer(KEY), None
    address, _, port = link.url.removeprefix("tcp:").rpartition(":")
    try:
        with socket.create_connection((address, int(port))) as stranger:
            stranger.sendall(struct.pack("<IQ", 1, 1 << 40) + bytes(1000))
            stranger.settimeout(WAIT_S)
            deadline = time.monotonic() + WAIT_S
            while link.rejected_count == 0:
                link.poll(0.1)
                assert time.monotonic() < deadline
            challenge = stranger.recv(1000)
            assert len(challenge) == CHALLENGE_NBYTES
            assert stranger.recv(1) == b""
        friend = connect_client(link, KEY, "r1")
        friend.send(SkipCell(1, 2))
        assert poll_messages(link, 1) == [SkipCell(1, 2)]
    finally:
        if friend is not None:
            friend.close()
        link.close()


@pytest.mark.parametrize("none_left", [False, True], ids=["enough", "none left"])
def test_silent_connections_do_not_keep_ranks_out(none_left: bool) -> None:  # noqa: FBT001
    """Silent unauthenticated connections are limited, even without free descriptors, so a rank can still connect."""
    # In a process of its own, because the clusters that other tests share need descriptors too.
    program = f"from tests.unit.transport.test_contract import check_strangers; check_strangers(none_left={none_left})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_strangers(*, none_left: bool) -> None:
    """Run the notebook's end, many unauthenticated peers and one rank."""
    server.max_unauthenticated = lambda: 20  # type: ignore[attr-defined]
    link = SocketServer(KEY)
    address, _, port = link.url.removeprefix("tcp:").rpartition(":")
    strangers: list[socket.socket] = []
    friends: list[TransportClient] = []
    fillers: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for _ in range(40):
            strangers.append(socket.create_connection((address, int(port))))
            assert link.poll(WAIT_S) == []
        assert link.rejected_count == 20
        if none_left:
            # One descriptor for the friend's own end, and none for the server's.
            fillers.append(os.dup(0))
            while fillers[-1] < max(end.fileno() for end in strangers) + 100:
                fillers.append(os.dup(0))
            resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 2, hard))
        friends.append(connect_client(link, KEY, "r1"))
        friends[0].send(SkipCell(1, 2))
        assert poll_messages(link, 1) == [SkipCell(1, 2)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
        for stranger in strangers:
            stranger.close()
        for friend in friends:
            friend.close()
        link.close()


def test_send_to_disconnected_peer_is_ignored() -> None:
    """A send to a peer that has disconnected is not an error, because its supervisor reports its exit."""
    link = SocketServer(KEY)
    first = connect_client(link, KEY, "r0")
    first.send(SkipCell(1, 1))
    poll_messages(link, 1)
    first.close()
    link.poll(WAIT_S)
    link.send("r0", SkipCell(1, 2))
    link.close()


def test_recorded_connection_cannot_be_replayed() -> None:
    """Recorded frames are rejected on another connection, because each connection has a key of its own."""
    link = SocketServer(KEY)
    recorded: list[Frame] = []

    class Recorder(FrameClient):
        def _write(self, frames: Sequence[Frame]) -> None:
            recorded.extend(encode_frames(frames))
            super()._write(frames)

    try:
        with ThreadPoolExecutor() as pool:
            opening = pool.submit(Recorder, connect(link.url), KEY, "r0", encrypt=False)
            while not opening.done():
                link.poll(0.01)
        opening.result().send(encode(SkipCell(1, 1)))
        assert poll_messages(link, 1) == [SkipCell(1, 1)]
        address, _, port = link.url.removeprefix("tcp:").rpartition(":")
        with socket.create_connection((address, int(port))) as player:
            player.sendall(b"".join(recorded))
            deadline = time.monotonic() + WAIT_S
            while link.rejected_count == 0:
                assert link.poll(0.1) == []
                assert time.monotonic() < deadline
        opening.result().close()
    finally:
        link.close()


def test_rank_reconnects_to_next_notebook(tmp_path: Path) -> None:
    """Ranks that outlive a notebook reconnect to the next one at the same address, and it receives their messages."""
    path = tmp_path / "link"
    first = SocketServer(KEY, path=path)
    end = connect_client(first, KEY, "r0")
    first.close()
    assert end.receive() is None
    assert end.is_closed
    assert not end.reconnect()
    second = SocketServer(KEY, path=path)
    try:
        with ThreadPoolExecutor() as pool:
            trying = pool.submit(end.reconnect)
            while not trying.done():
                assert second.poll(0.01) == []
        assert trying.result()
        end.send(SkipCell(1, 1))
        assert poll_messages(second, 1) == [SkipCell(1, 1)]
        second.send("r0", SkipCell(1, 2))
        assert end.poll(WAIT_S)
        assert end.receive() == SkipCell(1, 2)
    finally:
        end.close()
        second.close()


def test_peer_with_invalid_message_is_disconnected(rig: Rig) -> None:
    """A peer with the key that sends an invalid message is disconnected and reported once, with the reason."""
    bad, good = rig.connect("r0"), rig.connect("r1")
    for end in (bad, good):
        end.send(SkipCell(1, 1))
    poll_messages(rig.transport, 2)
    if isinstance(bad, _InProcessEnd):
        bad.peer.send_frames([b"shouting"])
    else:
        assert isinstance(bad, _SocketEnd)
        bad.channel.frames.send([b"shouting"])
    deadline = time.monotonic() + WAIT_S
    while not (cut := rig.transport.pop_violators()):
        rig.transport.poll(0.1)
        assert time.monotonic() < deadline
    assert [(peer, "shouting" in why) for peer, why in cut] == [("r0", True)]
    assert rig.transport.pop_disconnected() == ["r0"]
    assert rig.transport.pop_violators() == []
    good.send(SkipCell(1, 2))
    assert poll_messages(rig.transport, 1) == [SkipCell(1, 2)]


def test_message_that_comes_a_second_time_is_dropped_alone() -> None:
    """A forked child of a rank counts its messages as its parent does: the second message with a number is dropped and counted."""
    link = SocketServer(KEY)
    end = connect_client(link, KEY, "r0")
    child_count = end.frames._writer._count
    end.send(SkipCell(1, 1))
    end.frames._writer._count = child_count
    end.send(SkipCell(1, 2))
    end.send(SkipCell(1, 3))
    assert poll_messages(link, 2) == [SkipCell(1, 1), SkipCell(1, 3)]
    assert link.rejected_count == 1
    assert link.pop_violators() == []
    end.close()
    link.close()


def test_timeout_error_of_the_user_does_not_close_the_connection() -> None:
    """A TimeoutError that a user's signal handler raises during a send, an OSError too, reaches the user; the connection stays."""

    class InterruptedSocket(socket.socket):
        def sendall(self, data: Any, flags: int = 0) -> None:
            super().sendall(data, flags)
            raise TimeoutError("the bell")

    link = SocketServer(KEY)
    end = connect_client(link, KEY, "r0")
    end.frames._socket = InterruptedSocket(fileno=end.frames._socket.detach())
    with pytest.raises(TimeoutError, match="the bell"):
        end.send(SkipCell(1, 1))
    assert not end.is_closed
    assert poll_messages(link, 1) == [SkipCell(1, 1)]
    end.close()
    link.close()


def test_disconnect_closes_a_peer(rig: Rig) -> None:
    """`disconnect` closes a peer's connection, and a second call does nothing."""
    end = rig.connect("r0")
    end.send(SkipCell(1, 1))
    assert rig.transport.poll_with_peers(WAIT_S) or rig.transport.poll_with_peers(WAIT_S)
    rig.transport.disconnect("r0")
    rig.transport.disconnect("r0")
    assert rig.transport.pop_disconnected() == ["r0"]


@pytest.mark.parametrize("name", [b"\xff\xfe", b"r-1", b"notebook", b"r" + b"9" * 100, b""])
def test_invalid_peer_name_is_rejected(name: bytes) -> None:
    """An invalid peer name is rejected even with the right key, because names are parsed as numbers."""
    link = SocketServer(KEY)
    address, _, port = link.url.removeprefix("tcp:").rpartition(":")
    try:
        with socket.create_connection((address, int(port))) as end:
            link.poll(WAIT_S)
            challenge, answer = end.recv(CHALLENGE_NBYTES), b"a" * CHALLENGE_NBYTES
            writer, _ = open_session(KEY, challenge, answer, name, is_server=False, encrypt=False)
            end.sendall(b"".join(encode_frames([name, answer, *writer.sign([name])])))
            while link.rejected_count == 0:
                assert link.poll(WAIT_S) == []
    finally:
        link.close()


def test_listener_without_descriptors_pauses() -> None:
    """A listener without free descriptors pauses instead of polling in a loop, and accepts the waiting caller later."""
    program = "from tests.unit.transport.test_contract import check_no_room; check_no_room()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_no_room() -> None:
    """Run the notebook's end, and a caller for which no descriptor is left."""
    now = [0.0]
    link = SocketServer(KEY, clock=lambda: now[0])
    address, _, port = link.url.removeprefix("tcp:").rpartition(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    caller = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (caller.fileno() + 1, hard))
    fillers = []
    try:
        while True:
            fillers.append(os.dup(0))
    except OSError:
        caller.connect((address, int(port)))
    assert link.poll(WAIT_S) == []
    # Without the pause, each of these would report the caller at once.
    assert [link.frames._selector.select(0) for _ in range(3)] == [[], [], []]
    assert link.poll(0) == []
    now[0] = 10.0
    assert link.poll(WAIT_S) == []
    assert not link.frames._unauthenticated
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    now[0] = 20.0
    assert link.poll(WAIT_S) == []
    assert len(link.frames._unauthenticated) == 1
    for filler in fillers:
        os.close(filler)
    caller.close()
    link.close()
