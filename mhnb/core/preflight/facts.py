"""What preflight knows of each machine: as the probe there told it, and how the others reach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mhnb.errors import LaunchError

__all__ = ["Disk", "Endpoint", "Gpu", "HostFacts", "HostLook", "Wanted", "is_loopback", "parse_facts"]


@dataclass(frozen=True, slots=True)
class Disk:
    """One folder that ranks write to."""

    use: str
    """As `logs`."""
    folder: str
    free_nbytes: int
    error: str = ""
    """Why nothing can be written there; empty where it can."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its vendor's tool names it."""

    name: str
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a machine says of itself."""

    hostname: str
    python: str
    executable: str = ""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Distribution -> version; None where it is not installed for that Python."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name -> addresses, as resolved there; none where it cannot be."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Name -> why it cannot be resolved there."""
    ssh: tuple[str, ...] = ()
    """As sshd saw the login: the client's address and port, the own address and port."""
    outward: str = ""
    """The own address that leads out."""
    disks: tuple[Disk, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that matter to JAX, as a rank would see them."""
    unknown_flags: tuple[str, ...] = ()
    """Flags in XLA_FLAGS that the jaxlib there does not know."""
    gpus: tuple[Gpu, ...] = ()
    tpus: int = 0
    boot: str = ""
    """A word that is the same for the same running system."""

    @property
    def address(self) -> str:
        """The address by which others reach it: the one that ssh came to, else the one that leads out, else loopback."""
        reached = self.ssh[2] if len(self.ssh) > 2 else ""
        found = [each for each in (reached, self.outward) if each and not is_loopback(each)]
        return found[0] if found else "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A port that every host must reach."""

    name: str
    """As `coordinator`."""
    host: int | None
    """Position of the host that listens; None: the notebook's machine."""
    port: int = 0
    """0: one that is free is found."""


@dataclass(frozen=True, slots=True)
class HostLook:
    """All that preflight saw of one host."""

    name: str
    facts: HostFacts | None = None
    failure: LaunchError | None = None
    """Why there are no facts."""
    clock: tuple[float, float] | None = None
    """Seconds that it is ahead, and by how much that may be wrong."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Endpoint -> the port that it could listen on here."""
    taken: Mapping[str, str] = field(default_factory=dict)
    """Endpoint -> why it could not."""
    reached: Mapping[str, str] = field(default_factory=dict)
    """Endpoint, or `peer N` for host N's port for collectives -> empty, or why it is not reached from here."""
    beside: tuple[HostFacts, ...] = ()
    """What other tasks of the launcher on the same machine say of it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the cluster shall be."""

    endpoints: tuple[Endpoint, ...] = ()
    devices: int | None = None
    """Simulated CPU devices per rank; None: what the platform has."""
    per_host: int = 1
    mhnb: str = ""
    """The version here."""
    controller: str | None = None
    """The name or address of the notebook's machine, where the user has given one."""
    controller_address: str = ""
    """The address that was tried."""
    addresses: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Endpoint -> address and port where it listened while it was tried, or was to."""
    taken: Mapping[str, str] = field(default_factory=dict)
    """Endpoint of the notebook's machine -> why it could not listen."""
    pool: str = ""
    """What the user has set PJRT_NPROC to; empty where mhnb chooses it."""


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own and nobody else's.

    >>> is_loopback("127.0.1.1"), is_loopback("::1"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    return address.startswith("127.") or address in ("::1", "localhost")


def parse_facts(body: Mapping[str, Any]) -> HostFacts:
    """Read a probe's answer.

    >>> parse_facts({"hostname": "a", "python": "3.11.7", "names": {"a": {"addresses": ["::1"]}}}).names
    {'a': ('::1',)}
    """
    names: Mapping[str, Mapping[str, Any]] = body.get("names", {})
    return HostFacts(
        hostname=body["hostname"],
        python=body["python"],
        executable=body.get("executable", ""),
        versions=body.get("versions", {}),
        names={name: tuple(answer.get("addresses", ())) for name, answer in names.items()},
        why={name: answer["error"] for name, answer in names.items() if "error" in answer},
        ssh=tuple(body.get("ssh", ())),
        outward=body.get("outward", ""),
        disks=_disks(body.get("disks", ())),
        environment=body.get("environment", {}),
        unknown_flags=tuple(body.get("unknown_flags", ())),
        gpus=tuple(Gpu(gpu["name"], gpu["uuid"]) for gpu in body.get("gpus", ())),
        tpus=body.get("tpus", 0),
        boot=body.get("boot", ""),
    )


def _disks(bodies: Sequence[Mapping[str, Any]]) -> tuple[Disk, ...]:
    return tuple(Disk(each["use"], each["folder"], each["free"], each["error"]) for each in bodies)
