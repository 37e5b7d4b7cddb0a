"""TPU VM and Kubernetes launcher: one client command per host starts a supervisor on each worker or pod, all at once."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from mhnb.core.cluster_spec import HostAssignment
from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.ssh import LOGGED_IN, SshOptions, build_ssh_error, choose_python, explain_ssh, remote_line
from mhnb.core.messages import HostSpec
from mhnb.errors import LaunchError
from mhnb.launchers.base import Host
from mhnb.launchers.probe_client import PRELUDE, ChildProcess, Probe, ProbeOpener
from mhnb.launchers.remote_command import CommandHosts, CommandSpec, check_program, spec_input
from mhnb.transport.addresses import find_own_address

_SHOWN_LINES = 8
"""Lines of a client's output that are shown."""


class CloudLauncher:
    """Starts a supervisor on each host by a client command.

    Args:
        program: the client, `gcloud` or `kubectl`.
        command: returns the command line for a host's number.
        remote_options: options of the remote side.
    """

    def __init__(self, program: str, command: Callable[[int], list[str]], remote_options: SshOptions) -> None:
        self._program, self._command, self._remote_options = program, command, remote_options

    def find_own_address(self) -> str:
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
                f"this machine's name {name!r} stands for {address or 'no address'}; "
                "say which of its addresses the hosts are to reach: --address 10.0.0.1"
            )
        return address

    def open_probe(self, share: HostAssignment) -> ProbeOpener:
        """Return an opener of a probe on one host, reached by the same command as its supervisor.

        Raises:
            LaunchError: the client is not installed.
        """
        name = Path(self._program).name
        check_program(self._program, setting=name, install=f"install {name}")
        command, label = self._command(share.supervisor), f"{share.host} ({name})"
        return lambda log: Probe(share.host, _ClientProcess(command, label, self._remote_options, log))

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostAssignment], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Start all supervisors at once, without waiting for each other.

        Raises:
            LaunchError: the client is not installed.
        """
        del environment
        name = Path(self._program).name
        check_program(self._program, setting=name, install=f"install {name}")
        for spec, share in zip(specs, shares, strict=True):
            command_spec = CommandSpec(
                self._command(share.supervisor),
                spec_input(spec, self._remote_options),
                f"{share.host} ({name})",
                run_dir / "log" / f"{share.host}.{name}.log",
                _format_last_lines,
                is_detachable=spec.is_detachable,
            )
            yield CommandHosts(command_spec, [share.supervisor])


class _ClientProcess(ChildProcess):
    """A client's command that runs one probe, in place of an ssh."""

    def __init__(self, command: Sequence[str], label: str, remote_options: SshOptions, log: Path) -> None:
        super().__init__(command, log=log)
        self._label, self._remote_options = label, remote_options
        self.write(remote_line(choose_python(remote_options, sys.executable), ["-c", PRELUDE]).encode())

    def failure(self) -> LaunchError | None:
        """Describe why it ended; None while it runs, or if it ended on request."""
        if not (code := self.code):
            return None
        output = self._log.read_text(errors="replace")
        if LOGGED_IN in output:
            host = HostName(self._label)
            return build_ssh_error(explain_ssh(output, code, host, self._remote_options), host)
        lines = [line for line in output.splitlines() if line.strip()]
        # The last line gives the reason; the lines before it are earlier attempts, and a table has space for one line.
        *before, last = lines[-_SHOWN_LINES:] or ["it said nothing"]
        return LaunchError("\n    ".join([f"{self._label} ended with exit code {code}: {last}", *before]))


def _format_last_lines(lines: Sequence[str]) -> str:
    return "\n    ".join(lines[-_SHOWN_LINES:]) or "it said nothing"
