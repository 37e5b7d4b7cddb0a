"""Facts of preflight about each machine, and the classes of its report.

A machine's facts are what its supervisor reported, and how the other machines reach it.
This module uses no process and no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mhnb.errors import LaunchError


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
    name_addresses: tuple[str, ...] = ()
    """The addresses to which the machine's own name resolves there; empty if it cannot be resolved."""
    name_error: str = ""
    """Why its own name cannot be resolved there."""
    disks: tuple[Disk, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that matter to JAX, as the launcher's command sees them."""
    unknown_flags: tuple[str, ...] = ()
    """Flags in XLA_FLAGS that the jaxlib there does not know."""
    gpus: tuple[Gpu, ...] = ()
    tpus: int = 0
    boot_id: str = ""
    """A text that identifies the running system; equal for the same boot."""


@dataclass(frozen=True, slots=True)
class HostChecks:
    """All preflight results of one host."""

    name: str
    address: str = "127.0.0.1"
    """The address at which the notebook, and so the other hosts, reach it."""
    facts: HostFacts | None = None
    failure: LaunchError | None = None
    """Why there are no facts: its supervisor has not started, or no longer answers."""
    login_address: str = ""
    """Where the login came from, as sshd there saw it, if the notebook cannot be reached from there."""
    clock_offset: tuple[float, float] | None = None
    """Seconds that its clock is ahead, and the possible error of that number."""
    listen_errors: Mapping[str, str] = field(default_factory=dict)
    """Endpoint -> why it could not listen."""
    connect_errors: Mapping[str, str] = field(default_factory=dict)
    """Endpoint, or `peer N` for host N's port for collectives -> empty, or why it cannot be reached from here."""
    colocated: tuple[HostFacts, ...] = ()
    """Facts from other supervisors on the same machine."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A port that every host must reach."""

    name: str
    """`link`, `hub` or `coordinator`."""
    host: int | None
    """Position of the host that listens; None for the notebook's machine."""
    address: str
    port: int
    is_port_given: bool = False
    """Whether the user has chosen the port."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements of the cluster to be started."""

    endpoints: tuple[Endpoint, ...] = ()
    devices: int | None = None
    """Simulated CPU devices per rank; None for the devices that the platform has."""
    ranks_per_host: int = 1
    mhnb_version: str = ""
    """The version installed here."""
    pjrt_nproc: str = ""
    """The user's value of PJRT_NPROC; empty if mhnb chooses it."""


def is_loopback(address: str) -> bool:
    """Return whether an address reaches only the machine itself.

    >>> is_loopback("127.0.1.1"), is_loopback("::1"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    return address.startswith("127.") or address in ("::1", "localhost")


# -- value classes of a preflight report


_MAX_NAMED = 6

Level: TypeAlias = Literal["failure", "warning", "note"]
"""A failure would end, hang or silently corrupt a start. A warning would not. A note says what mhnb does about something."""


@dataclass(frozen=True, slots=True)
class ReportCell:
    """The result of one check on one host."""

    text: str
    level: Level | None = None
    """The most severe finding here, or None."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, on one host or the same on several."""

    level: Level
    check: str
    hosts: tuple[str, ...]
    text: str
    """The subject, its value and the consequence, in a sentence that names the hosts."""
    fix: str = ""
    """What to do, or what mhnb does."""


@dataclass(frozen=True, slots=True)
class Column:
    """One check across all hosts."""

    header: str
    cells: Mapping[int, ReportCell] = field(default_factory=dict)
    """Host's position -> its cell; a host that did not reply has none."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """The findings on all hosts."""

    hosts: tuple[str, ...]
    columns: tuple[Column, ...]
    findings: tuple[Finding, ...]
    duration_s: float | None = None
    """Duration of the preflight, without the time in a scheduler's queue."""

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Findings that prevent a start."""
        return tuple(finding for finding in self.findings if finding.level == "failure")

    @property
    def ok(self) -> bool:
        """Whether no finding prevents a start."""
        return not self.failures


def join_hosts(names: Iterable[str]) -> str:
    """Format host names as prose; list only the first few of many.

    >>> join_hosts("abc"), join_hosts("abcdefghijk")
    ('a, b and c', 'a, b, c, d, e, f and 5 more')
    """
    *first, last = list(names)
    if len(first) >= _MAX_NAMED + 2:
        first, last = first[:_MAX_NAMED], f"{len(first) + 1 - _MAX_NAMED} more"
    return f"{', '.join(first)} and {last}" if first else last


def most_common(values: Sequence[str]) -> str:
    """Return the most common value; the earlier of two equally common ones.

    >>> most_common(["1", "2", "2"])
    '2'
    """
    return Counter(values).most_common(1)[0][0]
