"""Slurm launcher: one srun starts all supervisors; restarts reuse its allocation.

The job belongs to a salloc, and the srun is a step in it. The allocation outlives the step: a restart passes it from one generation of
a cluster to the next. A detachable cluster may have no notebook that could release a job, so the job is the srun's own and ends with
it. Inside an existing job, the srun is a step of that job.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from mhnb.core.cluster_spec import HostAssignment
from mhnb.core.launch.slurm import (
    QUEUE_FORMAT,
    SlurmOptions,
    allocation_command,
    describe_queue,
    explain_srun,
    is_inside_job,
    srun_command,
    step_command,
)
from mhnb.core.launch.ssh import SshOptions
from mhnb.core.messages import HostSpec
from mhnb.errors import LaunchError
from mhnb.launchers.base import ADDRESS_FIX, Host
from mhnb.launchers.remote_command import (
    CommandHosts,
    CommandSpec,
    TaskHosts,
    check_program,
    run_program,
    spec_input,
)
from mhnb.transport.addresses import find_own_address

_STATUS_TIMEOUT_S = 10.0
_INSTALL = (
    "run the notebook's kernel on a login node of the Slurm cluster, which has it"
    "\n  Or: install Slurm's client commands on this machine"
)


class SallocAllocation:
    """The salloc that holds a job's machines.

    Args:
        command: requests the machines, and holds them until its standard input ends.
        name: name of the job.
        file: will contain the job's number.
        log: receives the output of salloc.
        requested: the requested options; a start with other options needs another allocation.
    """

    def __init__(self, command: Sequence[str], *, name: str, file: Path, log: Path, requested: object) -> None:
        self.name, self.file, self.requested = name, file, requested
        clean_up = ["scancel", "--quiet", f"--name={name}"]
        self._holder = CommandHosts(
            CommandSpec(command, b"", "Slurm's salloc", log, explain_srun, clean_up_command=clean_up), ()
        )

    def has_ended(self) -> bool:
        """Return whether the job has ended, or was refused."""
        return self._holder.has_exited()

    def is_usable(self) -> bool:
        """Return whether squeue reports RUNNING; salloc learns later of a revoked job."""
        if self.has_ended() or not self.file.exists():
            return False
        command = ["squeue", "--noheader", "--format=%T", f"--jobs={self.file.read_text().strip()}"]
        try:
            output = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_STATUS_TIMEOUT_S
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            # An allocation that Slurm does not confirm is not used.
            return False
        return output.split() == ["RUNNING"]

    def explain(self) -> str:
        """Describe why it ended."""
        return self._holder.explain()

    def release(self) -> None:
        """Release the machines, and wait until Slurm has them back; idempotent."""
        self._holder.wait(())


_parked: dict[str, SallocAllocation] = {}
"""Allocations parked for the next generation, by the cluster's name."""


def park_allocation(cluster: str, hosts: Sequence[Host]) -> None:
    """Park these hosts' allocation, if any, for the cluster's next start."""
    for host in hosts:
        if isinstance(host, SlurmHosts) and (allocation := host.detach_allocation()) is not None:
            _parked[cluster] = allocation


def claim_allocation(cluster: str, requested: object) -> SallocAllocation | None:
    """Return a cluster's parked allocation if it is usable, or None.

    An allocation that has ended, or was requested with other options, is released.
    """
    allocation = _parked.pop(cluster, None)
    if allocation is not None and (allocation.requested != requested or not allocation.is_usable()):
        allocation.release()
        return None
    return allocation


def release_parked_allocation(cluster: str) -> None:
    """Release an allocation that was parked and not claimed."""
    if (allocation := _parked.pop(cluster, None)) is not None:
        allocation.release()


# -- Slurm launcher


_POLL_INTERVAL_S = 1.0
_QUERY_TIMEOUT_S = 10.0


class SlurmHosts(TaskHosts):
    """The supervisors of one srun; a thread polls squeue while queued.

    Args:
        command_spec: the srun.
        supervisors: their numbers.
        remote_options: options of the remote side.
        name: name of the job.
        allocation: the allocation that contains the step; None if the job is the srun's own, or its user's.
    """

    def __init__(
        self,
        command_spec: CommandSpec,
        supervisors: Sequence[int],
        remote_options: SshOptions,
        name: str,
        allocation: SallocAllocation | None = None,
    ) -> None:
        super().__init__(command_spec, supervisors, remote_options)
        self._queue_status, self._name, self._allocation = "", name, allocation
        self._stopped, self._has_begun = threading.Event(), threading.Event()
        self._queue_thread = threading.Thread(target=self._poll_queue, name="mhnb-squeue", daemon=True)
        self._queue_thread.start()

    @property
    def queue_status(self) -> str:
        """Describe the job's wait for machines; empty once it has them."""
        return self._queue_status

    def _poll_queue(self) -> None:
        try:
            self._follow_queue()
        finally:
            # Also after a failure: a start that counts as queued would never time out.
            self._queue_status = ""

    def _follow_queue(self) -> None:
        has_appeared = False
        while not self._stopped.wait(0.0 if not has_appeared else _POLL_INTERVAL_S) and not self.has_exited():
            text = _query_queue()
            self._queue_status = describe_queue(text, self._name)
            if (has_appeared and not self._queue_status) or self._has_begun.is_set():
                # The job has its machines, and never returns to waiting. Inside a job of the user, its name never
                # appears.
                break
            has_appeared = has_appeared or f"|{self._name}" in text
            self._stopped.wait(0.0 if has_appeared else 0.2)

    def record_report(self, supervisor: int) -> None:
        """Record that a supervisor has reported, so the job has its machines."""
        super().record_report(supervisor)
        if supervisor in self.supervisors:
            self._has_begun.set()

    def has_exited(self) -> bool:
        """Return whether the step, or its job before it, has ended."""
        return super().has_exited() or (
            (pending := self._find_pending_allocation()) is not None and pending.has_ended()
        )

    def explain(self) -> str:
        """Describe the end of the step, or of its pending job."""
        pending = self._find_pending_allocation()
        return super().explain() if pending is None else pending.explain()

    def _find_pending_allocation(self) -> SallocAllocation | None:
        """Return the allocation that the step waits for, or None; thread-safe."""
        allocation = self._allocation
        return None if allocation is None or allocation.file.exists() else allocation

    def detach_allocation(self) -> SallocAllocation | None:
        """Detach and return the job for the next generation, or None."""
        allocation, self._allocation = self._allocation, None
        return allocation

    def wait(self, pids: tuple[int, ...]) -> None:
        """End the step and, unless detached, its job; wait for both."""
        self._stopped.set()
        super().wait(pids)
        allocation = self._allocation
        if allocation is not None:
            allocation.release()
        self._queue_thread.join(_QUERY_TIMEOUT_S)


def _query_queue() -> str:
    """Return squeue's lines on waiting and running jobs; empty without an answer."""
    words = ["squeue", "--noheader", "--sort=-p,i", "--states=PENDING,CONFIGURING,RUNNING", f"--format={QUEUE_FORMAT}"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=_QUERY_TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        # The line about the queue is optional; srun itself reports errors.
        return ""


class SlurmLauncher:
    """Starts the supervisors as the tasks of one srun.

    Args:
        options: options of Slurm.
        remote_options: options of the remote side.
    """

    def __init__(self, options: SlurmOptions, remote_options: SshOptions) -> None:
        self._options, self._remote_options = options, remote_options

    def find_own_address(self) -> str:
        """Return the address from which this machine reaches the nodes.

        Raises:
            LaunchError: Slurm does not answer, or a node's name cannot be resolved here.
        """
        check_program(self._options.srun, setting="srun", install=_INSTALL)
        where = [] if self._options.partition is None else [f"--partition={self._options.partition}"]
        words = ["sinfo", "--noheader", "--Node", "--format=%o", *where]
        done = run_program(words)
        addresses = done.stdout.split()
        if not addresses:
            reason = done.stderr.strip() or f"no node in partition {self._options.partition or '(default)'}"
            raise LaunchError(f"Slurm lists no machines: {explain_srun([reason])}")
        try:
            return find_own_address(addresses[0])
        except socket.gaierror as error:
            raise LaunchError(
                f"Slurm's node {addresses[0]}: its name cannot be resolved on this machine ({error.strerror}){ADDRESS_FIX}"
            ) from error

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostAssignment], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Start all supervisors by one command; Slurm gives each task its number.

        Raises:
            LaunchError: srun is missing.
        """
        # One spec for all: each task finds its number, and its ranks by it.
        spec = structs.replace(specs[0], supervisor=None)
        tasks, ranks_per_task = [share.supervisor for share in shares], len(shares[0].ranks)
        srun = check_program(self._options.srun, setting="srun", install=_INSTALL)
        options, remote = replace(self._options, srun=srun), self._remote_options
        name, inside = f"mhnb-{run_dir.name}", is_inside_job(environment)
        command_spec = CommandSpec(
            (),
            spec_input(spec, remote),
            "Slurm's srun",
            run_dir / "log" / "srun.log",
            explain_srun,
            is_detachable=spec.is_detachable,
        )
        if inside or spec.is_detachable:
            command = srun_command(options, len(tasks), ranks_per_task=ranks_per_task, name=name, is_step=inside)
            cancel_command = ["scancel", "--quiet", f"--name={name}"]
            command_spec = replace(command_spec, command=command, clean_up_command=cancel_command)
            yield SlurmHosts(command_spec, tasks, remote, name)
            return
        requested = (options, len(tasks), ranks_per_task)
        allocation = claim_allocation(run_dir.name.split(".")[0], requested) or _request_allocation(
            run_dir, name, requested
        )
        command = step_command(options, len(tasks), ranks_per_task=ranks_per_task, name=name, file=str(allocation.file))
        try:
            hosts = SlurmHosts(replace(command_spec, command=command), tasks, remote, allocation.name, allocation)
        except OSError:
            allocation.release()
            raise
        yield hosts


def _request_allocation(run_dir: Path, name: str, requested: tuple[SlurmOptions, int, int]) -> SallocAllocation:
    """Request machines, and hold them.

    Raises:
        LaunchError: salloc is missing in the folder of srun.
    """
    options, tasks, each = requested
    file = run_dir / "allocation"
    command = allocation_command(options, tasks, ranks_per_task=each, name=name, file=str(file))
    if shutil.which(command[0]) is None:
        raise LaunchError(
            f"salloc not found next to {options.srun}; mhnb needs it to keep the allocation across restarts\n"
            "  Fix: install all of Slurm's client commands there\n"
            "  Or: --set srun=/path/to/srun (with salloc in the same folder)"
        )
    return SallocAllocation(command, name=name, file=file, log=run_dir / "log" / "salloc.log", requested=requested)
