"""An allocation of Slurm that outlives the step in it: handed from one generation of a cluster to the next."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from mhnb.core.reach.slurm import explain_srun
from mhnb.launch.base import Allocation, HoldingHost, Host
from mhnb.launch.carried import CarriedHosts, Carrier

__all__ = ["SallocAllocation", "drop_handed", "hand_over", "take_handed"]

_ASK_LIMIT_S = 10.0


class SallocAllocation:
    """The salloc that holds a job's machines.

    Args:
        command: asks for them, and holds them until its standard input ends.
        name: of the job.
        file: that will have its number.
        log: of what salloc says.
        wanted: what was asked for; another wish needs another allocation.
    """

    def __init__(self, command: Sequence[str], *, name: str, file: Path, log: Path, wanted: object) -> None:
        self.name, self.file, self.wanted = name, file, wanted
        clean_up = ["scancel", "--quiet", f"--name={name}"]
        self._held = CarriedHosts(Carrier(command, b"", "Slurm's salloc", log, explain_srun, clean_up=clean_up), ())

    def has_ended(self) -> bool:
        """Whether the job is over, or was refused."""
        return self._held.has_exited()

    def is_usable(self) -> bool:
        """Whether Slurm says that the job runs: of one that was taken away a moment ago salloc need not have heard."""
        if self.has_ended() or not self.file.exists():
            return False
        words = ["squeue", "--noheader", "--format=%T", f"--jobs={self.file.read_text().strip()}"]
        try:
            said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_ASK_LIMIT_S).stdout
        except (OSError, subprocess.TimeoutExpired):
            # What Slurm does not vouch for is not used.
            return False
        return said.split() == ["RUNNING"]

    def explain(self) -> str:
        """Say why."""
        return self._held.explain()

    def release(self) -> None:
        """Give the machines back, and wait until Slurm has them. Once more does nothing."""
        self._held.wait(())


_handed: dict[str, Allocation] = {}
"""Those that wait for the next generation, by the cluster's name."""


def hand_over(cluster: str, hosts: Sequence[Host]) -> None:
    """Have the end of these hosts leave their allocation to the next start of that cluster, where they have one."""
    for host in hosts:
        if isinstance(host, HoldingHost) and (allocation := host.hand_over()) is not None:
            _handed[cluster] = allocation


def take_handed(cluster: str, wanted: object) -> Allocation | None:
    """Take what was handed over; None where nothing was, where it has ended, or where another one is wanted, which is given back."""
    allocation = _handed.pop(cluster, None)
    if allocation is not None and (allocation.wanted != wanted or not allocation.is_usable()):
        allocation.release()
        return None
    return allocation


def drop_handed(cluster: str) -> None:
    """Give back what was handed over and not taken."""
    if (allocation := _handed.pop(cluster, None)) is not None:
        allocation.release()
