"""Messages between notebook, ranks and supervisors, and limits of their texts.

`core/codec.py` encodes the messages.
A supervisor reads the start parameters of one machine's ranks as one JSON line on standard input.
A text of a rank that is too long is shortened before it is sent, and states how much is missing.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from mhnb.core.flight import FlightEvent
from mhnb.core.guard.launch_report import LaunchReport
from mhnb.core.output.events import ErrorRaised, OutputEvent
from mhnb.core.typed_json import decode_json, encode_json
from mhnb.errors import UnknownMessage, VersionMismatch
from mhnb.types import Outcome, Phase

PROTOCOL_VERSION = 29
"""Raise it with every change of what is sent, because long-lived processes may meet newer ones."""

Int64: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Numbers are stored in words of 8 bytes, and used as process numbers."""

Payload: TypeAlias = tuple[Any, ...]
"""Frames of raw bytes, `bytes` or `memoryview`, that follow the header of a message."""


class _Value(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value whose field types are checked when it is decoded."""

    _hidden: ClassVar[tuple[str, ...]] = ()
    """The fields that no text shows: secrets, and what is too large."""

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in self._hidden)
        return f"{type(self).__name__}({', '.join(shown)})"


class _Message(_Value, frozen=True, tag=True, tag_field="kind"):
    """A message; its class name is its `kind` on the wire."""


# -- to a rank


class Breakpoint(_Value, frozen=True):
    """A line of a cell before which ranks stop for the user."""

    line: Int64
    """As the notebook numbers it."""
    condition: str = ""
    """An expression, in which `rank` is the rank; empty to stop always."""


class DebugMode(_Value, frozen=True):
    """Whether and where a cell's code may stop for a debugger's user."""

    refusal: str = ""
    """Why it may not; empty if it may."""
    stop_ranks: list[Int64] | None = None
    """Ranks that stop before the first line; None for none."""
    breakpoints: list[Breakpoint] = field(default_factory=list)
    is_replay: bool = False
    """The cell is replayed, and the user has seen its breakpoints before: none of them stops it."""


class RunCell(_Message, frozen=True):
    """Run a cell.

    The rank refuses it unless `generation` is its own and `seq` is its next cell number.
    """

    generation: Int64
    seq: Int64
    source: str
    guard: str = "parity"
    ranks: list[Int64] | None = None
    """The ranks that run it; None for all."""
    execution_count: Int64 | None = None
    """The number that the notebook shows beside the cell; None if it shows none."""
    first_line: Int64 = 1
    """The number that the notebook gives the first line of the source."""
    kernel: str = ""
    """Identifies the notebook's kernel: the number that it shows beside a cell is known to its own user only."""
    debug: DebugMode | None = None
    """None if nothing can be typed where the cell was sent from."""
    is_traced: bool = False
    """Whether the rank profiles the cell."""


class DebugInput(_Message, frozen=True):
    """A user's line for a rank that waits at its debugger prompt."""

    seq: Int64
    """The cell that the rank has stopped in."""
    number: Int64
    """The number of the prompt that it answers. A rank that has left it since, for an interrupt, drops the line."""
    line: str | None
    """Without a line end; None for the end of all input."""


class SkipCell(_Message, frozen=True):
    """Count cells that this rank does not run."""

    generation: Int64
    seq: Int64
    """The first of them."""
    count: Int64 = 1
    """More than 1 only for numbers that no rank runs."""


class RankRequest(_Message, frozen=True):
    """A request between cells: `handler` names a function of `rank/requests/handlers.py`."""

    _hidden = ("payload",)
    request_id: Int64
    handler: str
    arguments: dict[str, Any]
    payload: Payload = ()
    kernel: str = ""
    """Identifies the notebook's kernel, as in `RunCell`: the reply may name cells."""


# -- to a supervisor


class SignalRank(_Message, frozen=True):
    """Send a signal to a rank's process group."""

    rank: Int64
    signum: Int64


class InterruptCell(_Message, frozen=True):
    """Make this host's ranks stop a cell before their next launch.

    It also limits the signals that follow to that cell.
    """

    seq: Int64


class CloseConnections(_Message, frozen=True):
    """Make this host's ranks disconnect from others, so that running collectives fail."""


class ReportSoon(_Message, frozen=True):
    """Make this host's ranks report soon where they are."""


class StopHost(_Message, frozen=True):
    """End every process of this host, then the supervisor."""


class CheckHost(_Message, frozen=True):
    """Answer a question about this host.

    Before its ranks start, `check` names a check of `system/host_checks.py`.
    At any time it can be `flight`, for the file of a rank's flight recorder (`rank/flight.py`).
    """

    request_id: Int64
    check: str
    arguments: dict[str, Any]


class StartRanks(_Message, frozen=True):
    """Start a `staged_start` supervisor's ranks, after every host was checked."""

    _hidden = ("connection",)
    coordinator_address: str
    board_url: str
    """The address at which ranks of several hosts agree on launches."""
    connection: str
    """The hub's connection file, with its key."""
    addresses: dict[str, str]
    """Each host's label, and the address at which the others reach it."""


class Heartbeat(_Message, frozen=True):
    """A heartbeat, which a supervisor returns with its ranks' state."""

    supervisor: Int64
    memory_nbytes: dict[str, Int64] = field(default_factory=dict)
    """Resident memory of each rank, by its number as text."""
    outlives_notebook: bool = False
    """From the notebook: it has recorded where the ranks are, so ranks that are to outlive it do so from now on.

    From a supervisor: its ranks outlive the notebook.
    """
    halted_ranks: list[Int64] = field(default_factory=list)
    """Ranks whose process a signal or a debugger has halted."""
    is_hub_halted: bool = False
    """Whether the hub's process is halted, if this supervisor started it."""
    last_events: dict[str, FlightEvent] = field(default_factory=dict)
    """What the flight recorder of each rank has last, by its number as text."""


# -- from a rank


class LaunchCount(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How many launches of these participants one rank made in a cell."""

    participants: tuple[Int64, ...]
    count: Int64


class ThreadStatus(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a thread is that the cell started."""

    name: str
    activity: str  # an `Activity` of `core/hang_report.py`
    what: str
    line: Int64 | None  # of the cell
    user_frame: str


class PhaseReached(_Message, frozen=True):
    """A rank reached the next phase of its start.

    `connected` carries pid, hostname and versions in `facts`.
    """

    rank: Int64
    phase: Phase
    facts: dict[str, Any]


class StartFailed(_Message, frozen=True):
    """A rank failed to start; carries the exception's own text."""

    rank: Int64
    phase: Phase
    ename: str
    evalue: str
    traceback: str


class RankReady(_Message, frozen=True):
    """A rank is ready for cells.

    `facts`: engine_id, process_index, process_count, devices, guard, versions.
    """

    rank: Int64
    facts: dict[str, Any]


class OutputProduced(_Message, frozen=True):
    """Output of a running cell, or late output of an ended one."""

    rank: Int64
    seq: Int64
    events: list[OutputEvent]


class RankStatus(_Message, frozen=True):
    """Where a rank is in a long-running cell.

    A second thread sends it about every second, so also while the rank is stuck.
    """

    rank: Int64
    seq: Int64
    activity: str  # an `Activity` of `core/hang_report.py`
    what: str
    """The launch it waits in, or the call that blocks; may be empty."""
    line: Int64 | None  # of the cell
    user_frame: str
    """The innermost frame in a user's file, such as `data.py:31 read_shard`; empty if it is in the cell."""
    unchanged_s: float
    """How long it has been on this line without a further launch."""
    counts: list[LaunchCount]
    """For each set of ranks."""
    participants: list[Int64] | None = None
    """Participants of the launch in flight, or None.

    All ranks while the rank is blocked in a call that may be a launch without a record.
    """
    launch_number: Int64 | None = None
    """The number of the launch in flight among the launches of its participants, from 1."""
    program: str = ""
    """The name of the program of that launch."""
    memory_nbytes: Int64 = 0
    """Memory that the process uses."""
    is_launched: bool = True
    """False: the rank only waits for agreement on the launch, or computes it after an interrupt; both end by themselves."""
    threads: list[ThreadStatus] = field(default_factory=list)
    """The threads that the cell started, while its main thread waits."""


class InterruptDelivered(_Message, frozen=True):
    """The cell's code received its interrupt, and handles it from now on."""

    rank: Int64
    seq: Int64
    is_delivered: bool = True
    """False: the interrupt had no effect after all, like one that arrives while a finalizer runs."""


class CallbackFailed(_Message, frozen=True):
    """A program's callback raised in the running cell; the program may hang."""

    rank: Int64
    seq: Int64
    error: ErrorRaised
    shared_program: str
    """The program's name; empty if no other rank has a part in it."""


class DebugPrompt(_Message, frozen=True):
    """A rank waits in the debugger for a line from the user."""

    rank: Int64
    seq: Int64
    number: Int64
    """The number of this prompt among all of the rank, from 1."""
    prompt: str
    """The debugger's own, such as `(Pdb) `."""
    text: str
    """What the debugger printed since it read the last line, also where the code has run on and stopped again."""
    line: Int64 | None = None
    """The line of the cell that it has stopped at; None if none leads there."""
    is_new: bool = False
    """Whether this is the first prompt of a stop; if not, the rank has answered a line."""


class DebugResumed(_Message, frozen=True):
    """A rank runs on after the debugger's prompt.

    It waits, has run for a second, or ends the cell.
    """

    rank: Int64
    seq: Int64
    text: str
    """What the debugger printed since it read the last line."""
    is_stepping: bool = False
    """Whether it stops again at a later line, if it gets that far."""


class CellEnded(_Message, frozen=True):
    """A rank's only reply to a cell, with output not sent before."""

    rank: Int64
    seq: Int64
    outcome: Outcome
    events: list[OutputEvent]
    wall_s: float
    launches: LaunchReport = LaunchReport()
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


class CellRefused(_Message, frozen=True):
    """A rank refused a cell because its generation or number is wrong."""

    rank: Int64
    seq: Int64
    reason: str


class RankReply(_Message, frozen=True):
    """The reply to a `RankRequest`; on failure, `value` is {ename, evalue, traceback}."""

    _hidden = ("payload",)
    rank: Int64
    request_id: Int64
    ok: bool
    value: Any
    payload: Payload = ()


# -- from a supervisor


class HostUp(_Message, frozen=True):
    """A supervisor is running."""

    _hidden = ("connection",)
    supervisor: Int64
    pid: Int64
    hostname: str
    hub_pid: Int64 | None
    address: str = "127.0.0.1"
    """The address at which the notebook, and so the other hosts, reach this machine."""
    free_ports: list[Int64] = field(default_factory=list)
    """TCP ports that are free on that machine at this moment."""
    connection: str = ""
    """The hub's connection file, if the hub runs on this machine."""
    log_dir: str = ""


class HostChecked(_Message, frozen=True):
    """The answer to a `CheckHost`."""

    supervisor: Int64
    request_id: Int64
    value: Any
    error: str = ""
    """Why there is no value; empty if there is one."""


class RankSpawned(_Message, frozen=True):
    """A rank's process exists."""

    rank: Int64
    pid: Int64


class RankExited(_Message, frozen=True):
    """A rank's process ended, with either an exit code or a signal."""

    rank: Int64
    exit_code: Int64 | None
    signum: Int64 | None
    last_lines: list[str]
    """Its output since its latest cell began, without frames of C++ stacks; all of its output if it never became ready."""
    last_event: FlightEvent | None = None
    """What its flight recorder has last; None if it has none."""


class HubExited(_Message, frozen=True):
    """ipyparallel's controller has ended."""

    exit_code: Int64 | None
    signum: Int64 | None
    last_lines: list[str] = field(default_factory=list)
    """The last lines of its output."""


RankMessage: TypeAlias = (
    PhaseReached
    | StartFailed
    | RankReady
    | OutputProduced
    | RankStatus
    | InterruptDelivered
    | CallbackFailed
    | DebugPrompt
    | DebugResumed
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
    | DebugInput
    | RankRequest
    | SignalRank
    | InterruptCell
    | CloseConnections
    | ReportSoon
    | StopHost
    | CheckHost
    | StartRanks
    | RankMessage
    | SupervisorMessage
)


# -- start parameters of a supervisor


class HostSpec(_Value, frozen=True, omit_defaults=False):
    """The part of a cluster that one supervisor starts."""

    _hidden = ("key", "connection")

    link_url: str
    key: str
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
    connection: str = ""
    """The connection file of a hub that already runs; empty if this supervisor starts the hub or receives the file later."""
    engine_only: bool = False
    """The ranks serve ipyparallel's client, like any engine, and accept no cells over the control connection."""
    creates_cwd: bool = False
    """Create the working directory if it is missing, because the notebook will fill it."""
    protocol: int = PROTOCOL_VERSION

    @property
    def ended_path(self) -> str:
        """Return the path of the file that shows all processes have ended."""
        return f"{self.run_dir}/supervisor{self.supervisor}.ended"


def format_hostspec(spec: HostSpec) -> str:
    """Format the spec as one line.

    >>> spec = HostSpec("tcp:127.0.0.1:1", "00", 0, 1, 1, [0], 2, "127.0.0.1:2", {}, {}, ".", ".")
    >>> parse_hostspec(format_hostspec(spec)) == spec
    True
    """
    # It is ASCII, because the locale of the reader is not known yet.
    return encode_json(spec) + "\n"


def parse_hostspec(line: str) -> HostSpec:
    """Parse the spec.

    Raises:
        VersionMismatch: the notebook speaks another version of the protocol.
        UnknownMessage: the line is not a spec.

    >>> parse_hostspec('{"protocol": 0}')  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    mhnb.errors.VersionMismatch: the notebook uses protocol 0
    """
    try:
        # Before the fields, which another version may have changed.
        protocol = decode_json(line, _AnyVersion).protocol
        if protocol == PROTOCOL_VERSION:
            return decode_json(line, HostSpec)
    except ValueError as error:
        raise UnknownMessage(f"not a valid host specification: {line[:80]!r} ({str(error)[:120]})") from error
    raise VersionMismatch(
        f"the notebook uses protocol {str(protocol)[:20]}, this host {PROTOCOL_VERSION}; install the same mhnb version on both"
    )


class _AnyVersion(Struct):
    """The part of a spec that every version of mhnb reads."""

    protocol: Any = None


# -- limits for texts from ranks


MAX_NAME_CHARS = 1000
"""For the name of a class, a function, a program or a code location."""
MAX_TEXT_CHARS = 64 * 1024
"""For a message."""
MAX_LINES_CHARS = 256 * 1024
"""For all lines of a traceback together."""


def shorten_text(text: str, limit: int, full_text_file: str = "") -> str:
    """Replace the middle of a text longer than `limit` by a note.

    Args:
        full_text_file: the file that has the whole text; may be empty.

    >>> shorten_text("abcdef", 4, "rank0.log")
    'ab[... 2 characters left out; rank0.log has them ...]ef'
    """
    if len(text) <= limit:
        return text
    has = f"; {full_text_file} has them" if full_text_file else ""
    return (
        f"{text[: limit // 2]}[... {len(text) - limit:,} characters left out{has} ...]{text[len(text) - limit // 2 :]}"
    )


def shorten_error(event: ErrorRaised, full_text_file: str = "") -> ErrorRaised:
    """Shorten an error event's long texts; without any, return the same event.

    >>> len(shorten_error(ErrorRaised("E" * 10**6, "no", [])).ename) < 2000
    True
    """
    lines = event.traceback
    if sum(map(len, lines)) > MAX_LINES_CHARS:
        each = max(MAX_NAME_CHARS, MAX_LINES_CHARS // min(len(lines), 16))
        lines = [shorten_text(text, each, full_text_file) for text in lines]
        lines = _keep_ends(lines)
    bounded = replace(
        event,
        ename=shorten_text(event.ename, MAX_NAME_CHARS, full_text_file),
        evalue=shorten_text(event.evalue, MAX_TEXT_CHARS, full_text_file),
        traceback=lines,
        code=None if event.code is None else shorten_text(event.code, MAX_NAME_CHARS),
        site=_shorten_value(event.site, MAX_NAME_CHARS),
        inner_code=shorten_text(event.inner_code, MAX_NAME_CHARS),
    )
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
    """Shorten long names and messages of a rank, not output or data.

    >>> from mhnb.core.messages import CellRefused
    >>> len(shorten_message(CellRefused(0, 1, "x" * 10**6)).reason) < 70_000
    True
    """
    has_limits = isinstance(message, OutputProduced | RunCell | DebugInput | DebugPrompt | DebugResumed)
    if has_limits or (isinstance(message, RankReply) and message.ok):
        return message
    limit = MAX_NAME_CHARS if isinstance(message, CellEnded) else MAX_TEXT_CHARS
    kept = ("events", "payload")
    changed = {
        name: _shorten_value(getattr(message, name), MAX_TEXT_CHARS if name == "notes" else limit)
        for name in message.__struct_fields__
        if name not in kept
    }
    return replace(message, **changed)


def _shorten_value(value: Any, limit: int) -> Any:
    """Shorten every text inside a value, also in containers."""
    if isinstance(value, str):
        return shorten_text(value, limit)
    if type(value) in (list, tuple):
        return type(value)(_shorten_value(each, limit) for each in value)
    if isinstance(value, dict):
        return {_shorten_value(key, limit): _shorten_value(each, limit) for key, each in value.items()}
    if isinstance(value, Struct):
        return replace(value, **{name: _shorten_value(getattr(value, name), limit) for name in value.__struct_fields__})
    return value
