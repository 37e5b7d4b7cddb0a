"""All messages between the notebook, the ranks and the supervisors, and the limits of their texts. `core/codec.py` encodes them.

A supervisor reads the start parameters of one machine's ranks as one JSON line on standard input.
A text of a rank that is too long is shortened before it is sent, and states how much is missing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeAlias

from mhnb.errors import UnknownMessage, VersionMismatch
from mhnb.types import Frame, Outcome, Phase

PROTOCOL_VERSION = 17
"""Raise it with every change of this module and of `core/codec.py`, because long-lived processes may meet newer ones."""

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
    """A request between cells: `handler` names a function of `rank/requests/handlers.py`. The payload is sent with it."""

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
class CheckHost:
    """Check this host before its ranks start: `check` names a function of `system/host_checks.py`."""

    kind: ClassVar[str] = "check_host"
    request_id: int
    check: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start the ranks, because every host has reported. Only for supervisors whose spec sets `staged_start`."""

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
    activity: str  # an `Activity` of `core/hang_report.py`
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
    """In the form of `core/codec.py`, which makes many rows smaller."""
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
class HostChecked:
    """The answer to a `CheckHost`."""

    kind: ClassVar[str] = "host_checked"
    supervisor: int
    request_id: int
    value: Any


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

SupervisorMessage: TypeAlias = Heartbeat | HostUp | HostChecked | RankSpawned | RankExited | HubExited
"""Messages from a supervisor to the notebook."""

Message: TypeAlias = (
    RunCell
    | SkipCell
    | RankRequest
    | SignalRank
    | InterruptCell
    | CloseConnections
    | StopHost
    | CheckHost
    | StartRanks
    | RankMessage
    | SupervisorMessage
)


# -- start parameters of a supervisor


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The part of a cluster that one supervisor starts."""

    link_url: str
    key: str = field(repr=False)
    """Hex. It is passed on standard input only: never in argv, never in the environment."""
    supervisor: int | None
    """None for identical supervisors (Slurm, MPI): each reads its number, and so its ranks, from its launcher's variables."""
    generation: int
    process_count: int
    ranks: list[int]
    devices: int | None
    """Simulated CPU devices per rank; None for the devices that the platform has."""
    coordinator_address: str
    """Empty if `StartRanks` will supply it."""
    initialize: dict[str, Any]
    """The user's arguments of jax.distributed.initialize other than the coordinator, count and id."""
    environment: dict[str, str]
    """Set before JAX is imported."""
    cwd: str
    """The working directory of the ranks; empty for the directory that the supervisor was started in."""
    run_dir: str
    """Holds the logs, the IPython profile and the native output of the ranks."""
    ranks_per_host: int = 1
    """Rank r runs on host r // ranks_per_host, on every host of the cluster."""
    init: bool = True
    """False: the ranks leave jax.distributed.initialize() to a cell."""
    starts_hub: bool = True
    has_shared_board: bool = True
    """Whether this host has the shared board on which all ranks agree on launches. Only the host of rank 0 has it."""
    board_url: str = ""
    """Where ranks of other hosts reach the board, `tcp:ADDRESS:PORT`: the board's host listens there, the others connect.

    Empty if all ranks that agree are on the board's host.
    """
    is_detachable: bool = False
    """True: continue after the owner is gone."""
    ends_with_stdin: bool = True
    """Whether the end of standard input means that the owner is gone; if not, the process that started this one ends it."""
    fork: bool = True
    """Fork the ranks from the supervisor; otherwise start each as a fresh process."""
    staged_start: bool = False
    """Report first, answer each `CheckHost`, and wait for `StartRanks`, which needs the reports of all hosts."""
    address: str = ""
    """The address at which other hosts reach this one; empty if no host needs it."""
    host_timeout_s: float = 0.0
    """End everything here after so many seconds without a message from the notebook; 0 for never.

    A detachable supervisor ends after so long without a notebook and with nothing left to serve.
    """
    share_gpus: bool = False
    """Assign each rank its own share of the GPUs of this machine."""
    gpus: list[str] = field(default_factory=list)
    """UUIDs of the GPUs that the rank sees, as its supervisor found them."""
    connection: str = field(default="", repr=False)
    """The connection file of a hub that already runs; empty if this supervisor starts the hub or receives the file later."""
    engine_only: bool = False
    """The ranks serve ipyparallel's client, like any engine, and accept no cells over the control connection."""
    creates_cwd: bool = False
    """Create the working directory if it is missing, because the notebook will fill it."""
    protocol: int = PROTOCOL_VERSION

    @property
    def ended_path(self) -> str:
        """Return the path of the file that shows that the supervisor has ended all of its processes."""
        return f"{self.run_dir}/supervisor{self.supervisor}.ended"


def format_hostspec(spec: HostSpec) -> str:
    """Format the spec as one line.

    >>> spec = HostSpec("tcp:127.0.0.1:1", "00", 0, 1, 1, [0], 2, "127.0.0.1:2", {}, {}, ".", ".")
    >>> parse_hostspec(format_hostspec(spec)) == spec
    True
    """
    return json.dumps(asdict(spec)) + "\n"


def parse_hostspec(line: str) -> HostSpec:
    """Parse the spec.

    Raises:
        VersionMismatch: the notebook speaks another version of the protocol.
        UnknownMessage: the line is not a spec.

    >>> parse_hostspec('{"protocol": 0}')  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    mhnb.errors.VersionMismatch: the notebook speaks protocol 0
    """
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnknownMessage(f"no spec of a host: {line[:80]!r} ({str(error)[:80]})") from error
    if not isinstance(body, dict):
        raise UnknownMessage(f"no spec of a host: {line[:80]!r}")
    if body.get("protocol") != PROTOCOL_VERSION:
        raise VersionMismatch(
            f"the notebook speaks protocol {str(body.get('protocol'))[:20]}, this host {PROTOCOL_VERSION}; install the same mhnb on both"
        )
    try:
        return HostSpec(**body)
    except TypeError as error:
        raise UnknownMessage(f"no spec of a host: {str(error)[:120]}") from error


# -- limits for texts from ranks


MAX_NAME_CHARS = 1000
"""For the name of a class, a function, a program or a code location."""
MAX_TEXT_CHARS = 64 * 1024
"""For a message."""
MAX_LINES_CHARS = 256 * 1024
"""For all lines of a traceback together."""


def shorten_text(text: str, limit: int, full_text_file: str = "") -> str:
    """Keep the beginning and the end of a text longer than `limit`, and state how much is left out.

    Args:
        full_text_file: the file that has the whole text; empty if there is none.

    >>> shorten_text("abcdef", 4, "rank0.log")
    'ab[... 2 characters left out; rank0.log has them ...]ef'
    """
    if len(text) <= limit:
        return text
    has = f"; {full_text_file} has them" if full_text_file else ""
    return (
        f"{text[: limit // 2]}[... {len(text) - limit:,} characters left out{has} ...]{text[len(text) - limit // 2 :]}"
    )


def shorten_error(event: OutputEvent, full_text_file: str = "") -> OutputEvent:
    """Shorten every text of an error event; return the same event if none is too long.

    >>> len(shorten_error(["error", "E" * 10**6, "no", [], None, None, 0.0, []])[1]) < 2000
    True
    """
    kind, ename, evalue, lines, line, code, at_s, site = event
    if sum(map(len, lines)) > MAX_LINES_CHARS:
        each = max(MAX_NAME_CHARS, MAX_LINES_CHARS // min(len(lines), 16))
        lines = [shorten_text(text, each, full_text_file) for text in lines]
        lines = _keep_ends(lines)
    bounded = [
        kind,
        shorten_text(ename, MAX_NAME_CHARS, full_text_file),
        shorten_text(evalue, MAX_TEXT_CHARS, full_text_file),
        lines,
    ]
    bounded += [
        line,
        None if code is None else shorten_text(code, MAX_NAME_CHARS),
        at_s,
        _shorten_value(site, MAX_NAME_CHARS),
    ]
    return event if bounded == event else bounded


def _keep_ends(lines: list[str]) -> list[str]:
    """Leave out the middle lines if all lines together are too long."""
    ends: tuple[list[str], list[str]] = ([], [])
    remaining = MAX_LINES_CHARS
    for index in range(len(lines)):
        side = index % 2
        text = lines[index // 2] if side == 0 else lines[-1 - index // 2]
        if len(text) > remaining:
            left_out = len(lines) - len(ends[0]) - len(ends[1])
            return [*ends[0], f"[... {left_out:,} lines left out ...]", *reversed(ends[1])]
        remaining -= len(text)
        ends[side].append(text)
    return lines


def shorten_message(message: Message) -> Message:
    """Shorten the names and messages of a rank that are too long. Output has limits of its own, and data has none.

    >>> from mhnb.core.messages import CellRefused
    >>> len(shorten_message(CellRefused(0, 1, "x" * 10**6)).reason) < 70_000
    True
    """
    if isinstance(message, OutputProduced | RunCell) or (isinstance(message, RankReply) and message.ok):
        return message
    limit = MAX_NAME_CHARS if isinstance(message, CellEnded) else MAX_TEXT_CHARS
    changed = {}
    for part in fields(message):
        value = getattr(message, part.name)
        if part.name in ("events", "payload"):
            continue
        if (bounded := _shorten_value(value, MAX_TEXT_CHARS if part.name == "notes" else limit)) != value:
            changed[part.name] = bounded
    return replace(message, **changed) if changed else message


def _shorten_value(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return shorten_text(value, limit)
    if isinstance(value, list | tuple):
        return [_shorten_value(each, limit) for each in value]
    if isinstance(value, dict):
        return {_shorten_value(key, limit): _shorten_value(each, limit) for key, each in value.items()}
    return value
