"""All messages between the notebook, the ranks and the supervisors. `core/wire/codec.py` encodes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from mhnb.values import Frame, Outcome, Phase

__all__ = [
    "CellEnded",
    "CellRefused",
    "CloseConnections",
    "Heartbeat",
    "HostUp",
    "HubExited",
    "InterruptCell",
    "InterruptDelivered",
    "LaunchRow",
    "Message",
    "OutputEvent",
    "OutputProduced",
    "PROTOCOL_VERSION",
    "PhaseReached",
    "RankExited",
    "RankMessage",
    "RankReady",
    "RankReply",
    "RankRequest",
    "RankSpawned",
    "RankStatus",
    "RunCell",
    "SignalRank",
    "SkipCell",
    "StartFailed",
    "StartRanks",
    "StopHost",
    "SupervisorMessage",
]

PROTOCOL_VERSION = 16
"""Raise it with every change of this module and of `core/wire/codec.py`, because long-lived processes may meet newer ones."""

OutputEvent: TypeAlias = list[Any]
"""One output of a rank, in the order in which it was produced. The first item is the kind:

    ["stdout", text]  ["stderr", text]
    ["display", data, metadata, display_id or None]      a new display
    ["update", data, metadata, display_id]               replaces the displays of that id, also in older cells
    ["result", data, metadata]                           the value of the last expression
    ["clear", wait]                                      clear_output
    ["error", ename, evalue, traceback_lines, line, code, at_s, site]
                                                         site: the fields of `ErrorSite`, or empty
    ["omitted", stream_name, nbytes]                     text left out here; the log file has it
    ["noise", text]                                      internal log lines of C++ libraries (Gloo, absl)
"""

LaunchRow: TypeAlias = list[Any]
"""A run of equal multi-process launches: [fingerprint, name, participants, line, count].

participants is a sorted list of ranks; line is the 1-based line of the cell or None. count is at least 1, or 0 for a program
that ran without a collective and of which no output is still referenced.
"""


# -- to a rank


@dataclass(frozen=True, slots=True)
class RunCell:
    """Run a cell. The rank refuses it unless `generation` is the rank's own and `seq` is its next cell number."""

    kind: ClassVar[str] = "run_cell"
    generation: int
    seq: int
    source: str
    guard: str = "parity"
    ranks: list[int] | None = None
    """The ranks that run it; None for all."""


@dataclass(frozen=True, slots=True)
class SkipCell:
    """Count a cell that this rank does not run."""

    kind: ClassVar[str] = "skip_cell"
    generation: int
    seq: int


@dataclass(frozen=True, slots=True)
class RankRequest:
    """A request between cells: `handler` names a function of `rank/asks/verbs.py`. The payload is sent with it."""

    kind: ClassVar[str] = "ask"
    request_id: int
    handler: str
    arguments: dict[str, Any]
    payload: tuple[Frame, ...] = field(default=(), repr=False)


# -- to a supervisor


@dataclass(frozen=True, slots=True)
class SignalRank:
    """Send a signal to a rank's process group."""

    kind: ClassVar[str] = "signal_rank"
    rank: int
    signum: int


@dataclass(frozen=True, slots=True)
class InterruptCell:
    """Make the ranks of this host stop a cell before their next launch, and limit the signals that follow to that cell."""

    kind: ClassVar[str] = "interrupt_cell"
    seq: int


@dataclass(frozen=True, slots=True)
class CloseConnections:
    """Make the ranks of this host close their connections to other ranks, so that a collective in progress fails."""

    kind: ClassVar[str] = "close_connections"


@dataclass(frozen=True, slots=True)
class StopHost:
    """End every process of this host, then the supervisor."""

    kind: ClassVar[str] = "stop_host"


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start the ranks, because every host has reported. Only for supervisors whose spec sets `waits`."""

    kind: ClassVar[str] = "begin_ranks"
    coordinator_address: str
    board_url: str
    """The address at which ranks of several hosts agree on launches."""
    connection: str = field(repr=False)
    """The hub's connection file, with its key."""
    addresses: dict[str, str]
    """Each host's label, and the address at which the others reach it."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat. A supervisor replies with the same message and the state of its ranks."""

    kind: ClassVar[str] = "beat"
    supervisor: int
    memory_nbytes: dict[str, int] = field(default_factory=dict)
    """Resident memory of each rank, by its number as text."""
    outlives_notebook: bool = False
    """From the notebook: it has recorded where the ranks are, so ranks that are to outlive it do so from now on.

    From a supervisor: its ranks outlive the notebook.
    """
    halted_ranks: list[int] = field(default_factory=list)
    """Ranks whose process a signal or a debugger has halted."""
    is_hub_halted: bool = False
    """Whether the hub's process is halted, if this supervisor started it."""


# -- from a rank


@dataclass(frozen=True, slots=True)
class PhaseReached:
    """A rank reached the next phase of its start. `connected` carries pid, hostname and versions in `facts`."""

    kind: ClassVar[str] = "phase_reached"
    rank: int
    phase: Phase
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A rank failed to start; carries the exception's own text."""

    kind: ClassVar[str] = "start_failed"
    rank: int
    phase: Phase
    ename: str
    evalue: str
    traceback: str


@dataclass(frozen=True, slots=True)
class RankReady:
    """A rank is ready for cells. `facts`: engine_id, process_index, process_count, devices, guard, versions."""

    kind: ClassVar[str] = "rank_ready"
    rank: int
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OutputProduced:
    """Output of a cell that is still running, or output that came after the cell `seq` had ended."""

    kind: ClassVar[str] = "output_produced"
    rank: int
    seq: int
    events: list[OutputEvent]


@dataclass(frozen=True, slots=True)
class RankStatus:
    """Where a rank is in a long-running cell. A second thread sends it about every second, so also while the rank is stuck."""

    kind: ClassVar[str] = "rank_status"
    rank: int
    seq: int
    activity: str  # an `Activity` of `core/explain/stacks.py`
    what: str
    """The launch it waits in, or the call that blocks; may be empty."""
    line: int | None  # of the cell
    user_frame: str
    """The innermost frame in a user's file, such as `data.py:31 read_shard`; empty if it is in the cell."""
    unchanged_s: float
    """How long it has been on this line without a further launch."""
    counts: list[list[Any]]
    """[participants, launches made in this cell] for each set of ranks."""
    participants: list[int] | None = None
    """Participants of the launch in flight; None if there is none.

    All ranks while the rank is blocked in a call that may be a launch without a record.
    """
    launch_number: int | None = None
    """The number of the launch in flight among the launches of its participants, from 1."""
    memory_nbytes: int = 0
    """Memory that the process uses."""
    is_launched: bool = True
    """False: the rank only waits for agreement on the launch, or computes it after an interrupt; both end by themselves."""
    threads: list[list[Any]] = field(default_factory=list)
    """[name, activity, what, line, place] of each thread that the cell started, while its main thread waits."""


@dataclass(frozen=True, slots=True)
class InterruptDelivered:
    """The code of the running cell has received its interrupt. Whatever it does now is its own handling of the interrupt."""

    kind: ClassVar[str] = "interrupt_taken"
    rank: int
    seq: int
    is_delivered: bool = True
    """False: the interrupt had no effect after all, like one that arrives while a finalizer runs."""


@dataclass(frozen=True, slots=True)
class CellEnded:
    """The only reply of a rank to a cell: outcome, the output not sent before, and the launches."""

    kind: ClassVar[str] = "cell_ended"
    rank: int
    seq: int
    outcome: Outcome
    events: list[OutputEvent]
    launches: list[LaunchRow]
    """In the form of `core/wire/rowpack.py`, which makes many rows smaller."""
    abandoned: int
    """Launches that had not finished when the rank stopped waiting for them."""
    wall_s: float
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    host_arrays: list[list[Any]] = field(default_factory=list)
    """The arrays that the cell made from host data: rows of `core/guard/host_data.py`."""
    interrupted_before: int | None = None
    """The number of the launch before which the rank was interrupted, together with all participants."""
    ignored_refusals: list[list[Any]] = field(default_factory=list)
    """Refused launches whose error the cell's code caught: for each, the program's name and the cell's line or None."""
    running_launches: int = 0
    """Launches that all ranks agreed on and the rank did not wait for. They end by themselves, unless one failed."""
    failed_callbacks: int = 0
    """Launches that failed on this rank in a callback. Another rank may wait for the rest of them."""
    pending_launch: list[Any] = field(default_factory=list)
    """The launch that the rank waited for when it was interrupted, before others had reached it: its number and its line.

    Empty if there is none.
    """
    abandoned_launch: list[Any] = field(default_factory=list)
    """The first collective launch that the rank did not wait for: the program's name, and the cell's line or None.

    The number of the cell follows if that was an earlier one. Empty if there is none.
    """
    refused_inputs: list[list[Any]] = field(default_factory=list)
    """The arrays for which a launch was refused: rows of `core/guard/provenance.py`."""


@dataclass(frozen=True, slots=True)
class CellRefused:
    """A rank refused a cell because its generation or number is wrong."""

    kind: ClassVar[str] = "cell_refused"
    rank: int
    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class RankReply:
    """The reply to an `RankRequest`. If `ok` is false, `value` is {ename, evalue, traceback}."""

    kind: ClassVar[str] = "answer"
    rank: int
    request_id: int
    ok: bool
    value: Any
    payload: tuple[Frame, ...] = field(default=(), repr=False)


# -- from a supervisor


@dataclass(frozen=True, slots=True)
class HostUp:
    """A supervisor is running."""

    kind: ClassVar[str] = "host_up"
    supervisor: int
    pid: int
    hostname: str
    hub_pid: int | None
    address: str = "127.0.0.1"
    """The address at which the notebook, and so the other hosts, reach this machine."""
    free_ports: list[int] = field(default_factory=list)
    """TCP ports that are free on that machine at this moment."""
    connection: str = field(default="", repr=False)
    """The hub's connection file, if the hub runs on this machine."""
    log_dir: str = ""


@dataclass(frozen=True, slots=True)
class RankSpawned:
    """A rank's process exists."""

    kind: ClassVar[str] = "rank_spawned"
    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank's process has ended. Exactly one of exit_code and signum is not None."""

    kind: ClassVar[str] = "rank_exited"
    rank: int
    exit_code: int | None
    signum: int | None
    last_lines: list[str]
    """Its output since its latest cell began, without frames of C++ stacks; all of its output if it never became ready."""


@dataclass(frozen=True, slots=True)
class HubExited:
    """ipyparallel's controller has ended."""

    kind: ClassVar[str] = "hub_exited"
    exit_code: int | None
    signum: int | None
    last_lines: list[str] = field(default_factory=list)
    """The last lines of its output."""


RankMessage: TypeAlias = (
    PhaseReached
    | StartFailed
    | RankReady
    | OutputProduced
    | RankStatus
    | InterruptDelivered
    | CellEnded
    | CellRefused
    | RankReply
)
"""Messages from a rank to the notebook."""

SupervisorMessage: TypeAlias = Heartbeat | HostUp | RankSpawned | RankExited | HubExited
"""Messages from a supervisor to the notebook."""

Message: TypeAlias = (
    RunCell
    | SkipCell
    | RankRequest
    | SignalRank
    | InterruptCell
    | CloseConnections
    | StopHost
    | StartRanks
    | RankMessage
    | SupervisorMessage
)
