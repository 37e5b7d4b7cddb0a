"""Abort collectives: this rank's share of the connections that carry them, found at the start, closed on request.

A rank that is stuck in native code takes no signal. Its threads run, though, and a collective whose connections are gone fails.
This module decides which sockets those are. It does not guess: not the coordinator's, not the link's, not the user's.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import psutil

__all__ = ["Asked", "Severing"]

_Address = tuple[str, int]
_Made = TypeVar("_Made")
_MAPPED = "::ffff:"


class Asked(Protocol):
    """Where requests to close arrive: the board, or the interrupt word of a host without one."""

    @property
    def close_count(self) -> int:
        """How often closing was requested."""


class Severing:
    """The connections that this rank closes on request.

    Each connection between two devices was accepted by one of them. So each rank closes those that it has accepted, and
    when all have done so none is left: a remaining one would let a later collective wait forever.

    Args:
        board: where requests arrive; None if there is no such place.
    """

    def __init__(self, board: Asked | None) -> None:
        self._board = board
        self._accepts: set[_Address] = set()
        self._done = 0
        self._lock = threading.Lock()

    @property
    def available(self) -> bool:
        """Whether the connections are known, and a request can arrive."""
        return self._board is not None and bool(self._accepts)

    def watch(self, make: Callable[[], _Made]) -> _Made:
        """Call the function that makes the collectives, and record where they listen."""
        before = _listening()
        made = make()
        self._accepts |= _listening() - before
        return made

    def look(self) -> None:
        """Close the connections if that was requested since the last call; return when it is done. Any thread may call it."""
        if self._board is None or self._board.close_count == self._done:
            return
        with self._lock:
            if (asked := self._board.close_count) != self._done:
                self.sever()
                self._done = asked

    def sever(self) -> int:
        """Close every connection that carries collectives and was accepted here; return how many."""
        found = [each for each in _connections() if each.raddr and _address(each.laddr) in self._accepts]
        return sum(_shut(each) for each in found)


def _connections() -> list[Any]:
    try:
        return list(psutil.Process().net_connections("tcp"))
    except (psutil.Error, OSError):
        # A system that hides its connections also from their owner: then none is known, and nothing is promised.
        return []


def _listening() -> set[_Address]:
    return {_address(each.laddr) for each in _connections() if each.status == psutil.CONN_LISTEN}


def _address(place: Any) -> _Address:
    return str(place[0]).removeprefix(_MAPPED), int(place[1])


def _shut(found: Any) -> bool:
    """Shut a connection for both ends. Return False if it has closed by itself, or its number is another file's by now."""
    try:
        copy = socket.socket(fileno=os.dup(found.fd))
    except OSError:
        return False
    with copy:
        try:
            same = _address(copy.getpeername()) == _address(found.raddr)
            if same:
                copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return same
