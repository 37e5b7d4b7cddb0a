"""Ports for the coordinator and the hub: find free ones, and say who cannot have one that is taken."""

from __future__ import annotations

import errno
import os
import random
import resource
import socket
from contextlib import ExitStack
from itertools import islice

from mhnb.errors import PreflightFailed

__all__ = [
    "NO_ROOM",
    "REST_S",
    "check_port_free",
    "count_strangers_kept",
    "find_free_port",
    "find_own_address",
    "hold_hub_ports",
]


_BELOW_EPHEMERAL = range(20_000, 32_000)
"""What the system gives to sockets that ask for any port lies above, on Linux and macOS."""


_BLOCKS = range(12_000, 20_000, 32)
"""Where hubs look, and coordinators do not: each has a block of its own, which begins here."""

_LOOPBACK = "127.0.0.1"

_STRANGERS = 2048

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Why `accept` fails where the process, or the system, has no room for one more connection. Who came stays in the queue."""
REST_S = 0.2
"""So long a listener lets nobody in after that: else it would be told of the same caller again and again."""


def count_strangers_kept() -> int:
    """Say how many connections that have not shown a key a listener of this process keeps at a time.

    As many as the ranks of a large start that all connect at once; and never more than half of the descriptors that the process may have,
    since anybody who reaches the port can open connections and say nothing.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _STRANGERS if soft == resource.RLIM_INFINITY else min(_STRANGERS, soft // 2)


def find_free_port(address: str = _LOOPBACK) -> int:
    """Find a TCP port that is free, and stays so until somebody asks for that very one.

    The coordinator takes it a second later: a port that the system itself hands out could be another socket's by then.
    """
    for port in random.sample(_BELOW_EPHEMERAL, 50):
        if _is_free(address, port):
            return port
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def hold_hub_ports(count: int, held: ExitStack, address: str = _LOOPBACK) -> list[int]:
    """Find ports for the hub of this process, which it takes one after the other: nobody else is to ask for them meanwhile.

    The ports lie in one block, whose first one is bound here: no other hub looks in a block that is held, whatever its user or its
    container. Hubs that start in the same moment have other numbers as processes, and so begin elsewhere; no coordinator looks there.

    Args:
        count: how many.
        held: what keeps the block; to be closed once the hub has ended.
        address: of this machine, IPv4 or IPv6; `*` for all.

    Returns:
        As many, free at that address and on loopback, where a hub speaks with itself; none where every block is taken.
    """
    first = os.getpid() % len(_BLOCKS)
    for guard in (*_BLOCKS[first:], *_BLOCKS[:first]):
        block = socket.socket()
        try:
            block.bind((_LOOPBACK, guard))
        except OSError:
            block.close()
            continue
        free = (
            port
            for port in range(guard + 1, guard + _BLOCKS.step)
            if _is_free(_LOOPBACK, port) and _is_free(address, port)
        )
        if len(found := list(islice(free, count))) == count:
            held.enter_context(block)
            return found
        block.close()
    return []


def _is_free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address.strip("*[]"), port))
        except OSError:
            return False
    return True


def find_own_address(name: str) -> str:
    """Find the address of this machine from which it reaches another one. Nothing is sent.

    Raises:
        OSError: the name cannot be resolved (socket.gaierror), or there is no way there.
    """
    family, _, _, _, place = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def check_port_free(address: str, *, name: str = "coordinator_address") -> None:
    """Refuse a coordinator's address whose port somebody holds, or that is none of this machine's.

    JAX does not refuse it: a foreign listener there crashes the ranks, and another coordinator of the same user shares the port in silence.

    Raises:
        PreflightFailed: not `host:port`, a host that is not known, or the port is taken.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise PreflightFailed(f"{name} {address!r} is not HOST:PORT with a port from 1 to 65535")
    try:
        host = socket.gethostbyname(host)
    except OSError as error:
        raise PreflightFailed(
            f"{name} {address}: this machine knows no host {host!r} ({error}); give an address of it"
        ) from error
    refusal = _find_bind_error(host, int(port))
    if refusal is not None and refusal.errno == errno.EADDRNOTAVAIL:
        raise PreflightFailed(
            f"{name} {address}: {host} is no address of this machine, where rank 0 listens; give one that is"
        ) from refusal
    if refusal is not None and refusal.errno != errno.EADDRINUSE:
        raise PreflightFailed(f"{name} {address}: cannot listen there: {refusal}") from refusal
    # macOS lets us bind an address of which another process listens on all.
    if refusal is None and not _is_answered(host, int(port)):
        return
    raise PreflightFailed(
        f"{name} {address}: port {port} is taken by another process; name a free one, or leave the choice to mhnb"
    )


def _find_bind_error(host: str, port: int) -> OSError | None:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def _is_answered(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0
