"""A rank leaves a collective by closing the connections that its collectives' listener accepted, and no others."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mhnb.rank.guard.shared_board import SharedBoard, create_board
from mhnb.rank.network_abort import CollectiveSockets

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def listen() -> Iterator[Callable[[], socket.socket]]:
    """Make listening sockets that are closed at the end."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_server(("127.0.0.1", 0)))


@pytest.fixture
def connect() -> Iterator[Callable[[socket.socket], Pair]]:
    """Connect to a listener, and return the near and the accepted end."""
    with ExitStack() as stack:

        def pair(listener: socket.socket) -> Pair:
            near = stack.enter_context(socket.create_connection(listener.getsockname()))
            return near, stack.enter_context(listener.accept()[0])

        yield pair


def is_open(pair: Pair) -> bool:
    """Return whether a byte still arrives."""
    try:
        pair[1].sendall(b"x")
    except BrokenPipeError:
        return False
    return pair[0].recv(1) == b"x"


def test_only_collective_connections_are_closed(
    listen: Callable[[], socket.socket], connect: Callable[[socket.socket], Pair]
) -> None:
    """Listeners made earlier, or later by the user, keep their connections; outgoing connections are closed by other ranks."""
    sockets = CollectiveSockets(None)
    earlier = listen()
    ours = sockets.record_listeners(listen)
    later = listen()
    pairs = [connect(listener) for listener in (earlier, ours, later, ours)]
    assert sockets.close_all() == 2
    assert [is_open(pair) for pair in pairs] == [True, False, True, False]


def test_connections_are_closed_once_per_request(
    tmp_path: Path, listen: Callable[[], socket.socket], connect: Callable[[socket.socket], Pair]
) -> None:
    """Connections made after the request stay open, because they belong to a later program."""
    create_board(tmp_path, 1)
    requester, board = SharedBoard(tmp_path, 1), SharedBoard(tmp_path, 1)
    sockets = CollectiveSockets(board)
    ours = sockets.record_listeners(listen)
    first = connect(ours)
    sockets.close_if_requested()
    assert is_open(first)
    requester.request_close()
    sockets.close_if_requested()
    second = connect(ours)
    sockets.close_if_requested()
    assert (is_open(first), is_open(second)) == (False, True)
    board.close()
    requester.close()


@pytest.mark.parametrize("made", ["listener", "none"])
def test_closing_needs_a_recorded_listener(tmp_path: Path, listen: Callable[[], socket.socket], made: str) -> None:
    """Closing connections is available only if a listener of the collectives was found."""
    create_board(tmp_path, 1)
    board = SharedBoard(tmp_path, 1)
    sockets = CollectiveSockets(board)
    sockets.record_listeners(listen if made == "listener" else object)
    assert sockets.is_available == (made == "listener")
    board.close()
