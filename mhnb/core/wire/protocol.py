"""Every message between the notebook, the ranks and the supervisors. How each is written is `core/wire/codec.py`'s."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from mhnb.values import Frame, Outcome, Phase

__all__ = [
    "Answer",
    "Ask",
    "Beat",
    "BeginRanks",
    "CellEnded",
    "CellRefused",
    "CloseConnections",
    "HostUp",
    "HubExited",
    "InterruptCell",
    "InterruptTaken",
    "LaunchRow",
    "Message",
    "OutputEvent",
    "OutputProduced",
    "PROTOCOL_VERSION",
    "PhaseReached",
    "RankExited",
    "RankMessage",
    "RankReady",
    "RankSpawned",
    "RankStatus",
    "RunCell",
    "SignalRank",
    "SkipCell",
    "StartFailed",
    "StopHost",
    "SupervisorMessage",
]

PROTOCOL_VERSION = 15
"""To be raised with every change of what follows, and of `core/wire/codec.py`: who lasts may meet who is newer."""

OutputEvent: TypeAlias = list[Any]
"""One thing a rank said, in the order it was said. The first item is the kind:

    ["stdout", text]  ["stderr", text]
    ["display", data, metadata, display_id or None]      a new display
    ["update", data, metadata, display_id]               replaces the displays of that id, also in older cells
    ["result", data, metadata]                           the value of the last expression
    ["clear", wait]                                      clear_output
    ["error", ename, evalue, traceback_lines, line, code, at_s, site]
                                                         site: the fields of `ErrorSite`, or nothing
    ["omitted", stream_name, nbytes]                     text left out here; the log file has it
    ["noise", text]                                      lines of C++ libraries about themselves (Gloo, absl)
"""

LaunchRow: TypeAlias = list[Any]
"""A run of equal multi-process launches: [fingerprint, name, participants, line, count].

participants is a sorted list of ranks; line is the 1-based line of the cell or None; count >= 1, or 0 of a program without
a collective that ran, and of whose outputs none is held.
"""


# -- to a rank


@dataclass(frozen=True, slots=True)
class RunCell:
    """Run a cell. Refused unless `generation` is the rank's own and `seq` its next."""

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
class Ask:
    """A question between cells: `verb` names a function of `rank/asks/verbs.py`. The payload goes with it."""

    kind: ClassVar[str] = "ask"
    ask_id: int
    verb: str
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
    """Ask the ranks of this host to stop a cell before their next launch, and let the signals that follow hit that cell only."""

    kind: ClassVar[str] = "interrupt_cell"
    seq: int


@dataclass(frozen=True, slots=True)
class CloseConnections:
    """Have the ranks of this host close their connections to other ranks: a collective that is under way fails then."""

    kind: ClassVar[str] = "close_connections"


@dataclass(frozen=True, slots=True)
class StopHost:
    """End every process of this host, then the supervisor."""

    kind: ClassVar[str] = "stop_host"


@dataclass(frozen=True, slots=True)
class BeginRanks:
    """Every host is there: bring up your ranks. Only for supervisors whose spec says `waits`."""

    kind: ClassVar[str] = "begin_ranks"
    coordinator_address: str
    board_url: str
    """Where ranks of several hosts agree on launches."""
    connection: str = field(repr=False)
    """The hub's connection file, with its key."""
    names: dict[str, str]
    """Each host's label, and the address that the others reach it by."""


@dataclass(frozen=True, slots=True)
class Beat:
    """I am here. A supervisor answers with the same, and with how its ranks are."""

    kind: ClassVar[str] = "beat"
    supervisor: int
    nbytes: dict[str, int] = field(default_factory=dict)
    """Resident memory of each rank, by its number as text."""
    kept: bool = False
    """From the notebook: it has noted where the ranks are; those that are to outlive it do so from now on. From a supervisor: it does."""
    halted: list[int] = field(default_factory=list)
    """Ranks whose process a signal or a debugger has halted."""
    hub_halted: bool = False
    """Whether the hub's process is halted, where this supervisor holds it."""


# -- from a rank


@dataclass(frozen=True, slots=True)
class PhaseReached:
    """A rank came one step further while starting. `connected` carries pid, hostname and versions in `facts`."""

    kind: ClassVar[str] = "phase_reached"
    rank: int
    phase: Phase
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A rank gave up while starting, with the exception's own words."""

    kind: ClassVar[str] = "start_failed"
    rank: int
    phase: Phase
    ename: str
    evalue: str
    traceback: str


@dataclass(frozen=True, slots=True)
class RankReady:
    """A rank can take cells. `facts`: engine_id, process_index, process_count, devices, guard, versions."""

    kind: ClassVar[str] = "rank_ready"
    rank: int
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OutputProduced:
    """Output of a cell that still runs, or that came after the cell `seq` had ended."""

    kind: ClassVar[str] = "output_produced"
    rank: int
    seq: int
    events: list[OutputEvent]


@dataclass(frozen=True, slots=True)
class RankStatus:
    """Where a rank is in a cell that lasts: sent about every second by a thread beside it, so also while it is stuck."""

    kind: ClassVar[str] = "rank_status"
    rank: int
    seq: int
    activity: str  # an `Activity` of `core/explain/stacks.py`
    what: str
    """The launch it waits in, or the call that blocks; may be empty."""
    line: int | None  # of the cell
    place: str
    """The innermost frame in a file of the user's, as `data.py:31 read_shard`; empty when that is the cell."""
    for_s: float
    """How long it has been on this line without a further launch."""
    counts: list[list[Any]]
    """[participants, launches made in this cell] of each set of ranks."""
    participants: list[int] | None = None
    """Of the launch in flight; None when there is none. All ranks while it is blocked in a call that may be a launch without a record."""
    number: int | None = None
    """Which one of its participants' launches the one in flight is, from 1."""
    memory_nbytes: int = 0
    """What the process holds in memory."""
    launched: bool = True
    """False: the rank only waits to agree on the launch, or computes it after an interrupt; it comes out of that by itself."""
    threads: list[list[Any]] = field(default_factory=list)
    """[name, activity, what, line, place] of the threads that the cell started, while its main thread waits."""


@dataclass(frozen=True, slots=True)
class InterruptTaken:
    """The code of the cell that runs has got its interrupt: what it does now is its own handling of it."""

    kind: ClassVar[str] = "interrupt_taken"
    rank: int
    seq: int
    taken: bool = True
    """False: it went nowhere after all, as one that comes while a finalizer runs."""


@dataclass(frozen=True, slots=True)
class CellEnded:
    """The one reply of a rank: outcome, the output not sent before, and what was launched."""

    kind: ClassVar[str] = "cell_ended"
    rank: int
    seq: int
    outcome: Outcome
    events: list[OutputEvent]
    launches: list[LaunchRow]
    """As `core/wire/rowpack.py` writes them: many take less room."""
    abandoned: int
    """Launches that had not finished when the rank stopped waiting for them."""
    wall_s: float
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    made: list[list[Any]] = field(default_factory=list)
    """What the cell made of host data: rows of `core/guard/host_data.py`."""
    stopped_before: int | None = None
    """Which of its launches it was that the rank was interrupted before, together with all who take part in it."""
    caught: list[list[Any]] = field(default_factory=list)
    """Launches that were refused, and the cell's code caught why: each the program's name, and the cell's line or None."""
    running: int = 0
    """Launches on which all ranks agreed, and which the rank did not wait for: they end by themselves, unless one failed."""
    failed: int = 0
    """Launches that failed on this rank in a callback: another may wait for the rest of them."""
    came_to: list[Any] = field(default_factory=list)
    """The launch that it waited before when it was interrupted, and others had not come to: its number, and the line. Empty for none."""
    left: list[Any] = field(default_factory=list)
    """The first launch that communicates and that it did not wait for: the program's name, and the cell's line or None. Empty for none."""
    taken: list[list[Any]] = field(default_factory=list)
    """The arrays of a launch that was refused for them: rows of `core/guard/provenance.py`."""


@dataclass(frozen=True, slots=True)
class CellRefused:
    """A rank did not take a cell: wrong generation or number."""

    kind: ClassVar[str] = "cell_refused"
    rank: int
    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an `Ask`. When `ok` is false, `value` is {ename, evalue, traceback}."""

    kind: ClassVar[str] = "answer"
    rank: int
    ask_id: int
    ok: bool
    value: Any
    payload: tuple[Frame, ...] = field(default=(), repr=False)


# -- from a supervisor


@dataclass(frozen=True, slots=True)
class HostUp:
    """A supervisor is there."""

    kind: ClassVar[str] = "host_up"
    supervisor: int
    pid: int
    hostname: str
    hub_pid: int | None
    address: str = "127.0.0.1"
    """The address of this machine that the notebook, and so the other hosts, reach it by."""
    free_ports: list[int] = field(default_factory=list)
    """TCP ports that are free there at this moment."""
    connection: str = field(default="", repr=False)
    """The hub's connection file, where the hub is here."""
    log_dir: str = ""


@dataclass(frozen=True, slots=True)
class RankSpawned:
    """A rank's process exists."""

    kind: ClassVar[str] = "rank_spawned"
    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank's process is gone. Exactly one of exit_code and signum is not None."""

    kind: ClassVar[str] = "rank_exited"
    rank: int
    exit_code: int | None
    signum: int | None
    last_lines: list[str]
    """What it said since its latest cell began, without frames of C++ stacks; of one that never became ready, all it said."""


@dataclass(frozen=True, slots=True)
class HubExited:
    """ipyparallel's controller is gone."""

    kind: ClassVar[str] = "hub_exited"
    exit_code: int | None
    signum: int | None
    last_lines: list[str] = field(default_factory=list)
    """What it said last."""


RankMessage: TypeAlias = (
    PhaseReached
    | StartFailed
    | RankReady
    | OutputProduced
    | RankStatus
    | InterruptTaken
    | CellEnded
    | CellRefused
    | Answer
)
"""What a rank sends to the notebook."""

SupervisorMessage: TypeAlias = Beat | HostUp | RankSpawned | RankExited | HubExited
"""What a supervisor sends to the notebook."""

Message: TypeAlias = (
    RunCell
    | SkipCell
    | Ask
    | SignalRank
    | InterruptCell
    | CloseConnections
    | StopHost
    | BeginRanks
    | RankMessage
    | SupervisorMessage
)
