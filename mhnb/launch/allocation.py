"""Slurm allocation that outlives its job step: a restart passes it from one generation of a cluster to the next."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from mhnb.core.reach.slurm import explain_srun
from mhnb.launch.base import AllocatedHost, Allocation, Host
from mhnb.launch.carried import CommandHosts, CommandSpec

__all__ = ["SallocAllocation", "claim_allocation", "park_allocation", "release_parked_allocation"]

_STATUS_TIMEOUT_S = 10.0


class SallocAllocation:
    """The salloc that holds a job's machines.

    Args:
        command: requests the machines, and holds them until its standard input ends.
        name: name of the job.
        file: will contain the job's number.
        log: receives the output of salloc.
        wanted: the requested options; a start with other options needs another allocation.
    """

    def __init__(self, command: Sequence[str], *, name: str, file: Path, log: Path, wanted: object) -> None:
        self.name, self.file, self.wanted = name, file, wanted
        clean_up = ["scancel", "--quiet", f"--name={name}"]
        self._held = CommandHosts(
            CommandSpec(command, b"", "Slurm's salloc", log, explain_srun, clean_up_command=clean_up), ()
        )

    def has_ended(self) -> bool:
        """Return whether the job has ended, or was refused."""
        return self._held.has_exited()

    def is_usable(self) -> bool:
        """Return whether Slurm reports the job as running: salloc may not know yet that its job was just revoked."""
        if self.has_ended() or not self.file.exists():
            return False
        words = ["squeue", "--noheader", "--format=%T", f"--jobs={self.file.read_text().strip()}"]
        try:
            said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_STATUS_TIMEOUT_S).stdout
        except (OSError, subprocess.TimeoutExpired):
            # An allocation that Slurm does not confirm is not used.
            return False
        return said.split() == ["RUNNING"]

    def explain(self) -> str:
        """Describe why it ended."""
        return self._held.explain()

    def release(self) -> None:
        """Release the machines, and wait until Slurm has taken them back. A second call does nothing."""
        self._held.wait(())


_parked: dict[str, Allocation] = {}
"""Allocations parked for the next generation, by the cluster's name."""


def park_allocation(cluster: str, hosts: Sequence[Host]) -> None:
    """Park the allocation of these hosts, if they have one, for the next start of that cluster."""
    for host in hosts:
        if isinstance(host, AllocatedHost) and (allocation := host.detach_allocation()) is not None:
            _parked[cluster] = allocation


def claim_allocation(cluster: str, requested: object) -> Allocation | None:
    """Return the parked allocation of a cluster; None if there is none, or it has ended, or `wanted` differs.

    An allocation that cannot be used is released.
    """
    allocation = _parked.pop(cluster, None)
    if allocation is not None and (allocation.wanted != requested or not allocation.is_usable()):
        allocation.release()
        return None
    return allocation


def release_parked_allocation(cluster: str) -> None:
    """Release an allocation that was parked and not claimed."""
    if (allocation := _parked.pop(cluster, None)) is not None:
        allocation.release()
