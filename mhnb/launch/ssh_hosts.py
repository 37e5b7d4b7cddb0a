"""ssh launcher: one login per host starts its supervisor, all at once, with the spec on standard input."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mhnb.core.asked.shape import HostAssignment
from mhnb.core.reach.hosts import HostName
from mhnb.core.reach.ssh import SshOptions, choose_python, ssh_command
from mhnb.core.wire.protocol import HostSpec, format_hostspec
from mhnb.errors import LaunchError
from mhnb.launch.base import Host
from mhnb.launch.carried import run_program
from mhnb.launch.ssh import SshProcess
from mhnb.system.ports import find_own_address

__all__ = ["SshHost", "SshLauncher"]

_END_S = 3.0


class SshHost:
    """A supervisor on another machine, represented by its local ssh process."""

    def __init__(self, process: SshProcess, supervisor: int, label: str) -> None:
        self._process, self._label = process, label
        self.supervisors: tuple[int, ...] = (supervisor,)
        self.is_remote = True
        self._released = False

    @property
    def pid(self) -> int:
        """Return the id of the ssh process."""
        return self._process.pid

    def has_exited(self) -> bool:
        """Return whether supervisor, login or connection has ended."""
        # The order matters: during the check, another thread may release the host, which ends the login.
        return self._process.has_exited() and not self._released

    def explain(self) -> str:
        """Describe how it ended, with the last output."""
        return f"{self._label} is lost: {self._process.explain()}"

    def wait(self, pids: tuple[int, ...]) -> None:  # noqa: ARG002  # part of the protocol; these ids belong to another machine
        """Close its standard input, which ends everything on that machine, and wait for the end."""
        if not self._released:
            self._process.end(_END_S)

    def release(self) -> None:
        """Let it live on: ssh ends and the supervisor stays, as its spec requires."""
        self._released = True
        self._process.kill()


class SshLauncher:
    """Starts a supervisor on each machine.

    Args:
        machines: in the order of the hosts.
        options: how to log in, and options of the remote side.
    """

    def __init__(self, machines: Sequence[HostName], options: SshOptions) -> None:
        self._machines = tuple(machines)
        self._options = choose_python(options, sys.executable)

    def find_own_address(self) -> str:
        """Return the address from which this machine would reach the first host.

        Raises:
            LaunchError: the first host's name cannot be resolved here.
        """
        name = _resolve_alias(self._machines[0], self._options)
        try:
            return find_own_address(name)
        except socket.gaierror as error:
            raise LaunchError(
                f"host {self._machines[0]}: the name {name!r} cannot be resolved on this machine ({error.strerror}); "
                "say which of its addresses the hosts are to reach: --address 10.0.0.1"
            ) from error

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostAssignment], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Log in to all machines at once, without waiting for each other."""
        del environment
        for spec, share, machine in zip(specs, shares, self._machines, strict=True):
            # The interpreter reads its hash seed from the environment; it cannot be set later.
            seed = {"PYTHONHASHSEED": spec.environment["PYTHONHASHSEED"]}
            options = replace(self._options, environment={**seed, **self._options.environment})
            if options.cwd is not None:
                # The login has already changed to this folder; the notebook's own was not requested.
                spec = replace(spec, cwd="")  # noqa: PLW2901
            process = SshProcess(
                machine,
                options,
                ["-P", "-m", "mhnb.rank.host"],
                log=run_dir / "log" / f"{share.host}.ssh.log",
                stdin=format_hostspec(spec).encode(),
            )
            yield SshHost(process, share.supervisor, f"{share.host} ({machine})")


def _resolve_alias(machine: HostName, options: SshOptions) -> str:
    """Return the host name that the user's ssh config gives a name."""
    command = ssh_command(machine, options, "true")
    found = run_program([command[0], "-G", *command[1:]])
    names = [line.split(None, 1)[1] for line in found.stdout.splitlines() if line.startswith("hostname ")]
    return names[0] if names else machine.address
