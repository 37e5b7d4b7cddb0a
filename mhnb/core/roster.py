"""Who the ranks are and how far each has come: phases, processes, facts, deaths."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mhnb.core.protocol import HostUp, PhaseReached, RankExited, RankReady, RankSpawned, StartFailed
from mhnb.errors import CoordinatorTimeout, EnginesMissing, LaunchError
from mhnb.values import PHASES, Phase

__all__ = ["RankEntry", "Roster", "describe_exit"]


@dataclass(slots=True)
class RankEntry:
    """What is known of one rank."""

    rank: int
    host: str
    log_path: str
    phase: Phase | None = None
    pid: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    exit: RankExited | None = None


def describe_exit(exited: RankExited) -> str:
    """Say how a process ended.

    >>> describe_exit(RankExited(rank=3, exit_code=None, signum=9, last_lines=[]))
    'was killed by SIGKILL, often the memory limit'
    """
    if exited.signum is None:
        return f"ended by itself with exit code {exited.exit_code}"
    try:
        name = signal.Signals(exited.signum).name
    except ValueError:
        name = f"signal {exited.signum}"
    hints = {
        "SIGKILL": ", often the memory limit",
        "SIGSEGV": ", a crash in native code",
        "SIGABRT": ", an abort in native code",
    }
    return f"was killed by {name}{hints.get(name, '')}"


class Roster:
    """The ranks of one generation.

    Args:
        hosts: the host label of each rank, in rank order.
        log_paths: the log file of each rank, in rank order.
    """

    def __init__(self, hosts: Sequence[str], log_paths: Sequence[str]) -> None:
        self.entries = [RankEntry(r, host, log) for r, (host, log) in enumerate(zip(hosts, log_paths, strict=True))]
        self.supervisor_pids: dict[int, int] = {}
        self.hub_pid: int | None = None
        self.deaths: list[RankExited] = []

    def note(self, event: HostUp | RankSpawned | PhaseReached | RankReady | RankExited) -> None:
        """Take in one event of the start or the end of a rank."""
        if isinstance(event, HostUp):
            self.supervisor_pids[event.supervisor] = event.pid
            self.hub_pid = event.hub_pid or self.hub_pid
            return
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

    def learn(self, rank: int, facts: Mapping[str, Any]) -> None:
        """Take in what a rank found out after its start: devices, where a cell brought up JAX."""
        self.entries[rank].facts |= facts

    @staticmethod
    def _advance(entry: RankEntry, phase: Phase) -> None:
        # A supervisor's word "spawned" may arrive after the rank's own first words.
        if entry.phase is None or PHASES.index(phase) > PHASES.index(entry.phase):
            entry.phase = phase

    @property
    def all_ready(self) -> bool:
        """Whether every rank can take cells."""
        return all(entry.phase == "ready" for entry in self.entries)

    @property
    def alive(self) -> tuple[int, ...]:
        """Ranks whose process has not been seen to end."""
        return tuple(e.rank for e in self.entries if e.exit is None)

    def can_free(self) -> bool:
        """Whether every rank knows which of its connections carry collectives, and could close those."""
        return all(entry.facts.get("frees", False) for entry in self.entries)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process groups that were heard of: ranks and hub."""
        known = (*(entry.pid for entry in self.entries), self.hub_pid)
        return tuple(pid for pid in known if pid is not None)

    def explain_death(self, exited: RankExited) -> str:
        """Say who died, how, and what it said last."""
        entry = self.entries[exited.rank]
        last = f' · last line: "{exited.last_lines[-1]}"' if exited.last_lines else ""
        return f"rank {entry.rank} ({entry.host}, pid {entry.pid}) {describe_exit(exited)}{last} · log {entry.log_path}"

    def start_error(self, cause: StartFailed | RankExited) -> LaunchError:
        """Make the error of a rank that failed while starting."""
        entry = self.entries[cause.rank]
        phase = cause.phase if isinstance(cause, StartFailed) else entry.phase or "spawned"
        if isinstance(cause, StartFailed):
            why = f"{cause.ename}: {cause.evalue}"
        else:
            why = describe_exit(cause) + "".join(f"\n    {line}" for line in cause.last_lines[-6:])
        text = (
            f"rank {entry.rank} ({entry.host}, pid {entry.pid}) did not start: after phase '{phase}' it {_it(cause)}{why}\n"
            f"  log {entry.log_path} · every process was ended; mend the cause and start again"
        )
        return EnginesMissing(text, rank=entry.rank, phase=phase, cause=why)

    def timeout_error(self, timeout_s: float) -> LaunchError:
        """Make the error of a start that took too long: the ranks that are furthest behind."""
        late = [e for e in self.entries if e.phase != "ready"]
        worst = min(late, key=lambda e: -1 if e.phase is None else PHASES.index(e.phase))
        behind = [e for e in late if e.phase == worst.phase]
        reached = f"phase '{worst.phase}'" if worst.phase else "no phase at all"
        names = ", ".join(f"rank {e.rank} ({e.host}, pid {e.pid})" for e in behind[:4])
        kind = CoordinatorTimeout if worst.phase == "jax" else EnginesMissing
        return kind(
            f"the start took longer than {timeout_s:g} s: {names} reached {reached} and no further\n"
            f"  log {worst.log_path} · every process was ended; raise the limit with --start-timeout, or mend the cause",
            rank=worst.rank,
            phase=worst.phase,
            cause="timeout",
        )

    def versions_differ(self) -> Mapping[str, dict[str, list[int]]]:
        """Give each software whose version is not the same on all ranks: name -> version -> ranks."""
        found: dict[str, dict[str, list[int]]] = {}
        for entry in self.entries:
            for name, version in entry.facts.get("versions", {}).items():
                found.setdefault(name, {}).setdefault(version, []).append(entry.rank)
        return {name: versions for name, versions in found.items() if len(versions) > 1}


def _it(cause: StartFailed | RankExited) -> str:
    return "raised " if isinstance(cause, StartFailed) else ""
