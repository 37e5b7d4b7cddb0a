"""Rank status and start progress as public values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mhnb.core.asked.shape import Shape
from mhnb.core.life.ladder import TOO_SLOW
from mhnb.core.life.machine import Machine
from mhnb.core.life.roster import RankEntry
from mhnb.core.ranks import say_count
from mhnb.values import DeviceRef, Phase

__all__ = [
    "RankInfo",
    "StartReport",
    "describe_guard",
    "describe_place",
    "describe_ranks",
    "report_look",
    "report_start",
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
class StartReport:
    """Progress of a start, for a progress line."""

    ranks: tuple[RankInfo, ...]
    elapsed_s: float
    ready: bool
    standing: str = ""
    """What the ranks wait for, such as their position in a scheduler's queue; empty if they are starting."""
    is_takeover: bool = False
    """Whether the ranks exist already, and were started by another notebook."""


def describe_ranks(machine: Machine) -> tuple[RankInfo, ...]:
    """Return what is known of each rank, in rank order."""
    infos = []
    for entry in machine.roster.entries:
        found = entry.facts.get("devices", [])
        devices = tuple(DeviceRef(entry.rank, ordinal) for _, ordinal, _ in found)
        slow = TOO_SLOW in machine.reason and entry.last is not None and entry.last[1] == "killed"
        state = machine.roster.say_end(entry, TOO_SLOW if slow else "")
        if machine.state == "stopped" and state == "alive" and not machine.roster.is_let_go:
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
                _last_cell(machine, entry),
                machine.roster.has_host(entry),
            )
        )
    return tuple(infos)


def _last_cell(machine: Machine, entry: RankEntry) -> str:
    cell = machine.current
    if cell is not None and entry.rank in cell.running_ranks:
        return f"{cell.seq} running"
    return f"{entry.last[0]} {entry.last[1]}" if entry.last else ""


def describe_guard(machine: Machine, asked: str) -> str:
    """Describe the active guard: the requested one, with what it cannot cover, or why it is unavailable."""
    for entry in machine.roster.entries:
        guard = entry.facts.get("guard")
        if guard and not guard["available"]:
            return f"unavailable ({guard['reason']})"
        if guard and guard.get("unseen"):
            return f"{asked}, unavailable for {', '.join(guard['unseen'])}"
    return asked


def describe_place(shape: Shape, ranks: Sequence[RankInfo]) -> str:
    """Describe the hosts of the ranks and their profile; also the machines that a scheduler has chosen, once they have reported.

    >>> describe_place(Shape(2, None, profile="ssh", machines=("a", "b")), [])
    '2 hosts (a, b), profile ssh'
    """
    chosen = dict.fromkeys(rank.hostname for rank in ranks if rank.hostname)
    if shape.is_local or shape.machines or not chosen:
        return shape.describe()
    return f"{shape.describe()}: {', '.join(chosen)}"


def report_start(machine: Machine, now: float) -> StartReport:
    """Return the progress of a start."""
    ready = machine.state in ("clean", "split", "tainted", "dead")
    ranks, roster = describe_ranks(machine), machine.roster
    return StartReport(ranks, now - machine.started_at, ready, roster.standing, is_takeover=roster.is_left)


def report_look(shape: Shape, *, is_over: bool = False) -> StartReport:
    """Return the progress of a start whose hosts are being checked, or have been, before it has any process of its own."""
    ranks = tuple(
        RankInfo(rank, share.host, "", None, Path(), None, "alive", ())
        for share in shape.shares()
        for rank in share.ranks
    )
    standing = "" if is_over else f"looking at {say_count(shape.hosts, 'host')}"
    return StartReport(ranks, 0.0, ready=False, standing=standing)
