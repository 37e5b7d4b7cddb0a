"""Events that a cluster receives, and the commands that result.

Events are named by past participles, commands by imperatives. Messages of `core/messages.py` are events too; the events
here originate in the notebook's own process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from mhnb.core.cell_name import NO_PLACE, CellPlace, number_lines
from mhnb.core.debugging import DebugRequest, DebugUpdate
from mhnb.core.messages import DebugInput, HostUp, Message, ReportSoon, RunCell, SkipCell, StartRanks
from mhnb.core.output.results import CellResult
from mhnb.errors import LaunchError, MhnbError

if TYPE_CHECKING:
    from mhnb.core.journal import CellRecord


@dataclass(frozen=True, slots=True)
class CellRequest:
    """One cell as the user requested it."""

    source: str
    ranks: tuple[int, ...] | None = None
    """Sorted; None for all."""
    guard: str = "parity"
    timeout_s: float | None = None
    replayed_seq: int | None = None
    """The number that a replayed cell had, and keeps; None for a new cell."""
    place: CellPlace = NO_PLACE
    """Where the notebook shows it."""
    debug: DebugRequest | None = None
    """None if nothing can be typed where it is submitted."""
    is_traced: bool = False
    """Whether its ranks profile it."""

    @property
    def is_post_mortem(self) -> bool:
        """Whether it only inspects what an earlier cell left."""
        return self.debug is not None and self.debug.is_post_mortem

    @property
    def numbered_source(self) -> str:
        """The source, with empty lines above to match the notebook's line numbers."""
        return number_lines(self.source, self.place.first_line)


# -- events


@dataclass(frozen=True, slots=True)
class CellSubmitted:
    """A caller requests to run a cell; the ticket identifies the caller."""

    ticket: int
    request: CellRequest


@dataclass(frozen=True, slots=True)
class InterruptRequested:
    """Ctrl-C, the stop button or `%mhjax interrupt`."""

    ticket: int | None = None
    """Identifies the cell by its caller; None for the running cell."""


@dataclass(frozen=True, slots=True)
class RequestsInterrupted:
    """The user stops waiting for what ranks do between cells."""


@dataclass(frozen=True, slots=True)
class DebugLineTyped:
    """The user typed a line for a rank in the debugger."""

    ticket: int
    """Identifies the cell by its caller."""
    rank: int
    line: str | None
    """None for the end of all input."""


@dataclass(frozen=True, slots=True)
class HostsQueued:
    """The hosts are still in a scheduler's queue.

    Sent repeatedly; the start timeout begins at the last one.
    """

    queue_position: str
    """The hosts' position in its queue."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The user accepts a split or tainted cluster."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The user stops the cluster."""

    lost_reason: str = ""
    """Why this notebook has lost the cluster although its ranks are alive."""


@dataclass(frozen=True, slots=True)
class HostExited:
    """A supervisor has ended, and its ranks with it."""

    supervisor: int
    cause: str
    error: LaunchError | None = field(default=None, compare=False)
    """Why it did not start, if that concerns this host alone: the other hosts may still report."""


@dataclass(frozen=True, slots=True)
class PreflightEnded:
    """The hosts have been checked."""

    error: MhnbError | None = field(default=None, compare=False)
    """What prevents the start; None if nothing does."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time has passed."""


Event: TypeAlias = (
    CellSubmitted
    | InterruptRequested
    | RequestsInterrupted
    | DebugLineTyped
    | Accepted
    | StopRequested
    | HostExited
    | HostsQueued
    | PreflightEnded
    | TimePassed
    | Message
)


# -- commands


@dataclass(frozen=True, slots=True)
class SendToRank:
    """Send a rank a cell, a skip, or a debugger line."""

    rank: int
    message: RunCell | SkipCell | DebugInput


@dataclass(frozen=True, slots=True)
class SendToHosts:
    """Send the same message to every supervisor."""

    message: StartRanks | ReportSoon


@dataclass(frozen=True, slots=True)
class RunPreflight:
    """Check the hosts, because each has reported or failed."""

    hosts: tuple[int, ...]
    """The supervisors that have ranks, in rank order."""
    reports: Mapping[int, HostUp]
    failures: Mapping[int, LaunchError]
    """Why supervisors have not reported."""
    coordinator: str
    """`address:port` of JAX's coordinator; empty if its host has failed."""
    connection: str = field(repr=False)
    """The hub's connection file."""


@dataclass(frozen=True, slots=True)
class SignalRanks:
    """Send a signal to the process groups of ranks."""

    ranks: tuple[int, ...]
    signum: int


@dataclass(frozen=True, slots=True)
class StopBeforeLaunch:
    """Ask every rank to stop a cell before its next launch."""

    seq: int


@dataclass(frozen=True, slots=True)
class DisconnectRanks:
    """Close all connections between ranks, so that stuck collectives fail."""


@dataclass(frozen=True, slots=True)
class KillRanks:
    """Kill these ranks now."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FinishCell:
    """The cell has ended; hand the result to its caller."""

    ticket: int
    result: CellResult
    record: CellRecord | None = field(default=None, compare=False)
    """Its record for the journal."""


@dataclass(frozen=True, slots=True)
class ShowDebugger:
    """Show the cell's caller the ranks' debugger state and output."""

    ticket: int
    update: DebugUpdate


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write the journal record of a cell that has no waiting caller."""

    record: CellRecord


@dataclass(frozen=True, slots=True)
class RefuseCell:
    """The cell is not run; nothing was sent."""

    ticket: int
    error: MhnbError = field(compare=False)


@dataclass(frozen=True, slots=True)
class ReportReady:
    """Every rank can run cells."""


@dataclass(frozen=True, slots=True)
class FailStart:
    """The start failed; end what was started."""

    error: MhnbError = field(compare=False)


@dataclass(frozen=True, slots=True)
class ShowLateOutput:
    """Output arrived for a cell that had ended."""

    result: CellResult


@dataclass(frozen=True, slots=True)
class NotifyUser:
    """Notify the user of something while no cell runs."""

    text: str


Command: TypeAlias = (
    SendToRank
    | SendToHosts
    | RunPreflight
    | StopBeforeLaunch
    | SignalRanks
    | DisconnectRanks
    | KillRanks
    | FinishCell
    | ShowDebugger
    | WriteRecord
    | RefuseCell
    | ReportReady
    | FailStart
    | ShowLateOutput
    | NotifyUser
)
