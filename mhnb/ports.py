"""Ports for the coordinator and the hub: find free ones, and say who cannot have one that is taken."""

from __future__ import annotations

import os
import random
import resource
import socket
from itertools import islice

from mhnb.errors import PreflightFailed

__all__ = ["check_port_free", "count_strangers_kept", "find_free_port", "find_hub_ports", "find_own_address"]


_BELOW_EPHEMERAL = range(20_000, 32_000)
"""What the system gives to sockets that ask for any port lies above, on Linux and macOS."""


_HUBS = range(12_000, 20_000)
"""Where hubs look, and coordinators do not."""

_STRANGERS = 2048


def count_strangers_kept() -> int:
    """Say how many connections that have not shown a key a listener of this process keeps at a time.

    As many as the ranks of a large start that all connect at once; and never more than half of the descriptors that the process may have,
    since anybody who reaches the port can open connections and say nothing.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _STRANGERS if soft == resource.RLIM_INFINITY else min(_STRANGERS, soft // 2)


def find_free_port(address: str = "127.0.0.1") -> int:
    """Find a TCP port that is free, and stays so until somebody asks for that very one.

    The coordinator takes it a second later: a port that the system itself hands out could be another socket's by then.
    """
    for port in random.sample(_BELOW_EPHEMERAL, 50):
        if _is_free(address, port):
            return port
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def find_hub_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Find ports for the hub of this process, which it takes one after the other: nobody else is to ask for them meanwhile.

    Hubs that start in the same moment have other numbers as processes, and so begin elsewhere, but for containers that share a network;
    no coordinator looks there.

    Args:
        count: how many.
        address: of this machine, IPv4 or IPv6; `*` for all.
    """
    begin = os.getpid() * count % len(_HUBS)
    turned = [*_HUBS[begin:], *_HUBS[:begin]]
    return list(islice((port for port in turned if _is_free(address, port)), count))


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
    with socket.socket() as probe:
        probe.settimeout(1.0)
        taken = probe.connect_ex((host, int(port))) == 0
    if not taken:
        with socket.socket() as probe:
            try:
                probe.bind((host, int(port)))
            except OSError as error:
                raise PreflightFailed(f"{name} {address}: cannot listen there: {error}") from error
        return
    raise PreflightFailed(
        f"{name} {address}: port {port} is taken by another process; name a free one, or leave the choice to mhnb"
    )
