"""MPI launcher: one mpiexec starts all supervisors, on this machine or on machines that it reaches."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from mhnb.core.cluster_spec import ClusterSpec, HostAssignment
from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.mpi import MpiOptions, explain_mpiexec, mpiexec_command, parse_implementation
from mhnb.core.launch.ssh import SshOptions
from mhnb.core.messages import HostSpec
from mhnb.errors import LaunchError
from mhnb.launchers.base import Host
from mhnb.launchers.probe_client import PRELUDE_CALLBACK, probe_input
from mhnb.launchers.probe_shared import CheckedHosts, PreflightCheck, PreflightStage, ProbeServer
from mhnb.launchers.remote_command import CommandSpec, check_program, run_program, spec_input
from mhnb.launchers.watchdog import KEEP_MARKER
from mhnb.system.private_files import open_private
from mhnb.transport.addresses import find_own_address

_ALLOCATION_VARIABLES = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE", "COBALT_NODEFILE")
"""Variables that show a scheduler's allocation. An mpiexec without machine names uses the allocated machines."""


class MpiHosts(CheckedHosts):
    """The supervisors of one mpiexec, and the file that they read. It holds the key, and is removed as soon as all have read it.

    Args:
        command_spec: the mpiexec.
        supervisors: their numbers.
        preflight: the preflight before them.
        start_file: the file that each reads first.
    """

    def __init__(
        self, command_spec: CommandSpec, supervisors: Sequence[int], preflight: PreflightStage, start_file: Path
    ) -> None:
        self._start_file, self._unreported = start_file, set(supervisors)
        super().__init__(command_spec, supervisors, preflight)

    def record_report(self, supervisor: int) -> None:
        """Record that a supervisor has reported, so it has read the file."""
        self._unreported.discard(supervisor)
        if not self._unreported:
            self._start_file.unlink(missing_ok=True)

    def wait(self, pids: tuple[int, ...]) -> None:
        """End the supervisors, and remove the file."""
        super().wait(pids)
        self._start_file.unlink(missing_ok=True)


class MpiLauncher:
    """Starts the supervisors as the processes of one mpiexec.

    Args:
        options: options of mpiexec.
        remote_options: options of the remote side.
        machines: in the order of the hosts; empty if mpiexec places the processes itself.
        environment: of this process; it shows whether a scheduler has allocated machines.
    """

    def __init__(
        self,
        options: MpiOptions,
        remote_options: SshOptions,
        machines: Sequence[HostName],
        environment: Mapping[str, str],
    ) -> None:
        self._options, self._remote_options, self._machines = options, remote_options, tuple(machines)
        self.preflight_check: PreflightCheck | None = None
        """Preflight of the machines before the supervisors start."""
        self._has_allocation = any(environment.get(name) for name in _ALLOCATION_VARIABLES)

    def find_own_address(self) -> str:
        """Return the address from which this machine reaches the others; loopback if all processes run here.

        Raises:
            LaunchError: the first machine's name cannot be resolved here.
        """
        if not self._machines and not self._has_allocation:
            return "127.0.0.1"
        name = self._machines[0].address if self._machines else socket.gethostname()
        try:
            address = find_own_address(name)
        except socket.gaierror as error:
            raise LaunchError(
                f"host {name}: the name cannot be resolved on this machine ({error.strerror}); "
                "say which of its addresses the hosts are to reach: --address 10.0.0.1"
            ) from error
        if not self._machines and address.startswith("127."):
            raise LaunchError(
                f"this machine's name {name!r} stands for {address}, which other machines cannot reach; "
                "say which of its addresses they are to reach: --address 10.0.0.1"
            )
        return address

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostAssignment], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Start all supervisors by one command; mpiexec gives each process its number.

        Raises:
            LaunchError: mpiexec is missing, or is neither Open MPI nor MPICH.
        """
        del environment
        spec = replace(specs[0], supervisor=None, ends_with_stdin=False)
        yield self._start_hosts([share.supervisor for share in shares], _parse_address(spec), run_dir, spec)

    def start_preflight(self, cluster_spec: ClusterSpec, address: str, folder: Path) -> MpiHosts:
        """Run only the preflight of the machines that mpiexec would use.

        Args:
            cluster_spec: the number of hosts.
            address: address of this machine, as the others reach it.
            folder: for the log, in its `log`, and for the file that the probes read, which their machines must see.

        Raises:
            LaunchError: mpiexec is missing, or is neither Open MPI nor MPICH.
        """
        return self._start_hosts(range(cluster_spec.hosts), address, folder, None)

    def _start_hosts(self, tasks: Sequence[int], address: str, run_dir: Path, spec: HostSpec | None) -> MpiHosts:
        program = check_program(self._options.mpiexec, setting="mpiexec", install="install Open MPI or MPICH")
        version = run_program([program, "--version"])
        file = run_dir / "mpi.start"
        command = mpiexec_command(
            replace(self._options, mpiexec=program),
            parse_implementation(version.stdout + version.stderr),
            len(tasks),
            file=str(file),
            machines=[str(machine) for machine in self._machines],
        )
        keep = spec is not None and spec.is_detachable
        command_spec = CommandSpec(
            command, b"", "mpiexec", run_dir / "log" / "mpiexec.log", explain_mpiexec, is_detachable=keep
        )
        with ExitStack() as cleanup:
            server = ProbeServer(address)
            cleanup.callback(server.close)
            parts = [
                probe_input(self._remote_options, PRELUDE_CALLBACK),
                json.dumps(server.connection_info).encode() + b"\n",
            ]
            parts += [] if spec is None else [spec_input(spec, self._remote_options)]
            # Created private, so that other users can never read it.
            with open(file, "wb", opener=open_private) as start:
                start.write(b"".join(parts))
            # mpiexec forwards nothing: the data for its standard input is for the watchdog only.
            preflight = PreflightStage(
                self.preflight_check, None if spec is None else KEEP_MARKER + b"\n", self._remote_options, server
            )
            hosts = MpiHosts(command_spec, tasks, preflight, file)
            cleanup.pop_all()
        return hosts


def _parse_address(spec: HostSpec) -> str:
    """Return the notebook's address from `kind:ADDRESS:PORT`."""
    return spec.link_url.partition(":")[2].rpartition(":")[0]
