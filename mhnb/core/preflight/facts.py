"""Facts of preflight about each machine: what its probe reported, and how the other machines reach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mhnb.errors import LaunchError

__all__ = ["Disk", "Endpoint", "Gpu", "HostFacts", "HostProbe", "Requirements", "is_loopback", "parse_facts"]


@dataclass(frozen=True, slots=True)
class Disk:
    """One folder that ranks write to."""

    purpose: str
    """The purpose, such as `logs`."""
    folder: str
    free_nbytes: int
    error: str = ""
    """Why the folder cannot be written to; empty if it can."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as its vendor's tool names it."""

    name: str
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a machine reports about itself."""

    hostname: str
    python: str
    executable: str = ""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Distribution -> version; None if it is not installed for that Python."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name -> addresses, as resolved there; empty if it cannot be resolved."""
    resolve_errors: Mapping[str, str] = field(default_factory=dict)
    """Name -> why it cannot be resolved there."""
    ssh_connection: tuple[str, ...] = ()
    """The login as sshd saw it: the client's address and port, then the machine's own address and port."""
    outgoing_address: str = ""
    """The machine's own address for outgoing connections."""
    disks: tuple[Disk, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that matter to JAX, as a rank would see them."""
    unknown_flags: tuple[str, ...] = ()
    """Flags in XLA_FLAGS that the jaxlib there does not know."""
    gpus: tuple[Gpu, ...] = ()
    tpus: int = 0
    boot_id: str = ""
    """A text that identifies the running system; equal for the same boot."""

    @property
    def address(self) -> str:
        """The address at which others reach it: the one that ssh used, else the outgoing one, else loopback."""
        reached = self.ssh_connection[2] if len(self.ssh_connection) > 2 else ""
        found = [each for each in (reached, self.outgoing_address) if each and not is_loopback(each)]
        return found[0] if found else "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A port that every host must reach."""

    name: str
    """Such as `coordinator`."""
    host: int | None
    """Position of the host that listens; None for the notebook's machine."""
    port: int = 0
    """0 means that a free port is chosen."""


@dataclass(frozen=True, slots=True)
class HostProbe:
    """All preflight results of one host."""

    name: str
    facts: HostFacts | None = None
    failure: LaunchError | None = None
    """Why there are no facts."""
    clock_offset: tuple[float, float] | None = None
    """Seconds that its clock is ahead, and the possible error of that number."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Endpoint -> the port that it could listen on here."""
    listen_errors: Mapping[str, str] = field(default_factory=dict)
    """Endpoint -> why it could not."""
    connect_errors: Mapping[str, str] = field(default_factory=dict)
    """Endpoint, or `peer N` for host N's port for collectives -> empty, or why it cannot be reached from here."""
    colocated: tuple[HostFacts, ...] = ()
    """Facts from other tasks of the launcher on the same machine."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements of the cluster to be started."""

    endpoints: tuple[Endpoint, ...] = ()
    devices: int | None = None
    """Simulated CPU devices per rank; None for the devices that the platform has."""
    ranks_per_host: int = 1
    mhnb_version: str = ""
    """The version installed here."""
    controller: str | None = None
    """The name or address of the notebook's machine, if the user has given one."""
    controller_address: str = ""
    """The address that was tried."""
    addresses: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Endpoint -> the address and port where it listened, or was to listen, while it was tested."""
    listen_errors: Mapping[str, str] = field(default_factory=dict)
    """Endpoint of the notebook's machine -> why it could not listen."""
    pjrt_nproc: str = ""
    """The user's value of PJRT_NPROC; empty if mhnb chooses it."""


def is_loopback(address: str) -> bool:
    """Return whether an address reaches only the machine itself.

    >>> is_loopback("127.0.1.1"), is_loopback("::1"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    return address.startswith("127.") or address in ("::1", "localhost")


def parse_facts(body: Mapping[str, Any]) -> HostFacts:
    """Parse a probe's reply.

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
        resolve_errors={name: answer["error"] for name, answer in names.items() if "error" in answer},
        ssh_connection=tuple(body.get("ssh", ())),
        outgoing_address=body.get("outward", ""),
        disks=_disks(body.get("disks", ())),
        environment=body.get("environment", {}),
        unknown_flags=tuple(body.get("unknown_flags", ())),
        gpus=tuple(Gpu(gpu["name"], gpu["uuid"]) for gpu in body.get("gpus", ())),
        tpus=body.get("tpus", 0),
        boot_id=body.get("boot", ""),
    )


def _disks(bodies: Sequence[Mapping[str, Any]]) -> tuple[Disk, ...]:
    return tuple(Disk(each["use"], each["folder"], each["free"], each["error"]) for each in bodies)
