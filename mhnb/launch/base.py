"""What starts supervisors, and what one that was started looks like to the cluster's reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from mhnb.core.asked.shape import HostShare
from mhnb.core.wire.hostspec import HostSpec
from mhnb.errors import LaunchError

__all__ = ["Allocation", "HoldingHost", "Host", "Launcher", "QueuedHost", "RehearsedHost", "ReportingHost"]


class Host(Protocol):
    """A process of this machine that is a supervisor, or carries one or several on other machines."""

    supervisors: tuple[int, ...]
    """Their numbers."""
    is_remote: bool
    """They run on other machines: their processes' numbers mean nothing here, and they may fall silent."""

    @property
    def pid(self) -> int:
        """Of the process here."""

    def has_exited(self) -> bool:
        """Whether it is gone."""

    def explain(self) -> str:
        """How it ended: the thing, what it said last, the next step."""

    def wait(self, pids: tuple[int, ...]) -> None:
        """Wait for its end, and end it by force if it does not; where it is of this machine, with the process groups of its ranks."""

    def release(self) -> None:
        """Let it live on after this process (`keep`)."""


@runtime_checkable
class QueuedHost(Protocol):
    """A host that may have to wait for its machines in a scheduler's queue."""

    @property
    def standing(self) -> str:
        """How it waits; empty where it does not, or no longer."""


@runtime_checkable
class RehearsedHost(Protocol):
    """A host whose machines are looked at before its supervisors begin."""

    refusal: LaunchError | None
    """Why they do not; None where all was well, or the look is not over."""

    @property
    def looked_in_s(self) -> float | None:
        """How long the look took; None where it is not over, or found something."""


class Allocation(Protocol):
    """Machines that a scheduler has granted, which may outlive one generation of a cluster."""

    name: str
    """The name of the job."""
    file: Path
    """Holds the number of the job."""
    wanted: object
    """The request. A different request needs another allocation."""

    def has_ended(self) -> bool:
        """Whether the job is over, or was refused."""

    def is_usable(self) -> bool:
        """Whether the scheduler reports that the job is running."""

    def explain(self) -> str:
        """Describe why the job ended."""

    def release(self) -> None:
        """Return the machines, and wait until the scheduler has them. A second call does nothing."""


@runtime_checkable
class HoldingHost(Protocol):
    """A host whose machines a scheduler has given."""

    def hand_over(self) -> Allocation | None:
        """Give the machines to the next generation: its end does not release them. None where it holds none."""


@runtime_checkable
class ReportingHost(Protocol):
    """A host that wants to know when its supervisors are there."""

    def note_up(self, supervisor: int) -> None:
        """A supervisor of some host has reported."""


class Launcher(Protocol):
    """Starts the supervisors of one kind of place."""

    def find_own_address(self) -> str:
        """Find the address by which the hosts reach this machine. Raises LaunchError where it cannot know."""

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostShare], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Start a supervisor for each spec, all at once; yield each process as soon as there is one.

        Args:
            specs: one for each share, with the key; to be handed over on standard input, never in argv or the environment.
            shares: the label, ranks and machine of each.
            environment: of this process.
            run_dir: the cluster's own directory here; what the processes say goes to `log` in it.

        Raises:
            LaunchError: one could not be started; what was yielded is the caller's to end.
        """
