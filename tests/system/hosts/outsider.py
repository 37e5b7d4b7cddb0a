"""An attacker on the network without the keys, who finds every port of a cluster and sends unexpected data to it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from mhnb.cluster.cluster import Cluster
from tests.system.hosts.hostnet import HostNet

__all__ = ["Port", "send_noise", "find_ports", "hold_open"]

_SSHD = 22
_WAIT_S = 5.0


@dataclass(frozen=True)
class Port:
    """A TCP port that a process of the cluster listens on."""

    machine: str
    address: str
    port: int
    process: str
    """The listener: `notebook`, `hub`, `agreement server`, or `rank` (JAX's coordinator and gloo)."""


def find_ports(net: HostNet, cluster: Cluster) -> list[Port]:
    """Find every listening TCP port of the notebook, of the hub, and of the hosts."""
    assert cluster.hub_pid is not None
    found = [
        Port("head", *at, who)
        for who, pid in (("notebook", os.getpid()), ("hub", cluster.hub_pid))
        for at in _listening_sockets(pid)
    ]
    for host in net:
        for line in host.run("ss", "-Hltnp").splitlines():
            address, _, port = line.split()[3].rpartition(":")
            if int(port) != _SSHD:
                pids = {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
                who = (
                    "rank" if pids & {rank.pid for rank in cluster.ranks if rank.hostname == host.name} else "delegate"
                )
                found.append(Port(host.name, address.strip("[]"), int(port), who))
    return found


def _listening_sockets(pid: int) -> list[tuple[str, int]]:
    group = [psutil.Process(pid), *(psutil.Process(pid).children(recursive=True) if pid != os.getpid() else [])]
    return [(at.laddr.ip, at.laddr.port) for one in group for at in one.net_connections("tcp") if at.status == "LISTEN"]


def send_noise(port: Port) -> None:
    """Scan the port and send unexpected data: noise, noise in valid frames, an HTTP request, and a length that is too large."""
    noise = os.urandom(3000)
    framed = struct.pack("<I3Q", 3, 2, 16, 40) + b"r0" + os.urandom(56)
    for data in (b"", b"\0", noise, framed, b"GET / HTTP/1.1\r\n\r\n", struct.pack("<IQ", 1, 1 << 40) + noise):
        # Being disconnected while sending is not a failure here.
        with contextlib.suppress(OSError), socket.create_connection((port.address, port.port), _WAIT_S) as stranger:
            stranger.sendall(data)


@contextlib.contextmanager
def hold_open(ports: list[Port], count: int) -> Iterator[None]:
    """Hold that many connections to each port open: half of them silent, half of them in the middle of a frame."""
    with contextlib.ExitStack() as connections:
        for port in ports:
            for number in range(count):
                stranger = connections.enter_context(socket.create_connection((port.address, port.port), _WAIT_S))
                if number % 2:
                    stranger.sendall(struct.pack("<I3Q", 3, 2, 16, 40)[: 1 + number % 20])
        yield
