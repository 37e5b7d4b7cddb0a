"""The few values that every floor shares. They know nothing of processes, sockets or JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["ClusterState", "DeviceRef", "Frame", "Outcome", "Output", "PHASES", "Phase", "RankError"]

ClusterState: TypeAlias = Literal["starting", "clean", "running", "split", "tainted", "dead", "stopped"]
"""The states of a cluster. `starting` and `running` pass by themselves; the others are judged."""

Outcome: TypeAlias = Literal["running", "ok", "error", "interrupted", "skipped", "died", "killed", "refused"]
"""How a cell stands on one rank. `killed`: mhnb or JAX took the rank down after another one died."""

Phase: TypeAlias = Literal["spawned", "connected", "jax", "initialised", "devices", "checked", "ready"]
"""How far a rank has come while it starts, in the order of PHASES."""

PHASES: tuple[Phase, ...] = ("spawned", "connected", "jax", "initialised", "devices", "checked", "ready")

Output: TypeAlias = dict[str, Any]
"""One output as nbformat 4 stores it: stream, display_data, execute_result or error."""

Frame: TypeAlias = bytes | memoryview
"""One part of a message on a byte stream."""


@dataclass(frozen=True, slots=True, order=True)
class DeviceRef:
    """A device by its rank and its position among that rank's local devices; shown `2:0`.

    >>> str(DeviceRef(2, 0))
    '2:0'
    """

    rank: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.rank}:{self.ordinal}"


@dataclass(frozen=True, slots=True)
class RankError:
    """What a cell raised on one rank."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()
    """Lines as IPython renders them, with ANSI colours."""
    hint: str | None = None
    """The cure, where the error is a known one."""
    line: int | None = None
    """1-based line of the cell where it was raised; None where it was not in the cell's own frames."""
    code: str | None = None
    """The text of that line."""
    at_s: float = 0.0
    """Seconds after the cell began on that rank: who failed first."""
