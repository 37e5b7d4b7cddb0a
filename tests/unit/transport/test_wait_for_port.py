"""Wait for a listener, with real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from mhnb.transport.addresses import wait_for_port

WAIT_S = 20.0


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    """A socket that has a port but does not listen, so connections are refused."""
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        yield one


def _address(one: socket.socket) -> str:
    host, port = one.getsockname()
    return f"{host}:{port}"


def test_waits_until_a_process_listens(bound: socket.socket) -> None:
    """It retries refused connections at growing intervals, until a process listens."""
    refusals: list[float] = []

    def listen_after_three(pause_s: float) -> None:
        refusals.append(pause_s)
        if len(refusals) == 3:
            bound.listen()

    assert wait_for_port(_address(bound), WAIT_S, sleep=listen_after_three)
    assert len(refusals) == 3
    assert refusals == sorted(set(refusals))


def test_connection_to_itself_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket may connect to itself if the system gives it that very port; this does not count, and the port stays free."""
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        address = other.getsockname()

    def connect_to_itself(*_: object) -> socket.socket:
        one = socket.socket()
        one.bind(address)
        one.connect(address)
        return one

    monkeypatch.setattr(socket, "create_connection", connect_to_itself)
    assert not wait_for_port("{}:{}".format(*address), 0.02)
    with closing(socket.socket()) as coordinator:
        coordinator.bind(address)


def test_returns_false_after_the_time_limit(bound: socket.socket) -> None:
    """`wait_for_port` returns False after the time limit."""
    assert not wait_for_port(_address(bound), 0.05)


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:port"])
def test_invalid_address_returns_false_at_once(address: str) -> None:
    """It returns False at once for an invalid address, because JAX reports the error itself."""
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(wait_for_port(address, 10 * WAIT_S)))
    waiting.start()
    waiting.join(WAIT_S)
    assert found == [False]
