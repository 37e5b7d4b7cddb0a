"""Facts of preflight about each machine, and the value classes of its report: cells, columns and findings.

A machine's facts are what its probe reported, and how the other machines reach it.
One srun or mpiexec carries several probes, and their output is interleaved. Each launcher marks the lines in its own way and
breaks long ones. So a probe writes its number in every line, and a long answer comes in parts.
This module uses no process and no file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

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


# -- value classes of a preflight report


_MAX_NAMED = 6

Level: TypeAlias = Literal["failure", "warning", "note"]
"""A failure would end, hang or silently corrupt a start. A warning would not. A note says what mhnb does about something."""


@dataclass(frozen=True, slots=True)
class ReportCell:
    """The result of one check on one host."""

    text: str
    level: Level | None = None
    """The most severe finding here; None if there is none."""


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
    addresses: tuple[str | None, ...] = ()
    """Each host's real address, at which others reach it: for gloo and for no_proxy. None if the host did not reply."""
    endpoints: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Endpoint -> address and port that every host can reach."""
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
    """Format host names as a list in prose; of many, only the first few.

    >>> join_hosts("abc"), join_hosts("abcdefghijk")
    ('a, b and c', 'a, b, c, d, e, f and 5 more')
    """
    *first, last = list(names)
    if len(first) >= _MAX_NAMED + 2:
        first, last = first[:_MAX_NAMED], f"{len(first) + 1 - _MAX_NAMED} more"
    return f"{', '.join(first)} and {last}" if first else last


def most_common(values: Sequence[str]) -> str:
    """Return the most common value; of two that are equally frequent, the earlier.

    >>> most_common(["1", "2", "2"])
    '2'
    """
    return Counter(values).most_common(1)[0][0]


# -- parse the interleaved output of several probes


PROBE_SCRIPT = (
    '(IFS= read -r line && eval "$line") || '
    '{ echo "mhnb-probe ${SLURM_PROCID-${OMPI_COMM_WORLD_RANK-${PMIX_RANK-$PMI_RANK}}} gone $? $(uname -n)"; '
    'exec cat >/dev/null; }; IFS= read -r line && eval "$line"'
)
"""Run by each task: a line of shell that is the probe, and after its success a second line that becomes the supervisor.

If the probe cannot run, the task reports this and waits for the end. If it ended first, srun would end the other tasks
before they had answered.
"""

_TAG = re.compile(r"\s*(?:\[\d+,(\d+)\]<\w+>:\s?|\[(\d+)\] ?|(\d+): )")
_CHUNK = re.compile(r"mhnb-probe (\d+) (\d+) (\d+)/(\d+) (\d+) (.*)")
_EXITED = re.compile(r"mhnb-probe (\d+) gone (\d+) (\S*)")


@dataclass(frozen=True, slots=True)
class AnswerChunk:
    """A part of a probe's answer."""

    task: int
    request: int
    index: int
    """The number of the part, from 0."""
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class ProbeExited:
    """A probe that ended too early."""

    task: int
    code: int
    hostname: str


@dataclass(frozen=True, slots=True)
class OtherOutput:
    """Any other output."""

    task: int | None
    """None if the launcher itself wrote it, or did not mark the task."""
    text: str


def parse_probe_line(line: str) -> AnswerChunk | ProbeExited | OtherOutput:
    """Parse one line, as Slurm (`3: `), Open MPI (`[1,3]<stdout>:`) or MPICH (`[3] `) has marked it.

    >>> parse_probe_line("[1,0]<stdout>:mhnb-probe 0 2 0/1 4 null[1,0]<stdout>:")
    AnswerChunk(task=0, request=2, index=0, count=1, text='null')
    >>> parse_probe_line("[1,3]<stderr>:mhnb: no python: py")
    OtherOutput(task=3, text='mhnb: no python: py')
    """
    if chunk := _CHUNK.search(line):
        task, request, index, count, length = map(int, chunk.groups()[:5])
        # The text after it is Open MPI's, which may mark the empty rest of a line too.
        return AnswerChunk(task, request, index, count, chunk.group(6)[:length])
    if exited := _EXITED.search(line):
        return ProbeExited(int(exited.group(1)), int(exited.group(2)), exited.group(3))
    tag = _TAG.match(line)
    if tag is None:
        return OtherOutput(None, line.strip())
    return OtherOutput(int(tag.group(1) or tag.group(2) or tag.group(3)), line[tag.end() :].strip())
