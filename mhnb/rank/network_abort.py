"""Abort collectives by closing this rank's share of their connections on request.

A rank that is stuck in native code takes no signal. Its threads run, though, and a collective whose connections are gone fails.
This module decides which sockets those are. It does not guess: not the coordinator's, not the link's, not the user's.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import psutil

from mhnb.rank.guard.shared_board import InterruptFlag, SharedBoard

_Address = tuple[str, int]
_Made = TypeVar("_Made")
_MAPPED = "::ffff:"


class CollectiveSockets:
    """The connections that this rank closes on request.

    Each connection between two devices was accepted by one of them. So each rank closes those that it has accepted, and
    when all have done so none is left: a remaining one would let a later collective wait forever.

    Args:
        abort_flag: where requests arrive; None if this host has no such place.
    """

    def __init__(self, abort_flag: SharedBoard | InterruptFlag | None) -> None:
        self._abort_flag = abort_flag
        self._listen_addresses: set[_Address] = set()
        self._handled_count = 0
        self._lock = threading.Lock()

    @property
    def is_available(self) -> bool:
        """Whether the connections are known, and a request can arrive."""
        return self._abort_flag is not None and bool(self._listen_addresses)

    def record_listeners(self, make: Callable[[], _Made]) -> _Made:
        """Call the function that makes the collectives, and record where they listen."""
        before = _list_listen_addresses()
        made = make()
        self._listen_addresses |= _list_listen_addresses() - before
        return made

    def close_if_requested(self) -> None:
        """Close the connections if requested since the last call; from any thread."""
        if self._abort_flag is None or self._abort_flag.close_count == self._handled_count:
            return
        with self._lock:
            if (close_count := self._abort_flag.close_count) != self._handled_count:
                self.close_all()
                self._handled_count = close_count

    def close_all(self) -> int:
        """Close accepted connections that carry collectives; return how many."""
        found = [each for each in _connections() if each.raddr and _address(each.laddr) in self._listen_addresses]
        return sum(_shut_down(each) for each in found)


def _connections() -> list[Any]:
    try:
        return list(psutil.Process().net_connections("tcp"))
    except (psutil.Error, OSError):
        # A system that hides its connections also from their owner: then none is known, and nothing is promised.
        return []


def _list_listen_addresses() -> set[_Address]:
    return {_address(each.laddr) for each in _connections() if each.status == psutil.CONN_LISTEN}


def _address(endpoint: Any) -> _Address:
    return str(endpoint[0]).removeprefix(_MAPPED), int(endpoint[1])


def _shut_down(found: Any) -> bool:
    """Shut down a connection; return False if it no longer exists."""
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
