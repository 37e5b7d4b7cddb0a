"""Value types that every layer shares. They do not depend on processes, sockets or JAX."""

from __future__ import annotations

from dataclasses import dataclass
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
    """A device: its rank and its index among that rank's local devices, shown as `2:0`.

    >>> str(DeviceRef(2, 0))
    '2:0'
    """

    rank: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.rank}:{self.ordinal}"


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
