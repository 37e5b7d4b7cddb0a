"""TPU VM and Kubernetes launcher: one client command per worker or pod."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from mhnb.core.cluster_spec import HostAssignment
from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.ssh import LOGGED_IN, SshOptions, build_ssh_error, explain_ssh
from mhnb.core.messages import HostSpec
from mhnb.errors import LaunchError
from mhnb.launchers.base import Host, find_address_by_own_name
from mhnb.launchers.remote_command import CommandHosts, CommandSpec, check_program, spec_input
from mhnb.launchers.watchdog import KEEP_MARKER

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
        return find_address_by_own_name()

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
                KEEP_MARKER + spec_input(spec, self._remote_options),
                f"{share.host} ({name})",
                run_dir / "log" / f"{share.host}.{name}.log",
                _format_last_lines,
                is_detachable=spec.is_detachable,
            )
            yield CloudHost(command_spec, share.supervisor, self._remote_options)


class CloudHost(CommandHosts):
    """A supervisor on one host, run by a client command.

    Args:
        command_spec: the command.
        supervisor: its number.
        remote_options: of the remote side, to explain failures.
    """

    def __init__(self, command_spec: CommandSpec, supervisor: int, remote_options: SshOptions) -> None:
        super().__init__(command_spec, [supervisor])
        self._remote_options = remote_options

    def start_failures(self) -> Mapping[int, LaunchError]:
        """Return why its supervisor did not start."""
        code = self.exit_code
        return dict.fromkeys(self.supervisors, self._failure(code)) if code else {}

    def _failure(self, code: int) -> LaunchError:
        label, log = self._command_spec.label, self._command_spec.log
        output = log.read_text(errors="replace")
        if LOGGED_IN in output:
            host = HostName(label)
            return build_ssh_error(explain_ssh(output, code, host, self._remote_options), host, str(log))
        lines = [line for line in output.splitlines() if line.strip()]
        # The last line gives the reason; the lines before it are earlier attempts, and a table has space for one line.
        *before, last = lines[-_SHOWN_LINES:] or ["it printed nothing"]
        return LaunchError("\n    ".join([f"{label} ended with exit code {code}: {last}", *before]))


def _format_last_lines(lines: Sequence[str]) -> str:
    return "\n    ".join(lines[-_SHOWN_LINES:]) or "it printed nothing"
