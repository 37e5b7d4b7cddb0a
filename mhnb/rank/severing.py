"""The last way out of a collective: this rank's share of the connections that carry them, found at the start, closed when asked.

A rank that is stuck in native code takes no signal. Its threads run, though, and a collective whose connections are gone fails.
It decides which sockets those are, and refuses to guess: not the coordinator's, not the link's, not the user's.
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
    """Where a rank is asked: the board, or the words of a host without one."""

    @property
    def close_count(self) -> int:
        """How often it was asked."""


class Severing:
    """What this rank closes when asked.

    Each connection between two devices was accepted by one of them. So each rank closes those that it has accepted, and
    when all have done so none is left: one that stood would let a later collective wait for ever.

    Args:
        board: where it is asked; None where there is none.
    """

    def __init__(self, board: Asked | None) -> None:
        self._board = board
        self._accepts: set[_Address] = set()
        self._done = 0
        self._lock = threading.Lock()

    @property
    def available(self) -> bool:
        """Whether it is known which connections are meant, and somebody can ask."""
        return self._board is not None and bool(self._accepts)

    def watch(self, make: Callable[[], _Made]) -> _Made:
        """Call what makes the collectives, and note where they listen."""
        before = _listening()
        made = make()
        self._accepts |= _listening() - before
        return made

    def look(self) -> None:
        """Close, if that was asked since the last time; return when it is done. From any thread."""
        if self._board is None or self._board.close_count == self._done:
            return
        with self._lock:
            if (asked := self._board.close_count) != self._done:
                self.sever()
                self._done = asked

    def sever(self) -> int:
        """Close every connection that carries collectives and was accepted here; say how many."""
        found = [each for each in _connections() if each.raddr and _address(each.laddr) in self._accepts]
        return sum(_shut(each) for each in found)


def _connections() -> list[Any]:
    try:
        return list(psutil.Process().net_connections("tcp"))
    except (psutil.Error, OSError):
        # A system that hides its connections also from their owner: then none is known, and nobody is promised anything.
        return []


def _listening() -> set[_Address]:
    return {_address(each.laddr) for each in _connections() if each.status == psutil.CONN_LISTEN}


def _address(place: Any) -> _Address:
    return str(place[0]).removeprefix(_MAPPED), int(place[1])


def _shut(found: Any) -> bool:
    """Shut a connection for both ends; false where it has gone by itself, or its number is another file's by now."""
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
