"""Registry of the ranks: phases, processes, facts, and deaths with their explanation.

Where the lines of a dead process come from is handled elsewhere.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mhnb.core.flight import FlightEvent, NameCell, describe_event
from mhnb.core.launch.environment import find_shared_gpu
from mhnb.core.messages import (
    CellEnded,
    Heartbeat,
    HostChecked,
    HostUp,
    HubExited,
    Message,
    PhaseReached,
    RankExited,
    RankMessage,
    RankReady,
    RankSpawned,
    StartFailed,
    StartRanks,
)
from mhnb.core.ranks import describe_ranks
from mhnb.core.state.events import HostExited, RunPreflight
from mhnb.core.state.host_tracking import StartBarrier
from mhnb.core.state.interrupt import KILLED_AFTER_INTERRUPT
from mhnb.errors import CoordinatorTimeout, EnginesMissing, HostUnreachable, LaunchError, UnknownMessage
from mhnb.types import PHASES, Outcome, Phase

_QUOTED_CHARS = 120
"""Number of characters quoted from the start of a line, and from its end."""

_FRAMES = re.compile(
    r"\s*(?:PC: )?@ +0x[0-9a-f]+\b.*"
    r"|\*\*\* (?:Check failure stack trace|SIG\w+ |Aborted at|Begin stack|End stack).*\*\*\*"
)
"""Frames of absl and glog with the lines around them: `*** Check failure stack trace: ***`, `*** SIGABRT received at time=1 ***`."""
_BEGIN, _END = "*** Begin stack trace ***", "*** End stack trace ***"
_FATAL = re.compile(r"F\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ([\w./-]+:\d+\]) (.*)")
_LOG_LINE = re.compile(r"[DEFIW]\d{4} \d\d:\d\d:\d\d\.\d+ |Fatal Python error|Traceback \(|terminate called|\*\*\* ")
"""Matches the first line after XLA's flag help; the help has lines of every other kind."""
_STATUS = re.compile(r".*absl::Status: (?=\S)")


def drop_stack_frames(lines: Sequence[str]) -> list[str]:
    """Remove C++ stack frames, which hide the explanation above them.

    >>> drop_stack_frames(["why", "*** Check failure stack trace: ***", "    @     0x7ff985358ba3  PyObject_Vectorcall"])
    ['why']
    """
    kept: list[str] = []
    inside = False
    for line in lines:
        # Between these two markers TSL writes only names, which look like any other words.
        inside = (inside or line.strip() == _BEGIN) and line.strip() != _END
        if not inside and not _FRAMES.fullmatch(line):
            kept.append(line)
    return kept


def drop_flag_help(lines: Sequence[str]) -> list[str]:
    """Remove the flag help that XLA prints below an unparsable flag.

    >>> drop_flag_help(["E1 why", "usage: --xla_a=b", "Flags:", "    --xla_a=true  bool  What it does."])
    ['E1 why', 'usage: --xla_a=b']
    """
    kept: list[str] = []
    inside = False
    for before, line in zip(["", *lines], lines, strict=False):
        begins = line.strip() == "Flags:" and before.startswith("usage: --")
        inside = (inside or begins) and not _LOG_LINE.match(line)
        if not inside:
            kept.append(line)
    return kept


def pick_error_line(lines: Sequence[str]) -> str:
    """Return the line to quote: fatal C++ message, last line, or "".

    >>> pick_error_line(["F1122 23:44:07.924468   97 client.h:80] It ends. absl::Status: NOT_FOUND: no task", "RPC: /xla"])
    'client.h:80] … NOT_FOUND: no task'
    """
    for line in reversed(lines):
        if found := _FATAL.fullmatch(line):
            # JAX's text before the status is the same for every cause.
            return shorten_line(f"{found[1]} {_STATUS.sub('… ', found[2])}")
    return shorten_line(lines[-1]) if lines else ""


def shorten_line(line: str) -> str:
    """Remove the middle of a line that is too long to quote.

    >>> shorten_line("short"), len(shorten_line("long " * 9999))
    ('short', 241)
    """
    return line if len(line) <= 2 * _QUOTED_CHARS else f"{line[:_QUOTED_CHARS]}…{line[-_QUOTED_CHARS:]}"


# -- the registry


_TIMEOUT_HINT = "all processes were stopped; fix the cause, or raise the limit with --start-timeout"


@dataclass(slots=True)
class RankEntry:
    """What is known of one rank."""

    rank: int
    host: str
    log_path: str
    supervisor: int = 0
    """The supervisor whose process it is."""
    phase: Phase | None = None
    pid: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    nbytes: int | None = None
    """Its resident memory, as last reported by its supervisor; None if the supervisor is not asked."""
    is_halted: bool = False
    """Whether its process was halted at its supervisor's last report: by SIGSTOP, or in a debugger."""
    last_cell: tuple[int, Outcome] | None = None
    """The last cell that it ended, and how."""
    exit: RankExited | None = None
    last_event: FlightEvent | None = None
    """What its flight recorder had last, when that was read."""

    def describe_halted(self) -> str:
        """Describe the halted process, and its phase of the start."""
        where = f" after phase '{self.phase}'" if self.phase not in (None, "ready") else ""
        return f"rank {self.rank} ({self.host}, pid {self.pid}) is suspended{where} (SIGSTOP or a debugger)"


def describe_exit(exited: RankExited) -> str:
    """Describe how a process ended.

    >>> describe_exit(RankExited(rank=3, exit_code=None, signum=9, last_lines=[]))
    'was killed by SIGKILL (often by the memory limit)'
    """
    if exited.signum is None:
        return f"ended by itself with exit code {exited.exit_code}"
    try:
        name = signal.Signals(exited.signum).name
    except ValueError:
        name = f"signal {exited.signum}"
    hints = {
        "SIGKILL": " (often by the memory limit)",
        "SIGSEGV": " (a crash in native code)",
        "SIGABRT": " (an abort in native code)",
    }
    return f"was killed by {name}{hints.get(name, '')}"


def ended_the_same(exited: RankExited, first: RankExited) -> bool:
    """Check whether a rank ended like the first one, except by SIGKILL.

    SIGKILL proves nothing: mhnb sends it to the other ranks.

    >>> ended_the_same(RankExited(1, None, 11, []), RankExited(0, None, 11, []))
    True
    """
    return exited.signum != signal.SIGKILL and (exited.exit_code, exited.signum) == (first.exit_code, first.signum)


class RankRegistry:
    """The ranks of one generation.

    Args:
        hosts: the host label of each rank, in rank order.
        log_paths: the log file of each rank, in rank order.
        supervisors: the supervisor of each rank, in rank order; None: supervisor 0 has all.
        barrier: waits for the supervisors if there are several.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        log_paths: Sequence[str],
        supervisors: Sequence[int] | None = None,
        barrier: StartBarrier | None = None,
    ) -> None:
        self._barrier = barrier
        self.is_takeover, self._takeover_name = False, ""
        """Whether another notebook, which has ended, started the ranks."""
        self.is_detached = False
        """Whether this notebook has detached from ranks that are alive."""
        supervisor_of_rank = supervisors or [0] * len(hosts)
        rows = enumerate(zip(hosts, log_paths, supervisor_of_rank, strict=True))
        self.entries = [RankEntry(rank, host, log, supervisor) for rank, (host, log, supervisor) in rows]
        self.lost_supervisors: set[int] = set()
        self.supervisor_pids: dict[int, int] = {}
        self.hub_pid: int | None = None
        self._hub_supervisor, self.hub_is_halted = 0, False
        self._hostnames: dict[int, str] = {}
        self._refused_ranks: set[int] = set()
        """Ranks that mhnb ends because of a message that they sent."""
        self.deaths: list[RankExited] = []
        self.queue_position = ""
        """The hosts' position in a scheduler's queue; empty once a host has reported."""

    def mark_takeover(self, name: str) -> None:
        """Mark the ranks as started by an earlier notebook of cluster `name`.

        They report again, without a message to begin.
        """
        self.is_takeover, self._barrier, self._takeover_name = True, None, name

    def update(self, event: RankSpawned | PhaseReached | RankReady | RankExited) -> None:
        """Record one event of the start or the end of a rank."""
        entry = self.entries[event.rank]
        if isinstance(event, RankSpawned):
            entry.pid = event.pid
            self._advance(entry, "spawned")
        elif isinstance(event, PhaseReached):
            entry.facts |= event.facts
            self._advance(entry, event.phase)
        elif isinstance(event, RankReady):
            entry.facts |= event.facts
            self._advance(entry, "ready")
        else:
            entry.exit = event
            self.deaths.append(event)

    def check_sender(self, peer: str, message: Message) -> None:
        """Check that a peer may send this message.

        It may send messages of its own kind, about itself, and about existing ranks.

        Raises:
            UnknownMessage: it may not.
        """
        peer_kind, number = peer[:1], int(peer[1:])
        match message:
            case HostUp() | Heartbeat() | HostChecked():
                mine = peer_kind == "s" and message.supervisor == number
                is_allowed = mine and (not isinstance(message, Heartbeat) or self._is_beat(message))
            case RankSpawned() | RankExited():
                is_allowed = (
                    peer_kind == "s" and self._is_rank(message.rank) and self.entries[message.rank].supervisor == number
                )
                is_allowed = is_allowed and not (
                    isinstance(message, RankExited) and (message.exit_code is None) == (message.signum is None)
                )
            case HubExited():
                is_allowed = peer_kind == "s"
            case _ if isinstance(message, RankMessage):
                is_allowed = peer_kind == "r" and message.rank == number and self._is_rank(number)
            case _:
                is_allowed = False
        if not is_allowed:
            raise UnknownMessage(f"{peer} sent a message that it may not send: {str(message)[:200]}")

    def _is_rank(self, number: int) -> bool:
        return 0 <= number < len(self.entries)

    def _is_beat(self, beat: Heartbeat) -> bool:
        named = (*beat.memory_nbytes, *beat.last_events)
        known = all(len(rank) < 10 and rank.isdecimal() and self._is_rank(int(rank)) for rank in named)
        return known and all(map(self._is_rank, beat.halted_ranks))

    def name_peer(self, peer: str) -> str:
        """Return a peer's name for messages to the user."""
        number = int(peer[1:])
        if peer.startswith("s"):
            return f"the supervisor of {self.name_host(number)}"
        return f"rank {number}" + (f" ({self.entries[number].host})" if self._is_rank(number) else "")

    def mark_refused(self, rank: int) -> None:
        """Record that mhnb ends a rank because it sent an invalid message."""
        self._refused_ranks.add(rank)

    @property
    def is_waiting_for_hosts(self) -> bool:
        """Whether ranks must wait for hosts to report or be checked."""
        return self._barrier is not None and not self._barrier.is_open

    @property
    def missing_hosts(self) -> tuple[int, ...]:
        """Supervisors that have neither reported nor failed; empty without a start barrier."""
        return () if self._barrier is None else self._barrier.missing

    def record_missing_hosts(self, timeout_s: float) -> RunPreflight | None:
        """Record that missing supervisors will not report; return the preflight.

        None if the hub's is missing, without which the others cannot be checked.
        """
        missing = [k for k in self.missing_hosts if self.ranks_of(k)]
        if len(missing) < len(self.missing_hosts):
            return None
        preflight = None
        for supervisor in missing:
            host = next(entry.host for entry in self.entries if entry.supervisor == supervisor)
            text = f"{host}: did not report within {timeout_s:g} s"
            text += "\n  it may be overloaded, or its disk may hang: log in to check"
            error = HostUnreachable(text, host=host, kind="late", cause="no report")
            preflight = self.record_host_failure(supervisor, error)
        return preflight

    def start_ranks(self) -> StartRanks:
        """Return the message that starts the ranks of all hosts."""
        assert self._barrier is not None
        return self._barrier.open()

    def record_host_failure(self, supervisor: int, error: LaunchError) -> RunPreflight | None:
        """Record a supervisor's failure; after the last host, return the preflight."""
        assert self._barrier is not None
        return self._barrier.record(supervisor, error)

    def record_host(self, event: HostUp) -> RunPreflight | None:
        """Record a supervisor's report; after the last host, return the preflight."""
        if self.ranks_of(event.supervisor):
            # A host with ranks has reported; the hub's supervisor alone reports even while the hosts are queued.
            self.queue_position = ""
        self.supervisor_pids[event.supervisor] = event.pid
        self._hostnames[event.supervisor] = event.hostname
        if event.hub_pid is not None:
            self.hub_pid, self._hub_supervisor = event.hub_pid, event.supervisor
        if self._barrier is None:
            return None
        for entry in self.entries:
            if entry.supervisor == event.supervisor:
                entry.log_path = f"{event.hostname}:{event.log_dir}/rank{entry.rank}.log"
        return self._barrier.record(event.supervisor, event)

    def has_host(self, entry: RankEntry) -> bool:
        """Check whether the rank's supervisor has reported."""
        return entry.supervisor in self._hostnames

    def record_cell_end(self, ended: CellEnded) -> None:
        """Record how a rank ended a cell, and its new facts."""
        entry = self.entries[ended.rank]
        entry.facts |= ended.facts
        entry.last_cell = (ended.seq, ended.outcome)

    def record_outcomes(self, seq: int, outcomes: Mapping[int, Outcome]) -> None:
        """Record how a cell ended on each rank, including lost ranks."""
        for rank, outcome in outcomes.items():
            self.entries[rank].last_cell = (seq, outcome)

    def find_busy(self) -> tuple[int, ...]:
        """Return the silent taken-over ranks if each may be running a cell."""
        not_ready = [entry for entry in self.entries if entry.phase != "ready"] if self.is_takeover else []
        can_be_busy = all(
            entry.phase == "spawned" and not entry.is_halted and entry.exit is None for entry in not_ready
        )
        return tuple(entry.rank for entry in not_ready) if can_be_busy else ()

    def record_takeover_reports(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Record how the ranks ended the last cell of another notebook."""
        for entry, report in zip(self.entries, reports, strict=True):
            if report["last"] is not None:
                entry.last_cell = (report["last"]["seq"], report["last"]["outcome"])

    def ranks_with_abandoned(self) -> tuple[int, ...]:
        """Return ranks whose abandoned collective was unfinished at their last cell's end."""
        return tuple(entry.rank for entry in self.entries if entry.facts.get("left"))

    def record_heartbeat(self, beat: Heartbeat, *, is_repeated: bool = True) -> None:
        """Record a host's report on its ranks.

        Args:
            is_repeated: whether the host will be asked repeatedly; otherwise the ranks' memory would soon be outdated.
        """
        for rank, nbytes in beat.memory_nbytes.items() if is_repeated else ():
            self.entries[int(rank)].nbytes = nbytes
        self.record_last_events({int(rank): event for rank, event in beat.last_events.items()})
        if beat.supervisor == self._hub_supervisor:
            self.hub_is_halted = beat.is_hub_halted
        for held in self.ranks_of(beat.supervisor):
            self.entries[held].is_halted = held in beat.halted_ranks

    def record_last_events(self, events: Mapping[int, FlightEvent]) -> None:
        """Record what the flight recorders of ranks have last."""
        for rank, event in events.items():
            self.entries[rank].last_event = event

    @staticmethod
    def _advance(entry: RankEntry, phase: Phase) -> None:
        # A supervisor's "spawned" message may arrive after the rank's own first message.
        if entry.phase is None or PHASES.index(phase) > PHASES.index(entry.phase):
            entry.phase = phase

    @property
    def all_ready(self) -> bool:
        """Whether every rank can run cells."""
        return all(entry.phase == "ready" for entry in self.entries)

    @property
    def alive(self) -> tuple[int, ...]:
        """Ranks whose process is not known to have ended."""
        return tuple(e.rank for e in self.entries if e.exit is None and e.supervisor not in self.lost_supervisors)

    def name_host(self, supervisor: int) -> str:
        """Name a supervisor's host for the user: label and machine name."""
        entries = [entry for entry in self.entries if entry.supervisor == supervisor]
        if not entries:
            return "the hub's machine"
        own = entries[0].facts.get("hostname") or self._hostnames.get(supervisor, "")
        return f"{entries[0].host} ({own})" if own else entries[0].host

    def ranks_of(self, supervisor: int) -> tuple[int, ...]:
        """Return the ranks of a supervisor."""
        return tuple(entry.rank for entry in self.entries if entry.supervisor == supervisor)

    def pids_of(self, supervisor: int) -> tuple[int, ...]:
        """Return the known process groups of a supervisor: ranks and hub."""
        known = [entry.pid for entry in self.entries if entry.supervisor == supervisor]
        hub = [self.hub_pid] if supervisor == self._hub_supervisor else []
        return tuple(pid for pid in (*known, *hub) if pid is not None)

    def can_disconnect(self) -> bool:
        """Check whether every rank can close its connections that carry collectives."""
        return all(entry.facts.get("frees", False) for entry in self.entries)

    def describe_death(self, exited: RankExited, name_cell: NameCell, ending: str = "") -> str:
        """Describe which rank died, how, and its last output and event.

        `ending` says how, if that is known better than from its exit.
        """
        entry = self.entries[exited.rank]
        if exited.rank in self._refused_ranks:
            ending = "was stopped by mhnb because it sent an invalid message"
        line = pick_error_line(exited.last_lines)
        last = f' · last line: "{line}"' if line else ""
        if exited.last_event is not None and exited.last_event.kind not in ("cell", "end"):
            last += f" · last event: {describe_event(exited.last_event, name_cell)}"
        # If the rank died before this notebook attached, its pid may be unknown.
        who = entry.host if entry.pid is None else f"{entry.host}, pid {entry.pid}"
        when = ", before this notebook attached," if self.is_takeover and entry.phase != "ready" else ""
        return f"rank {entry.rank} ({who}){when} {ending or describe_exit(exited)}{last} · log {entry.log_path}"

    def format_death(self, first: RankExited, name_cell: NameCell, slow: Collection[int] = ()) -> str:
        """Describe the first death and what happened to the other ranks.

        The caller appends the way out.

        Args:
            first: the end of that rank.
            name_cell: names a cell by its number.
            slow: ranks that were killed because they did not end their cell.
        """
        ending = KILLED_AFTER_INTERRUPT if first.rank in slow else ""
        return f"{self.describe_death(first, name_cell, ending)}\n  {self.format_others(first, slow)}"

    def format_others(self, first: RankExited, slow: Collection[int] = ()) -> str:
        """Describe in sentences what happened to the other ranks after a death."""
        others = [entry for entry in self.entries if entry.rank != first.rank]
        same_end = [
            entry.rank for entry in others if entry.exit is not None and _ended_the_same(entry.exit, first, slow)
        ]
        stopped = [entry.rank for entry in others if entry.rank not in same_end]
        was = f"{describe_ranks(stopped)} {'was' if len(stopped) == 1 else 'were'} stopped with it. " if stopped else ""
        return (f"{describe_ranks(same_end)} ended in the same way. " if same_end else "") + was

    def describe_end(self, entry: RankEntry, ending: str = "") -> str:
        """Describe briefly whether a rank is alive, or how it ended.

        Args:
            ending: how it ended, if that is known better than from its exit.
        """
        if entry.exit is None:
            return "lost with its host" if entry.supervisor in self.lost_supervisors else "alive"
        if entry.exit.signum != signal.SIGKILL:
            return describe_exit(entry.exit)
        if self.lost_supervisors:
            return "stopped because a host was lost"
        first = self.deaths[0].rank
        return ending or (f"stopped with rank {first}" if entry.rank != first else describe_exit(entry.exit))

    def describe_service_loss(self, event: HubExited | HostExited) -> str:
        """Describe which host or hub was lost, and how."""
        if isinstance(event, HostExited):
            return event.cause
        exited = RankExited(-1, event.exit_code, event.signum, [])
        # A hub that was killed has not printed a reason.
        line = pick_error_line(event.last_lines) if event.signum is None else ""
        why = f" ({line})" if line else ""
        pid = "" if self.hub_pid is None else f", pid {self.hub_pid}"
        return f"the hub (ipyparallel's controller{pid}) {describe_exit(exited)}{why}"

    def start_error(self, cause: StartFailed | RankExited) -> LaunchError:
        """Build the error of a rank that failed while starting."""
        entry = self.entries[cause.rank]
        phase = cause.phase if isinstance(cause, StartFailed) else entry.phase or "spawned"
        if isinstance(cause, StartFailed):
            why = f"{cause.ename}: {cause.evalue}"
        else:
            why = describe_exit(cause) + "".join(f"\n    {shorten_line(line)}" for line in cause.last_lines[-6:])
        halted = "".join(
            f"\n  {e.describe_halted()}, which may be the cause" for e in self.entries if e.is_halted and e is not entry
        )
        text = (
            f"rank {entry.rank} ({entry.host}, pid {entry.pid}) did not start: after phase '{phase}' it {_verb(cause)}{why}{halted}\n"
            f"  log {entry.log_path} · {self._next_step()}"
        )
        return EnginesMissing(text, rank=entry.rank, phase=phase, cause=why)

    def _next_step(self) -> str:
        if self.is_takeover:
            return f"the other ranks were left running; to stop them, run in a shell: mhnb stop {self._takeover_name}"
        return "all processes were stopped; fix the cause and start again"

    def find_shared_gpu(self, event: RankSpawned | PhaseReached | RankReady) -> LaunchError | None:
        """Build the error of two ranks that share a GPU, or None.

        JAX would only report "Duplicate GPU detected", or run out of memory.
        """
        if not (isinstance(event, PhaseReached) and event.facts.get("gpus")):
            return None
        found = find_shared_gpu({entry.rank: entry.facts.get("gpus", ()) for entry in self.entries})
        if found is None:
            return None
        uuid, ranks = found
        names = " and ".join(f"rank {rank} ({self.name_host(self.entries[rank].supervisor)})" for rank in ranks)
        return LaunchError(
            f"{names} would use the same GPU, {uuid}, but each rank needs its own; all processes were stopped\n"
            "  Fix: on one machine, add --profile gpu or --set share_gpus=True\n"
            "  Or: under Slurm, add --set gpus_per_rank=1\n"
            "  Or: set a different CUDA_VISIBLE_DEVICES for each rank",
            ranks=ranks,
            gpu=uuid,
        )

    def timeout_error(self, timeout_s: float) -> LaunchError:
        """Build the error of a start timeout, naming the ranks furthest behind."""
        if self._barrier is not None and self._barrier.missing:
            return self._missing_error(timeout_s, self._barrier.missing)
        not_ready = [e for e in self.entries if e.phase != "ready"]
        if halted := [e for e in not_ready if e.is_halted]:
            return self._halted_error(timeout_s, halted)
        if self.hub_is_halted:
            return self._hub_error(timeout_s, not_ready)
        worst = min(not_ready, key=lambda e: -1 if e.phase is None else PHASES.index(e.phase))
        behind = [e for e in not_ready if e.phase == worst.phase]
        names = ", ".join(f"rank {e.rank} ({e.host}, pid {e.pid})" for e in behind[:4])
        description = f"{names} stopped after phase '{worst.phase}'" if worst.phase else self._format_unreported(behind)
        kind = CoordinatorTimeout if worst.phase == "jax" else EnginesMissing
        log = worst.log_path if worst.phase else worst.log_path.rpartition("/")[0]
        next_step = self._next_step() if self.is_takeover else _TIMEOUT_HINT
        return kind(
            f"{self._format_timeout(timeout_s)}: {description}\n  log {log} · {next_step}",
            rank=worst.rank,
            phase=worst.phase,
            cause="timeout",
        )

    def _format_timeout(self, timeout_s: float) -> str:
        return f"{'attaching to the cluster' if self.is_takeover else 'the start'} took longer than {timeout_s:g} s"

    def _format_unreported(self, ranks: Sequence[RankEntry]) -> str:
        """Describe ranks that never reported, and their supervisors."""
        supervisors = sorted({entry.supervisor for entry in ranks})
        pids = ", ".join(f"pid {self.supervisor_pids[k]}" for k in supervisors if k in self.supervisor_pids)
        who = f"their launcher process{f' ({pids})' if pids else ''}"
        return f"{describe_ranks([entry.rank for entry in ranks])} did not start; {who} has not reported why and may be suspended or busy"

    def _halted_error(self, timeout_s: float, halted: Sequence[RankEntry]) -> LaunchError:
        """Build the error that names halted ranks, which the others wait for."""
        first = halted[0]
        way = f"to continue it: kill -CONT {first.pid}; " if self.is_takeover else ""
        return EnginesMissing(
            f"{self._format_timeout(timeout_s)}: {', '.join(entry.describe_halted() for entry in halted[:4])}\n"
            f"  log {first.log_path} · {way}{self._next_step()}",
            rank=first.rank,
            phase=first.phase,
            cause="halted",
        )

    def _hub_error(self, timeout_s: float, late: Sequence[RankEntry]) -> LaunchError:
        """Build the error that names the halted hub, which ranks wait for."""
        return EnginesMissing(
            f"{self._format_timeout(timeout_s)}: the hub (ipyparallel's controller, pid {self.hub_pid}) is suspended, by SIGSTOP or"
            f" a debugger, and {describe_ranks([e.rank for e in late])} waited for it\n"
            f"  log {late[0].log_path.rpartition('/')[0]} · to continue it: kill -CONT {self.hub_pid}; {self._next_step()}",
            phase=late[0].phase,
            cause="halted",
        )

    def _missing_error(self, timeout_s: float, missing: Sequence[int]) -> LaunchError:
        hosts = dict.fromkeys(e.host for e in self.entries if e.supervisor in missing) or ["the hub"]
        return EnginesMissing(
            f"the start took longer than {timeout_s:g} s: {', '.join(hosts)} did not report\n"
            "  all processes were stopped; check that each host can reach the address that this notebook listens on\n"
            "  Fix: %mhjax doctor",
            phase=None,
            cause="timeout",
        )

    def version_error(self) -> LaunchError | None:
        """Build the error of ranks with different software: name, version, ranks."""
        found: dict[str, dict[str, list[int]]] = {}
        for entry in self.entries:
            for name, version in entry.facts.get("versions", {}).items():
                found.setdefault(name, {}).setdefault(version, []).append(entry.rank)
        listed = "; ".join(
            f"{name} {', '.join(f'{version} on {describe_ranks(ranks)}' for version, ranks in versions.items())}"
            for name, versions in found.items()
            if len(versions) > 1
        )
        text = f"the ranks have different software versions ({listed}); install the same versions on every host"
        return LaunchError(text) if listed else None


def _ended_the_same(exited: RankExited, first: RankExited, slow: Collection[int]) -> bool:
    return {exited.rank, first.rank} <= set(slow) or ended_the_same(exited, first)


def _verb(cause: StartFailed | RankExited) -> str:
    return "raised " if isinstance(cause, StartFailed) else ""
