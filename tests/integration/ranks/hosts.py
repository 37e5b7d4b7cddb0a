"""Clusters whose ranks run on several simulated hosts, each with its own supervisor and run directory, all on this machine.

The hosts share what real hosts share: the network, and the files by which ranks find the hub.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mhnb.cluster.cluster import Cluster
from mhnb.cluster.generation import local_spec
from mhnb.cluster.options import StartOptions, StartRequest
from mhnb.core.cluster_spec import ClusterSpec
from mhnb.core.messages import HostSpec
from mhnb.launchers.local import LocalHost
from mhnb.launchers.profiles import Profile, load_profile
from mhnb.transport.addresses import find_free_port

__all__ = ["MultiHostCluster", "CuttableProxy"]


class MultiHostCluster(Cluster):
    """A cluster on several hosts.

    Args:
        hosts: the ranks of each host, the first host's first.
        devices: CPU devices per rank.
        way: maps a host's number and the board's URL to the URL that this host uses to reach the board.
        **options: fields of StartOptions.
    """

    def __init__(
        self,
        hosts: Sequence[Sequence[int]],
        devices: int,
        name: str,
        way: Callable[[int, str], str] = lambda _host, url: url,
        **options: Any,
    ) -> None:
        self._ranks_by_host, self._route = hosts, way
        shape = ClusterSpec(sum(map(len, hosts)), devices, True, {})
        super().__init__(StartRequest(shape, StartOptions(name=name, **options), load_profile("local")))

    def _launch(self, profile: Profile) -> None:
        del profile
        spec = local_spec(self._resources, f"127.0.0.1:{find_free_port()}")
        url = f"tcp:127.0.0.1:{find_free_port()}"
        self._start(replace(spec, ranks=list(self._ranks_by_host[0]), board_url=url))
        for number, ranks in enumerate(self._ranks_by_host[1:], start=1):
            folder = Path(spec.run_dir, f"host{number}")
            (folder / "log").mkdir(parents=True)
            (folder / "profile").symlink_to(Path(spec.run_dir, "profile"))
            host_spec = replace(
                spec,
                supervisor=number,
                ranks=list(ranks),
                run_dir=str(folder),
                starts_hub=False,
                has_shared_board=False,
                board_url=self._route(number, url),
            )
            self._start(host_spec)

    def _start(self, spec: HostSpec) -> None:
        assert spec.supervisor is not None
        for rank in spec.ranks:
            self._state_machine.registry.entries[rank].supervisor = spec.supervisor
        self.launched.append(LocalHost(spec, os.environ | spec.environment))
        self._resources.record_owner(())

    @property
    def pids(self) -> list[int]:
        """Pids of all processes: supervisors, hub and ranks."""
        found = [*(host.pid for host in self.launched), self.hub_pid, *(rank.pid for rank in self.ranks)]
        return [pid for pid in found if pid is not None]


class CuttableProxy:
    """A TCP proxy that can be cut: it listens at `url` and forwards data in both directions."""

    def __init__(self, target: str) -> None:
        address, _, port = target.removeprefix("tcp:").rpartition(":")
        self._target = address, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._is_cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = self._reach()
            if far is None:
                near.close()
                continue
            self._sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_forward, args=(one, other), daemon=True).start()

    def _reach(self) -> socket.socket | None:
        """Connect to the target as soon as it listens: a rank that was accepted and then closed does not try again."""
        while not self._is_cut.wait(0.05):
            try:
                return socket.create_connection(self._target)
            except ConnectionRefusedError:
                # The host of the board is still starting.
                continue
        return None

    def cut(self) -> None:
        """Close every connection, and accept no new one."""
        self._is_cut.set()
        self._listener.close()
        for end in self._sockets:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                # The other end has closed it already.
                print(f"cut: {error}")
            end.close()


def _forward(source: socket.socket, destination: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            destination.sendall(data)
        destination.shutdown(socket.SHUT_WR)
    except OSError as error:
        # The connection was cut, or the other end has closed it.
        print(f"wire: {error}")
