"""What a supervisor must know to bring up the ranks of one machine, as one JSON line for its standard input."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from mhnb.core.wire.protocol import PROTOCOL_VERSION
from mhnb.errors import UnknownMessage, VersionMismatch

__all__ = ["HostSpec", "format_hostspec", "parse_hostspec"]


@dataclass(frozen=True, slots=True)
class HostSpec:
    """One machine's share of a cluster."""

    link_url: str
    key: str = field(repr=False)
    """Hex. Comes on standard input only: never in argv, never in the environment."""
    supervisor: int | None
    """None: one of several alike, which finds its number, and its rank, in what its launcher tells each (Slurm, MPI)."""
    generation: int
    process_count: int
    ranks: list[int]
    devices: int | None
    """Simulated CPU devices per rank; None: what the platform has."""
    coordinator_address: str
    """Empty where `BeginRanks` will bring it."""
    initialize: dict[str, Any]
    """The user's arguments of jax.distributed.initialize beyond the coordinator, count and id."""
    environment: dict[str, str]
    """Set before JAX is imported."""
    cwd: str
    """The ranks' working folder; empty for the one that the supervisor was started in."""
    run_dir: str
    """Logs, the IPython profile and the native output of the ranks."""
    ranks_per_host: int = 1
    """Rank r is on host r // ranks_per_host, here and elsewhere."""
    init: bool = True
    """False: ranks leave jax.distributed.initialize() to a cell."""
    hub: bool = True
    board: bool = True
    """Whether the board is here, on which all ranks of the cluster agree on launches: on one host only, that of rank 0."""
    board_url: str = ""
    """Where ranks of other hosts reach the board, `tcp:ADDRESS:PORT`: the board's host listens there, the others connect.
    Empty: all ranks that agree are where the board is."""
    keep: bool = False
    """True: go on when the owner is gone."""
    lifeline: bool = True
    """Whether the end of standard input says that the owner is gone; else who started this ends it."""
    fork: bool = True
    """Fork the ranks from the supervisor, else start each afresh."""
    waits: bool = False
    """Report, then wait for `BeginRanks`: hosts are several, and what each must know is not known before all are there."""
    address: str = ""
    """The address by which other hosts reach this one; empty where nobody needs to."""
    host_timeout_s: float = 0.0
    """End everything here when nothing was heard of the notebook for so long; 0 for never. Kept: when for so long no notebook
    was there and nothing was left to hold."""
    share_gpus: bool = False
    """Give each rank its own part of the GPUs of this machine."""
    gpus: list[str] = field(default_factory=list)
    """UUIDs of the GPUs that the rank sees, as its supervisor found them."""
    connection: str = field(default="", repr=False)
    """The connection file of a hub that is there already; empty where this supervisor starts it, or another one's is told later."""
    engine_only: bool = False
    """The ranks serve ipyparallel's client, as any engine does, and take no cell from the link."""
    makes_cwd: bool = False
    """Make the working folder where it is not there: the notebook will fill it."""
    protocol: int = PROTOCOL_VERSION

    @property
    def end_mark(self) -> str:
        """The file that says that the supervisor has ended its processes, every one."""
        return f"{self.run_dir}/supervisor{self.supervisor}.ended"


def format_hostspec(spec: HostSpec) -> str:
    """Write the spec as one line.

    >>> spec = HostSpec("tcp:127.0.0.1:1", "00", 0, 1, 1, [0], 2, "127.0.0.1:2", {}, {}, ".", ".")
    >>> parse_hostspec(format_hostspec(spec)) == spec
    True
    """
    return json.dumps(asdict(spec)) + "\n"


def parse_hostspec(line: str) -> HostSpec:
    """Read the spec.

    Raises:
        VersionMismatch: the notebook speaks another version of the protocol.
        UnknownMessage: it is no spec.

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
