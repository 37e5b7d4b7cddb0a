"""MPI launcher: one mpiexec starts all supervisors, here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from mhnb.core.cluster_spec import HostAssignment
from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.mpi import MpiOptions, explain_mpiexec, mpiexec_command, parse_implementation
from mhnb.core.launch.ssh import SshOptions
from mhnb.core.messages import HostSpec
from mhnb.launchers.base import Host, find_address_by_own_name, find_address_towards
from mhnb.launchers.remote_command import CommandSpec, TaskHosts, check_program, run_program, spec_input
from mhnb.system.private_files import open_private

_ALLOCATION_VARIABLES = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE", "COBALT_NODEFILE")
"""Variables that show a scheduler's allocation. An mpiexec without machine names uses the allocated machines."""


class MpiHosts(TaskHosts):
    """The supervisors of one mpiexec, and the file that they read.

    The file holds the key, so it is removed as soon as all have read it.

    Args:
        command_spec: the mpiexec.
        supervisors: their numbers.
        remote_options: options of the remote side.
        start_file: the file that each reads first.
    """

    def __init__(
        self, command_spec: CommandSpec, supervisors: Sequence[int], remote_options: SshOptions, start_file: Path
    ) -> None:
        self._start_file, self._unreported = start_file, set(supervisors)
        super().__init__(command_spec, supervisors, remote_options)

    def record_report(self, supervisor: int) -> None:
        """Record that a supervisor has reported, so it has read the file."""
        super().record_report(supervisor)
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
        self._has_allocation = any(environment.get(name) for name in _ALLOCATION_VARIABLES)

    def find_own_address(self) -> str:
        """Return this machine's address for the others; loopback if it is alone.

        Raises:
            LaunchError: no machine's name, or not this machine's own name, can be resolved here.
        """
        if self._machines:
            return find_address_towards(self._machines, lambda machine: machine.address)
        return find_address_by_own_name() if self._has_allocation else "127.0.0.1"

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostAssignment], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Start all supervisors by one command; mpiexec gives each process its number.

        Raises:
            LaunchError: mpiexec is missing, or is neither Open MPI nor MPICH.
        """
        del environment
        spec = structs.replace(specs[0], supervisor=None, ends_with_stdin=False)
        tasks = [share.supervisor for share in shares]
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
        # mpiexec forwards nothing: its standard input is for the watchdog only.
        command_spec = CommandSpec(
            command,
            b"",
            "mpiexec",
            run_dir / "log" / "mpiexec.log",
            explain_mpiexec,
            is_detachable=spec.is_detachable,
        )
        # Created private, so that other users can never read it.
        with open(file, "wb", opener=open_private) as start:
            start.write(spec_input(spec, self._remote_options))
        yield MpiHosts(command_spec, tasks, self._remote_options, file)
