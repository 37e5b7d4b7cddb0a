"""Protocols: launchers start supervisors; hosts represent them to the event loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from mhnb.core.cluster_spec import HostAssignment
from mhnb.core.messages import HostSpec
from mhnb.errors import LaunchError

ADDRESS_FIX = "\n  Fix: --address 10.0.0.1 (the address of this machine that the hosts can reach)"
"""End of an error about the address of this machine. `mhnb.cluster.ipcluster_engines` replaces the flag by ipcluster's."""


class Host(Protocol):
    """A local process that is a supervisor, or runs remote supervisors."""

    supervisors: tuple[int, ...]
    """Numbers of its supervisors."""
    is_remote: bool
    """Whether they run on other machines, where process ids are not comparable and heartbeats may stop."""

    @property
    def pid(self) -> int:
        """Return the id of the process on this machine."""

    def has_exited(self) -> bool:
        """Return whether it has ended."""

    def explain(self) -> str:
        """Describe how it ended, with its last output and the next step."""

    def wait(self, pids: tuple[int, ...]) -> None:
        """Wait until it ends; otherwise kill it and its local ranks (`pids`)."""

    def release(self) -> None:
        """Let it outlive this process, for a start with `--keep`."""


@runtime_checkable
class QueuedHost(Protocol):
    """A host that may wait in a scheduler's queue."""

    @property
    def queue_status(self) -> str:
        """Describe its state in the queue; empty if it is not queued."""


@runtime_checkable
class FailureReporter(Protocol):
    """A host that reports why its supervisors did not start."""

    def start_failures(self) -> Mapping[int, LaunchError]:
        """Return the start failures known so far, by supervisor number."""


class Launcher(Protocol):
    """Starts the supervisors of one kind of profile."""

    def find_own_address(self) -> str:
        """Return the address for hosts to reach this machine, or raise LaunchError."""

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostAssignment], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Start all supervisors at once; yield each process once it exists.

        Args:
            specs: one for each share, with the key; to be passed on standard input, never in argv or the environment.
            shares: the label, ranks and machine of each.
            environment: of this process.
            run_dir: the cluster's run directory on this machine; output of the processes goes to its `log`.

        Raises:
            LaunchError: one could not be started; the caller must end those that were yielded.
        """
