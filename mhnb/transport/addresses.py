"""Ports and addresses: find free ports, check ports, wait for listeners."""

from __future__ import annotations

import errno
import os
import random
import resource
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

from mhnb.core.addresses import Address, parse_host_and_port
from mhnb.errors import InvalidRequest, PreflightFailed

_BELOW_EPHEMERAL = range(20_000, 32_000)
"""Below the ephemeral range, from which Linux and macOS serve sockets that bind to port 0."""


_HUB_BLOCKS = range(12_000, 20_000, 32)
"""First ports of the hubs' blocks. Each hub has a block of its own; coordinators use none of these ports."""

_LOOPBACK = "127.0.0.1"

BACKLOG = 1024
"""Connections that may wait to be accepted: a large start whose ranks all connect at once."""

_MAX_UNAUTHENTICATED = 2048

RESOURCE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of `accept` when the process or the system has no resources for another connection. The caller stays in the queue."""
ACCEPT_PAUSE_S = 0.2
"""How long a listener accepts nothing after such an error; otherwise the same caller would wake it again and again."""


def max_unauthenticated() -> int:
    """Return the limit on unauthenticated connections that a listener keeps open.

    The limit fits a large start whose ranks all connect at once. It is at most half of the descriptors that the process may have,
    because anyone who reaches the port can open connections and send nothing.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_UNAUTHENTICATED if soft == resource.RLIM_INFINITY else min(_MAX_UNAUTHENTICATED, soft // 2)


def find_free_port(address: str = _LOOPBACK) -> int:
    """Return a free TCP port, outside the ephemeral range if possible.

    The coordinator binds it a second later. By then, a port that the system itself chose could belong to another socket.
    """
    for port in random.sample(_BELOW_EPHEMERAL, 50):
        if _is_free(address, port):
            return port
    with socket.socket(find_family(address)) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def reserve_hub_ports(count: int, reservation: ExitStack, address: str = _LOOPBACK) -> list[int]:
    """Find and reserve ports for the hub of this process.

    The ports are in one block, whose first port is bound here. No other hub uses a block that is reserved, whatever its user or
    container. Hubs that start at the same moment begin at different blocks, because their process ids differ. Coordinators do not use
    these blocks.

    Args:
        count: number of ports.
        reservation: exit stack that keeps the block reserved; to be closed after the hub has ended.
        address: of this machine, IPv4 or IPv6; `*` for all.

    Returns:
        `count` ports that are free at that address and on loopback, which a hub uses to talk to itself. Empty if every block is taken.
    """
    first = os.getpid() % len(_HUB_BLOCKS)
    for first_port in (*_HUB_BLOCKS[first:], *_HUB_BLOCKS[:first]):
        block = socket.socket()
        try:
            block.bind((_LOOPBACK, first_port))
        except OSError:
            block.close()
            continue
        free = (
            port
            for port in range(first_port + 1, first_port + _HUB_BLOCKS.step)
            if _is_free(_LOOPBACK, port) and _is_free(address, port)
        )
        if len(found := list(islice(free, count))) == count:
            reservation.enter_context(block)
            return found
        block.close()
    return []


def _is_free(address: str, port: int) -> bool:
    return _find_bind_error(find_family(address), (address.strip("*[]"), port)) is None


def find_family(host: str) -> socket.AddressFamily:
    """Return the family of the sockets for an IP address.

    >>> find_family("::1").name, find_family("127.0.0.1").name
    ('AF_INET6', 'AF_INET')
    """
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def listen_tcp(address: Address) -> socket.socket:
    """Listen at an IP address and port (0: any free port).

    Raises:
        OSError: the address is not this machine's, or the port is taken.
    """
    return socket.create_server((address.host, address.port), family=find_family(address.host), backlog=BACKLOG)


def find_own_address(name: str) -> str:
    """Return this machine's address towards another machine, without sending anything.

    Raises:
        OSError: the name cannot be resolved (socket.gaierror), or there is no route.
    """
    family, _, _, _, target = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def check_port_free(address: str, *, name: str = "coordinator_address") -> None:
    """Raise if a coordinator address is taken, or not this machine's.

    JAX does not check it: a foreign listener at that port crashes the ranks, and another coordinator of the same user shares the port
    silently.

    Raises:
        PreflightFailed: the address is not `HOST:PORT`, its host is unknown, or the port is taken.
    """
    try:
        named = parse_host_and_port(address, name)
    except InvalidRequest as error:
        raise PreflightFailed(str(error)) from error
    if not named.port:
        raise PreflightFailed(f"{name} {address!r}: port 0 is not a fixed port; expected one from 1 to 65535")
    try:
        found = socket.getaddrinfo(named.host, named.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise PreflightFailed(
            f"{name} {address}: unknown host {named.host!r} ({error}); expected an address of this machine"
        ) from error
    # Of a name with addresses of both kinds, the IPv4 one.
    family, _, _, _, target = min(found, key=lambda each: each[0] != socket.AF_INET)
    host, port = str(target[0]), named.port
    refusal = _find_bind_error(family, target)
    if refusal is not None and refusal.errno == errno.EADDRNOTAVAIL:
        raise PreflightFailed(
            f"{name} {address}: {host} is not an address of this machine, where rank 0 listens"
        ) from refusal
    if refusal is not None and refusal.errno != errno.EADDRINUSE:
        raise PreflightFailed(f"{name} {address}: cannot listen there: {refusal}") from refusal
    # On macOS, bind succeeds even if another process listens on all addresses.
    if refusal is None and not _has_listener(family, target):
        return
    raise PreflightFailed(
        f"{name} {address}: port {port} is in use by another process. Choose another, or leave the choice to mhnb"
    )


def _find_bind_error(family: int, target: tuple[Any, ...]) -> OSError | None:
    with socket.socket(family) as probe:
        try:
            probe.bind(target)
        except OSError as error:
            return error
    return None


def _has_listener(family: int, target: tuple[Any, ...]) -> bool:
    with socket.socket(family) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(target) == 0


# -- wait until a process listens at an address


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
    """Wait for a listener at `HOST:PORT`; return whether there is one.

    gRPC, refused once, tries again only after a second: it should not try before the coordinator is up.
    """
    try:
        named = parse_host_and_port(address)
    except InvalidRequest:
        # JAX reports it in its own words.
        return False
    until, pause_s = clock() + limit_s, _FIRST_PAUSE_S
    while (left_s := until - clock()) > 0:
        try:
            if _try_connect(named.host, named.port, left_s):
                return True
        except OSError:
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
