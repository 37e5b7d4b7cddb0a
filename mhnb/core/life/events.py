"""What happens to a cluster (events, participles) and what is to be done about it (commands, imperatives).

Messages of `protocol` are events too; those here arise in the notebook's own process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from mhnb.core.output.results import CellResult
from mhnb.core.wire.protocol import BeginRanks, Message, RunCell, SkipCell
from mhnb.errors import MhnbError

if TYPE_CHECKING:
    # The journal records cells, and a cell holds its request.
    from mhnb.core.keep.journal import CellRecord

__all__ = [
    "Accepted",
    "AskInterrupt",
    "CellRequest",
    "CellSubmitted",
    "Command",
    "Event",
    "FailStart",
    "FinishCell",
    "FreeRanks",
    "HostExited",
    "HostsQueued",
    "InterruptRequested",
    "KeepRecord",
    "KillRanks",
    "RefuseCell",
    "ReportReady",
    "SendToHosts",
    "SendToRank",
    "ShowLate",
    "SignalRanks",
    "StopRequested",
    "TellUser",
    "Ticked",
]


@dataclass(frozen=True, slots=True)
class CellRequest:
    """One cell as the user asked for it."""

    source: str
    ranks: tuple[int, ...] | None = None
    """Sorted; None for all."""
    guard: str = "parity"
    timeout_s: float | None = None
    again: int | None = None
    """The number that a replayed cell had, and gets again; None for a new cell."""


# -- events


@dataclass(frozen=True, slots=True)
class CellSubmitted:
    """Somebody wants a cell run; the ticket names who waits for it."""

    ticket: int
    request: CellRequest


@dataclass(frozen=True, slots=True)
class InterruptRequested:
    """Ctrl-C, the stop button or `%mhjax interrupt`."""

    ticket: int | None = None
    """Whose cell; None for whichever runs."""


@dataclass(frozen=True, slots=True)
class HostsQueued:
    """A scheduler has not given the hosts yet. Told again and again; the time for a start begins when it has."""

    standing: str
    """Where they stand in its queue."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The user takes a split or tainted cluster as it is."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The cluster is being stopped by its user."""

    gone: str = ""
    """Why it is not there any more for this notebook, where its ranks live on."""


@dataclass(frozen=True, slots=True)
class HostExited:
    """A supervisor is gone, and its ranks with it."""

    supervisor: int
    cause: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time went on."""


Event: TypeAlias = (
    CellSubmitted | InterruptRequested | Accepted | StopRequested | HostExited | HostsQueued | Ticked | Message
)


# -- commands


@dataclass(frozen=True, slots=True)
class SendToRank:
    """Send a cell, or the word to skip it."""

    rank: int
    message: RunCell | SkipCell


@dataclass(frozen=True, slots=True)
class SendToHosts:
    """Send every supervisor the same."""

    message: BeginRanks


@dataclass(frozen=True, slots=True)
class SignalRanks:
    """Send a signal to the process groups of ranks."""

    ranks: tuple[int, ...]
    signum: int


@dataclass(frozen=True, slots=True)
class AskInterrupt:
    """Ask every rank to stop a cell before its next launch."""

    seq: int


@dataclass(frozen=True, slots=True)
class FreeRanks:
    """Close the connections of all ranks to each other, so that what is stuck in a collective fails."""


@dataclass(frozen=True, slots=True)
class KillRanks:
    """End these ranks now."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FinishCell:
    """The cell has ended; hand the result to who waits."""

    ticket: int
    result: CellResult
    record: CellRecord | None = field(default=None, compare=False)
    """What the journal keeps of it."""


@dataclass(frozen=True, slots=True)
class KeepRecord:
    """The journal is to have this, of a cell that nobody waits for."""

    record: CellRecord


@dataclass(frozen=True, slots=True)
class RefuseCell:
    """The cell is not run; nothing was sent."""

    ticket: int
    error: MhnbError = field(compare=False)


@dataclass(frozen=True, slots=True)
class ReportReady:
    """Every rank can take cells."""


@dataclass(frozen=True, slots=True)
class FailStart:
    """The start did not work out; end what was started."""

    error: MhnbError = field(compare=False)


@dataclass(frozen=True, slots=True)
class ShowLate:
    """Output came for a cell that had ended."""

    result: CellResult


@dataclass(frozen=True, slots=True)
class TellUser:
    """Something the user must know although no cell runs."""

    text: str


Command: TypeAlias = (
    SendToRank
    | SendToHosts
    | AskInterrupt
    | SignalRanks
    | FreeRanks
    | KillRanks
    | FinishCell
    | KeepRecord
    | RefuseCell
    | ReportReady
    | FailStart
    | ShowLate
    | TellUser
)
