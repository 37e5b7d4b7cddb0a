"""Slurm launcher: one srun starts all supervisors, and squeue reports the state of its job.

The job belongs to a salloc, which a restart keeps, and the srun is a step in it. A detachable cluster may have no notebook that could
release a job, so the job is the srun's own and ends with it. Inside an existing job, the srun is a step of that job.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mhnb.core.asked.shape import HostShare, Shape
from mhnb.core.reach.allocation import allocation_command, step_command
from mhnb.core.reach.slurm import QUEUE_FORMAT, SlurmOptions, describe_queue, explain_srun, is_inside_job, srun_command
from mhnb.core.reach.ssh import SshOptions
from mhnb.core.wire.hostspec import HostSpec
from mhnb.errors import LaunchError
from mhnb.launch.allocation import SallocAllocation, take_handed
from mhnb.launch.base import Allocation, Host
from mhnb.launch.carried import Carrier, ask_program, check_program, spec_input
from mhnb.launch.probing import PRELUDE_OF_MANY, probe_input
from mhnb.launch.rehearsal import Look, Rehearsal, RehearsedHosts
from mhnb.system.ports import find_own_address

__all__ = ["SlurmHosts", "SlurmLauncher"]

_ASK_EVERY_S = 1.0
_ASK_LIMIT_S = 10.0


class SlurmHosts(RehearsedHosts):
    """The supervisors of one srun. A thread polls squeue for the state of the job until it has its machines.

    Args:
        carrier: the srun.
        supervisors: their numbers.
        rehearsal: the preflight before them.
        name: name of the job.
        allocation: the allocation that contains the step; None if the job is the srun's own, or its user's.
    """

    def __init__(
        self,
        carrier: Carrier,
        supervisors: Sequence[int],
        rehearsal: Rehearsal,
        name: str,
        allocation: Allocation | None = None,
    ) -> None:
        super().__init__(carrier, supervisors, rehearsal)
        self._standing, self._name, self._allocation = "", name, allocation
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, name="mhnb-squeue", daemon=True)
        self._watch.start()

    @property
    def standing(self) -> str:
        """Describe how the job waits for its machines; empty once it has them."""
        return self._standing

    def _look(self) -> None:
        try:
            self._follow_queue()
        finally:
            # Also after a failure: a start that counts as queued would never time out.
            self._standing = ""

    def _follow_queue(self) -> None:
        seen = False
        while not self._over.wait(0.0 if not seen else _ASK_EVERY_S) and not self.has_exited():
            text = _squeue()
            self._standing = describe_queue(text, self._name)
            if (seen and not self._standing) or self.looked.is_set():
                # The job has its machines, and never returns to waiting. Inside a job of the user, its name never
                # appears.
                break
            seen = seen or f"|{self._name}" in text
            self._over.wait(0.0 if seen else 0.2)

    def has_exited(self) -> bool:
        """Return whether the step has ended, or its job before the step began; and with it every supervisor."""
        return super().has_exited() or ((awaited := self._find_awaited()) is not None and awaited.has_ended())

    def explain(self) -> str:
        """Describe the end from Slurm's output for the step, or for the job if the step has not begun."""
        awaited = self._find_awaited()
        return super().explain() if awaited is None else awaited.explain()

    def _find_awaited(self) -> Allocation | None:
        """Return the own job that the step still waits for. Several threads call it while another one hands the job over."""
        held = self._allocation
        return None if held is None or held.file.exists() else held

    def hand_over(self) -> Allocation | None:
        """Return the job for the next generation; None if it has none of its own."""
        allocation, self._allocation = self._allocation, None
        return allocation

    def wait(self, pids: tuple[int, ...]) -> None:
        """Release the step and, unless it was handed over, the job; wait until they have ended."""
        self._over.set()
        super().wait(pids)
        held = self._allocation
        if held is not None:
            held.release()
        self._watch.join(_ASK_LIMIT_S)


def _squeue() -> str:
    """Return squeue's lines on all jobs that wait or have just begun; empty if squeue does not answer."""
    words = ["squeue", "--noheader", "--sort=-p,i", "--states=PENDING,CONFIGURING,RUNNING", f"--format={QUEUE_FORMAT}"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=_ASK_LIMIT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        # The line about the queue is optional; srun itself reports errors.
        return ""


class SlurmLauncher:
    """Starts the supervisors as the tasks of one srun.

    Args:
        options: options of Slurm.
        far: options of the remote side.
    """

    def __init__(self, options: SlurmOptions, far: SshOptions) -> None:
        self._options, self._far = options, far
        self.look: Look | None = None
        """Preflight of the machines before the supervisors start."""

    def find_own_address(self) -> str:
        """Return the address from which this machine reaches the nodes.

        Raises:
            LaunchError: Slurm does not answer, or a node's name cannot be resolved here.
        """
        check_program(self._options.srun, setting="srun", install="install Slurm's client commands")
        where = [] if self._options.partition is None else [f"--partition={self._options.partition}"]
        words = ["sinfo", "--noheader", "--Node", "--format=%o", *where]
        done = ask_program(words)
        addresses = done.stdout.split()
        if not addresses:
            said = done.stderr.strip() or f"no node in partition {self._options.partition or '(default)'}"
            raise LaunchError(f"Slurm gives no machines: {explain_srun([said])}")
        try:
            return find_own_address(addresses[0])
        except socket.gaierror as error:
            raise LaunchError(
                f"Slurm's node {addresses[0]}: its name cannot be resolved on this machine ({error.strerror}); "
                "say which of its addresses the nodes are to reach: --address 10.0.0.1"
            ) from error

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostShare], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Start all supervisors by one command; Slurm gives each task its number.

        Raises:
            LaunchError: srun is missing.
        """
        # One spec for all: each task finds its number, and its ranks by it.
        spec = replace(specs[0], supervisor=None)
        yield self._open([share.supervisor for share in shares], len(shares[0].ranks), environment, run_dir, spec)

    def rehearse(self, shape: Shape, environment: Mapping[str, str], folder: Path) -> SlurmHosts:
        """Run only the preflight of the machines that Slurm would allocate.

        Raises:
            LaunchError: srun is missing.
        """
        return self._open(range(shape.hosts), shape.ranks_per_host, environment, folder, None)

    def _open(
        self, tasks: Sequence[int], each: int, environment: Mapping[str, str], run_dir: Path, spec: HostSpec | None
    ) -> SlurmHosts:
        srun = check_program(self._options.srun, setting="srun", install="install Slurm's client commands")
        options = replace(self._options, srun=srun)
        keep, name, inside = spec is not None and spec.keep, f"mhnb-{run_dir.name}", is_inside_job(environment)
        log = run_dir / "log" / "srun.log"
        carrier = Carrier((), probe_input(self._far, PRELUDE_OF_MANY), "Slurm's srun", log, explain_srun, keep=keep)
        rehearsal = Rehearsal(self.look, None if spec is None else spec_input(spec, self._far), self._far)
        if inside or keep or spec is None:
            command = srun_command(options, len(tasks), ranks_per_task=each, name=name, inside=inside)
            own = ["scancel", "--quiet", f"--name={name}"]
            return SlurmHosts(replace(carrier, command=command, clean_up=own), tasks, rehearsal, name)
        wanted = (options, len(tasks), each)
        held = take_handed(run_dir.name.split(".")[0], wanted) or _allocate(run_dir, name, wanted)
        command = step_command(options, len(tasks), ranks_per_task=each, name=name, file=str(held.file))
        try:
            return SlurmHosts(replace(carrier, command=command), tasks, rehearsal, held.name, held)
        except OSError:
            held.release()
            raise


def _allocate(run_dir: Path, name: str, wanted: tuple[SlurmOptions, int, int]) -> Allocation:
    """Request machines, and hold them.

    Raises:
        LaunchError: there is no salloc beside srun.
    """
    options, tasks, each = wanted
    file = run_dir / "allocation"
    command = allocation_command(options, tasks, ranks_per_task=each, name=name, file=str(file))
    if shutil.which(command[0]) is None:
        raise LaunchError(
            f"there is no salloc beside {options.srun}: it holds the machines while ranks come and go\n"
            "  install all of Slurm's client commands there, or name an srun that has one beside it: --set srun=/path/to/srun"
        )
    return SallocAllocation(command, name=name, file=file, log=run_dir / "log" / "salloc.log", wanted=wanted)
