"""ssh launcher: one login per host starts its supervisor, all at once.

Each login is a local ssh process, with a log and an explanation of its end. Standard input stays open while the remote program should
run: the program ends with the input, whether this process, the machine or the network ended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from mhnb.core.cluster_spec import HostAssignment
from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.ssh import SshOptions, build_ssh_error, choose_python, explain_ssh, remote_line, ssh_command
from mhnb.core.messages import HostSpec, format_hostspec
from mhnb.errors import LaunchError
from mhnb.launchers.base import Host, find_address_towards
from mhnb.launchers.child_process import ChildProcess
from mhnb.launchers.remote_command import run_program


class SshProcess(ChildProcess):
    """An interpreter on another machine, reached by one ssh.

    The constructor returns at once; `has_exited` and `failure` show whether the login succeeded.

    Args:
        host: the machine.
        options: how to log in, and the interpreter's folder and environment there.
        arguments: of the interpreter.
        log: receives its output. Appended to.
        stdin: its first input. Less than 60 kB, because it waits in a pipe until the login is done.

    Raises:
        LaunchError: this machine has no ssh.
    """

    def __init__(
        self, host: HostName, options: SshOptions, arguments: Sequence[str], *, log: Path, stdin: bytes = b""
    ) -> None:
        self.host, self._options = host, options
        self._was_killed = False
        try:
            super().__init__(ssh_command(host, options), log=log)
        except FileNotFoundError as error:
            raise LaunchError("ssh is not on this machine's PATH\n  Fix: install the OpenSSH client") from error
        self.write(remote_line(options, arguments).encode() + stdin)

    def failure(self) -> LaunchError | None:
        """Return its failure; None if it runs or ended on request."""
        code = self.code
        if code is None or code == 0 or self._was_killed:
            return None
        output = self.output()
        return build_ssh_error(explain_ssh(output, code, self.host, self._options), self.host, str(self.log))

    def explain(self) -> str:
        """Describe its state, with the last output."""
        if (error := self.failure()) is not None:
            lines = self.output().splitlines()[-8:]
            return str(error) + "".join(f"\n    {line}" for line in lines)
        return f"{self.host}: {'ended' if self.has_exited() else 'runs'}; log {self.log}"

    def kill(self) -> None:
        """Break the connection; the program is not killed but loses its input."""
        self._was_killed = not self.has_exited()
        super().kill()
        self.close_input()


# -- ssh launcher


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

    def start_failures(self) -> Mapping[int, LaunchError]:
        """Return why its supervisor did not start."""
        error = self._process.failure() if self.has_exited() else None
        return {} if error is None else dict.fromkeys(self.supervisors, error)

    def wait(self, pids: tuple[int, ...]) -> None:  # noqa: ARG002  # part of the protocol; these ids belong to another machine
        """Close its standard input, which ends the remote side, and wait."""
        if not self._released:
            self._process.end(_END_S)

    def release(self) -> None:
        """End ssh; the supervisor keeps running, as its spec requires."""
        self._released = True
        self._process.kill()


class SshLauncher:
    """Starts a supervisor on each machine.

    Args:
        machines: in the order of the hosts.
        options: how to log in, and options of the remote side.
    """

    def __init__(self, machines: Sequence[HostName], options: SshOptions) -> None:
        self.machines = tuple(machines)
        self.options = choose_python(options, sys.executable)

    def find_own_address(self) -> str:
        """Return the address from which this machine would reach the hosts.

        Raises:
            LaunchError: no name of a host can be resolved here.
        """
        return find_address_towards(self.machines, lambda machine: _resolve_alias(machine, self.options))

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostAssignment], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Log in to all machines at once, without waiting for each other."""
        del environment
        for spec, share, machine in zip(specs, shares, self.machines, strict=True):
            # The interpreter reads its hash seed from the environment; it cannot be set later.
            seed = {"PYTHONHASHSEED": spec.environment["PYTHONHASHSEED"]}
            options = replace(self.options, environment={**seed, **self.options.environment})
            if options.cwd is not None:
                # The login has already changed to this folder; the notebook's own was not requested.
                spec = structs.replace(spec, cwd="")  # noqa: PLW2901
            process = SshProcess(
                machine,
                options,
                ["-P", "-m", "mhnb.rank.supervisor"],
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
