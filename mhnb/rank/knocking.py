"""Wait until a process listens at an address."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import closing

__all__ = ["wait_for_port"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1
"""The pause doubles: this machine's coordinator is up in a moment, but hundreds of ranks may try one that is late."""
_NO_LINGER = struct.pack("ii", 1, 0)


def wait_for_port(
    address: str,
    limit_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until a process listens at `HOST:PORT`. Return False if none does in time, or the address is not valid.

    gRPC, refused once, tries again only after a second: it should not try before the coordinator is up.
    """
    host, _, port = address.rpartition(":")
    until, pause_s = clock() + limit_s, _FIRST_PAUSE_S
    while (left_s := until - clock()) > 0:
        try:
            if _try_connect(host.strip("[]"), int(port), left_s):
                return True
        except (OSError, ValueError):
            # The host does not exist or cannot be reached: JAX reports it in its own words.
            return False
        sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return False


def _try_connect(host: str, port: int, limit_s: float) -> bool:
    """Connect and close again. Return False if the connection was refused."""
    try:
        connection = socket.create_connection((host, port), limit_s)
    except ConnectionError:
        return False
    with closing(connection):
        if connection.getsockname() != connection.getpeername():
            return True
        # The system may assign to the connecting socket the very port that it tries. The port must not stay in use for
        # that.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    return False
