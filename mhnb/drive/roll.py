"""Rank status and start progress as public values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mhnb.core.asked.shape import ClusterSpec
from mhnb.core.life.ladder import KILLED_AFTER_INTERRUPT
from mhnb.core.life.machine import ClusterStateMachine
from mhnb.core.life.roster import RankEntry
from mhnb.core.ranks import pluralize
from mhnb.values import DeviceRef, Phase

__all__ = [
    "RankInfo",
    "StartProgress",
    "describe_guard",
    "describe_location",
    "describe_ranks",
    "preflight_progress",
    "start_progress",
]


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Status of one rank, as shown by the status command."""

    rank: int
    host: str
    hostname: str
    pid: int | None
    log_path: Path
    phase: Phase | None
    state: str
    """alive; stopped, with its cluster; or how it ended."""
    devices: tuple[DeviceRef, ...]
    platform: str = ""
    """As JAX names it: cpu, gpu, tpu; empty until it is known."""
    nbytes: int | None = None
    """Resident memory of a rank on another machine, at most a few seconds old."""
    last_cell: str = ""
    """Number of its last cell, and how it ended; empty before the first."""
    host_is_up: bool = False
    """Whether its host has reported; on another machine this happens before the rank's process exists."""


@dataclass(frozen=True, slots=True)
class StartProgress:
    """Progress of a start, for a progress line."""

    ranks: tuple[RankInfo, ...]
    elapsed_s: float
    ready: bool
    standing: str = ""
    """What the ranks wait for, such as their position in a scheduler's queue; empty if they are starting."""
    is_takeover: bool = False
    """Whether the ranks exist already, and were started by another notebook."""


def describe_ranks(state_machine: ClusterStateMachine) -> tuple[RankInfo, ...]:
    """Return what is known of each rank, in rank order."""
    infos = []
    for entry in state_machine.registry.entries:
        found = entry.facts.get("devices", [])
        devices = tuple(DeviceRef(entry.rank, ordinal) for _, ordinal, _ in found)
        slow = (
            KILLED_AFTER_INTERRUPT in state_machine.reason
            and entry.last_cell is not None
            and entry.last_cell[1] == "killed"
        )
        state = state_machine.registry.describe_end(entry, KILLED_AFTER_INTERRUPT if slow else "")
        if state_machine.state == "stopped" and state == "alive" and not state_machine.registry.is_detached:
            # The end of processes that were told to end is not reported any more.
            state = "stopped"
        hostname = str(entry.facts.get("hostname", ""))
        log_path = Path(entry.log_path)
        infos.append(
            RankInfo(
                entry.rank,
                entry.host,
                hostname,
                entry.pid,
                log_path,
                entry.phase,
                state,
                devices,
                str(entry.facts.get("platform", "")),
                entry.nbytes,
                _describe_last_cell(state_machine, entry),
                state_machine.registry.has_host(entry),
            )
        )
    return tuple(infos)


def _describe_last_cell(state_machine: ClusterStateMachine, entry: RankEntry) -> str:
    cell = state_machine.current
    if cell is not None and entry.rank in cell.running_ranks:
        return f"{cell.seq} running"
    return f"{entry.last_cell[0]} {entry.last_cell[1]}" if entry.last_cell else ""


def describe_guard(state_machine: ClusterStateMachine, requested: str) -> str:
    """Describe the active guard: the requested one, with what it cannot cover, or why it is unavailable."""
    for entry in state_machine.registry.entries:
        guard = entry.facts.get("guard")
        if guard and not guard["available"]:
            return f"unavailable ({guard['reason']})"
        if guard and guard.get("unseen"):
            return f"{requested}, unavailable for {', '.join(guard['unseen'])}"
    return requested


def describe_location(shape: ClusterSpec, ranks: Sequence[RankInfo]) -> str:
    """Describe the hosts of the ranks and their profile; also the machines that a scheduler has chosen, once they have reported.

    >>> describe_location(ClusterSpec(2, None, profile="ssh", machines=("a", "b")), [])
    '2 hosts (a, b), profile ssh'
    """
    chosen = dict.fromkeys(rank.hostname for rank in ranks if rank.hostname)
    if shape.is_local or shape.machines or not chosen:
        return shape.describe()
    return f"{shape.describe()}: {', '.join(chosen)}"


def start_progress(state_machine: ClusterStateMachine, now: float) -> StartProgress:
    """Return the progress of a start."""
    ready = state_machine.state in ("clean", "split", "tainted", "dead")
    ranks, roster = describe_ranks(state_machine), state_machine.registry
    return StartProgress(
        ranks, now - state_machine.started_at, ready, roster.queue_position, is_takeover=roster.is_takeover
    )


def preflight_progress(shape: ClusterSpec, *, is_over: bool = False) -> StartProgress:
    """Return the progress of a start whose hosts are being checked, or have been, before it has any process of its own."""
    ranks = tuple(
        RankInfo(rank, share.host, "", None, Path(), None, "alive", ())
        for share in shape.assign_hosts()
        for rank in share.ranks
    )
    standing = "" if is_over else f"looking at {pluralize(shape.hosts, 'host')}"
    return StartProgress(ranks, 0.0, ready=False, standing=standing)
