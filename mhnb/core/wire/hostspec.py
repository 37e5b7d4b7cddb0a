"""Start parameters of the ranks of one machine, which its supervisor reads as one JSON line on standard input."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from mhnb.core.wire.protocol import PROTOCOL_VERSION
from mhnb.errors import UnknownMessage, VersionMismatch

__all__ = ["HostSpec", "format_hostspec", "parse_hostspec"]


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
    """Empty if `BeginRanks` will supply it."""
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
    """Report first, then wait for `BeginRanks`: with several hosts, the values for each are known only once all have reported."""
    address: str = ""
    """The address at which other hosts reach this one; empty if no host needs it."""
    host_timeout_s: float = 0.0
    """End everything here after so many seconds without a message from the notebook; 0 for never.

    A kept supervisor ends after so long without a notebook and with nothing left to serve.
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
