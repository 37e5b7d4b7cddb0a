"""Value types of all layers, independent of processes, sockets and JAX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

ClusterState: TypeAlias = Literal["starting", "clean", "running", "split", "tainted", "dead", "stopped"]
"""States of a cluster. `starting` and `running` are transient; the state machine decides the others."""

Outcome: TypeAlias = Literal["running", "ok", "error", "interrupted", "skipped", "died", "killed", "refused"]
"""State of a cell on one rank. `killed`: mhnb or JAX ended the rank after another rank died."""

Phase: TypeAlias = Literal["spawned", "connected", "jax", "initialised", "devices", "checked", "ready"]
"""Start phase of a rank, in the order of PHASES."""

PHASES: tuple[Phase, ...] = ("spawned", "connected", "jax", "initialised", "devices", "checked", "ready")

Output: TypeAlias = dict[str, Any]
"""One output as nbformat 4 stores it: stream, display_data, execute_result or error."""

Frame: TypeAlias = bytes | memoryview
"""One part of a message on a byte stream."""


@dataclass(frozen=True, slots=True, order=True)
class DeviceRef:
    """A device as rank and local index, shown as `2:0`.

    >>> str(DeviceRef(2, 0))
    '2:0'
    """

    rank: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.rank}:{self.ordinal}"


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Status of one rank, as in `cluster.ranks` and in status views."""

    rank: int
    host: str
    hostname: str = ""
    """The machine's own name; empty until it is known."""
    pid: int | None = None
    log_path: Path = Path()
    phase: Phase | None = None
    """The last start phase that it reached; None before its process exists."""
    state: str = "alive"
    """alive; stopped, with its cluster; or how it ended."""
    devices: tuple[DeviceRef, ...] = ()
    """Its local devices, once JAX has reported them."""
    platform: str = ""
    """As JAX names it: cpu, gpu, tpu; empty until it is known."""
    nbytes: int | None = None
    """Resident memory of a living rank on another machine, at most a few seconds old."""
    last_cell: str = ""
    """Number of its last cell, and how it ended, as `12 ok`; empty before the first."""
    host_is_up: bool = False
    """Whether its host has reported; on another machine this happens before the rank's process exists."""


@dataclass(frozen=True, slots=True)
class StartProgress:
    """Progress of a start."""

    ranks: tuple[RankInfo, ...]
    elapsed_s: float
    """Seconds since it began."""
    ready: bool = False
    status: str = ""
    """What the ranks wait for, such as their position in a scheduler's queue; empty if they are starting."""
    is_takeover: bool = False
    """Whether the ranks exist already, and were started by another notebook."""


@dataclass(frozen=True, slots=True)
class RankError:
    """An exception that a cell raised on one rank."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()
    """Lines as IPython renders them, with ANSI colours."""
    hint: str | None = None
    """How to fix it, if the error is a known one."""
    line: int | None = None
    """1-based line of the cell that raised; None if no frame of the cell raised it."""
    code: str | None = None
    """The text of that line."""
    at_s: float = 0.0
    """Seconds from the cell's start on that rank to the error; used to find the rank that failed first."""
    inner_place: str = ""
    """The innermost line of an earlier cell that the line led to, `In [3], line 11`; empty if it led to none."""
    inner_code: str = ""
    """The text of that line."""
