"""Protocols: launchers start supervisors; hosts represent them to the event loop.

Also the address of this machine for hosts that a user names.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from mhnb.core.cluster_spec import HostAssignment
from mhnb.core.launch.hosts import HostName
from mhnb.core.messages import HostSpec
from mhnb.errors import LaunchError
from mhnb.transport.addresses import find_own_address

_ADDRESS = "--address 10.0.0.1 (the address of this machine that the hosts can reach)"
ADDRESS_FIX = f"\n  Fix: {_ADDRESS}"
"""End of an error about the address of this machine. `mhnb.cluster.ipcluster_engines` replaces the flag by ipcluster's."""
_MAX_TRIED = 5


def find_address_towards(hosts: Sequence[HostName], resolve_alias: Callable[[HostName], str]) -> str:
    """Return this machine's address towards the first host that it knows.

    If only some names are misspelt, their own logins report them.

    Args:
        hosts: as the user named them; the first five are tried.
        resolve_alias: returns the name on the network.

    Raises:
        LaunchError: this machine can resolve none of the tried names.
    """
    unknown, reason = [], ""
    for host in hosts[:_MAX_TRIED]:
        name = resolve_alias(host)
        try:
            return find_own_address(name)
        except (socket.gaierror, UnicodeError) as error:
            # A name that cannot be encoded for DNS is a UnicodeError.
            reason = str(getattr(error, "strerror", "") or error)
            unknown.append(str(host) if name == host.address else f"{host} ({name})")
    names = f"the name of host {unknown[0]}" if len(unknown) == 1 else f"the names of hosts {', '.join(unknown)}"
    raise LaunchError(
        f"this machine cannot resolve {names} ({reason})"
        f"\n  Fix: correct the name, and test it: ssh {replace(hosts[0], port=None)} true"
        f"\n  Or: if only a jump host knows the name: {_ADDRESS}"
    )


def find_address_by_own_name() -> str:
    """Return the address of this machine by its own name.

    Raises:
        LaunchError: the name resolves to loopback, which other machines cannot reach, or not at all.
    """
    name = socket.gethostname()
    try:
        address = find_own_address(name)
    except socket.gaierror:
        address = ""
    if not address or address.startswith("127."):
        raise LaunchError(
            f"hostname {name!r} resolves to {address or 'no address'}, so other machines cannot reach this one by it{ADDRESS_FIX}"
        )
    return address


class Host(Protocol):
    """A local process that is a supervisor, or runs remote supervisors."""

    supervisors: tuple[int, ...]
    """Numbers of its supervisors."""
    is_remote: bool
    """Whether they run on other machines, where process ids are not comparable and heartbeats may stop."""

    @property
    def pid(self) -> int:
        """Return the id of the process on this machine."""

    def has_exited(self) -> bool:
        """Return whether it has ended."""

    def explain(self) -> str:
        """Describe how it ended, with its last output and the next step."""

    def wait(self, pids: tuple[int, ...]) -> None:
        """Wait until it ends; otherwise kill it and its local ranks (`pids`)."""

    def release(self) -> None:
        """Let it outlive this process, for a start with `--keep`."""


@runtime_checkable
class QueuedHost(Protocol):
    """A host that may wait in a scheduler's queue."""

    @property
    def queue_status(self) -> str:
        """Describe its state in the queue; empty if it is not queued."""


@runtime_checkable
class FailureReporter(Protocol):
    """A host that reports why its supervisors did not start."""

    def start_failures(self) -> Mapping[int, LaunchError]:
        """Return the start failures known so far, by supervisor number."""


class Launcher(Protocol):
    """Starts the supervisors of one kind of profile."""

    def find_own_address(self) -> str:
        """Return the address for hosts to reach this machine, or raise LaunchError."""

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostAssignment], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Start all supervisors at once; yield each process once it exists.

        Args:
            specs: one for each share, with the key; to be passed on standard input, never in argv or the environment.
            shares: the label, ranks and machine of each.
            environment: of this process.
            run_dir: the cluster's run directory on this machine; output of the processes goes to its `log`.

        Raises:
            LaunchError: one could not be started; the caller must end those that were yielded.
        """
