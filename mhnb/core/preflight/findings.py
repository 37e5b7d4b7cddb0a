"""Compute preflight findings from facts alone: one column per check, and a fix for each fault.

A failure would end, hang or silently corrupt a start; a warning would not. Nothing here contacts a machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mhnb.core.preflight.env import check_environment
from mhnb.core.preflight.facts import HostFacts, HostLook, Wanted
from mhnb.core.preflight.net import check_names, check_peers, check_ports
from mhnb.core.preflight.report import Cell, Column, Finding, Level, PreflightReport, usual

__all__ = ["judge"]

_OLDEST_PYTHON = (3, 11)
_OLDEST_JAX = (0, 10)
_CLOCK_S = 5.0
_FULL_NBYTES, _SCARCE_NBYTES = 16 << 20, 1 << 30

Known = dict[int, tuple[str, HostFacts]]
"""The hosts that replied: position -> name and facts."""


def judge(looks: Sequence[HostLook], wanted: Wanted) -> PreflightReport:
    """Build the report from the facts of all hosts.

    >>> judge([HostLook("a", HostFacts("a", "3.11.7"))], Wanted(devices=2)).failures[0].text
    'a has no jax for its Python 3.11.7'
    """
    known = {at: (look.name, look.facts) for at, look in enumerate(looks) if look.facts is not None}
    columns = [
        _check_login(looks),
        _check_python(known),
        _check_package(known, "jax"),
        _check_package(known, "mhnb", here=wanted.mhnb),
        _check_devices(known, wanted),
        *check_ports(looks, wanted),
        check_peers(looks),
        check_names(looks, wanted),
        _check_clock(looks),
        _check_disks(known),
    ]
    findings = [finding for column in columns for finding in column.findings]
    findings += [
        *_check_same(known),
        *_check_jaxlib(known),
        *check_environment(looks, wanted),
        *_check_beside(looks, wanted),
    ]
    return PreflightReport(
        hosts=tuple(look.name for look in looks),
        columns=tuple(column for column in columns if column.cells),
        findings=tuple(sorted(findings, key=lambda each: ("failure", "warning", "note").index(each.level))),
        addresses=tuple(None if look.facts is None else look.facts.address for look in looks),
        endpoints=wanted.addresses,
    )


def _check_login(looks: Sequence[HostLook]) -> Column:
    # A check of this machine alone has no login.
    cells = {at: Cell("ok") for at, look in enumerate(looks) if look.clock is not None}
    cells |= {at: Cell("failed", "failure") for at, look in enumerate(looks) if look.failure is not None}
    findings = []
    for look in looks:
        if look.failure is not None:
            # Leave out the log's name, because the log is removed after preflight.
            text, cure = (*str(look.failure).splitlines(), "")[:2]
            findings.append(Finding("failure", "login", (look.name,), text, cure.strip()))
    return Column("login", cells, tuple(findings))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (0, 10) of `0.10.2.dev3`."""
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts if part.isdecimal())


def _check_python(known: Known) -> Column:
    cells, findings = {}, []
    versions = {at: facts.python for at, (_, facts) in known.items()}
    most = ".".join(map(str, _numbers(usual(list(versions.values()))))) if versions else ""
    for at, (name, facts) in known.items():
        cells[at] = Cell(facts.python)
        text = ""
        if _numbers(facts.python) < _OLDEST_PYTHON:
            text = f"{name} has Python {facts.python} ({facts.executable}), and mhnb needs 3.11 or newer"
        elif not f"{facts.python}.".startswith(f"{most}."):
            text = f"{name} has Python {facts.python} and the other hosts {most}: what one sends, another may not read"
        if text:
            cells[at] = Cell(facts.python, "failure")
            findings.append(
                Finding(
                    "failure",
                    "python",
                    (name,),
                    text,
                    f"name a Python, venv or conda of {name} that is the same as elsewhere",
                )
            )
    return Column("python", cells, tuple(findings))


def _check_package(known: Known, package: str, *, here: str = "") -> Column:
    """Compare a package's versions across all hosts, and with the version here if both sides communicate through the package."""
    cells, findings = {}, []
    found = {at: facts.versions.get(package) for at, (_, facts) in known.items()}
    installed = [version for version in found.values() if version is not None]
    most = here or (usual(installed) if installed else "")
    for at, (name, facts) in known.items():
        version = found[at]
        cells[at] = Cell(version or "none", None if version == most and version else "failure")
        pinned = f"{package}=={most}" if most else package
        cure = f"on {name}: {facts.executable or 'python'} -m pip install '{pinned}'"
        if version is None:
            text = f"{name} has no {package} for its Python {facts.executable or facts.python}"
            findings.append(
                Finding("failure", package, (name,), text, f"{cure}; or name the Python, venv or conda that has it")
            )
        elif version != most:
            where = "here" if here else "elsewhere"
            why = (
                "they would not understand each other"
                if here
                else "JAX does not notice, and ranks of two versions fail or hang"
            )
            text = f"{name} has {package} {version}, and {most} is {where}: {why}"
            findings.append(Finding("failure", package, (name,), text, cure))
        elif package == "jax" and _numbers(version) < _OLDEST_JAX:
            cells[at] = Cell(version, "failure")
            findings.append(
                Finding(
                    "failure",
                    package,
                    (name,),
                    f"{name} has jax {version}, and mhnb needs 0.10 or newer",
                    cure.replace("==", ">="),
                )
            )
    return Column(package, cells, tuple(findings))


def _check_jaxlib(known: Known) -> Iterator[Finding]:
    """Check jaxlib, which has no column of its own, wherever jax is installed."""
    for finding in _check_package(known, "jaxlib").findings:
        if not any(known[at][1].versions.get("jax") is None for at in known if known[at][0] in finding.hosts):
            yield finding


def _check_devices(known: Known, wanted: Wanted) -> Column:
    cells, findings = {}, []
    kinds = {at: _devices(facts, wanted) for at, (_, facts) in known.items()}
    most = usual(list(kinds.values())) if kinds else ""
    for at, (name, facts) in known.items():
        # The finding has room for the kind; the cell does not.
        shown = kinds[at].partition(" (")[0]
        text = cure = ""
        if kinds[at] != most:
            text = f"{name} has {kinds[at]}, and elsewhere there are {most}: every rank must have as many devices, of the same kind"
            cure = "leave that host out, or choose devices with CUDA_VISIBLE_DEVICES"
        elif wanted.devices is None and facts.gpus and len(facts.gpus) % wanted.per_host:
            text = f"{name} has {shown} for {wanted.per_host} ranks: they cannot be shared out equally"
            cure = f"start 1 or {len(facts.gpus)} ranks per host"
        cells[at] = Cell(shown, "failure" if text else None)
        if text:
            findings.append(Finding("failure", "devices", (name,), text, cure))
    return Column("devices", cells, (*findings, *_shared_gpus(known)))


def _devices(facts: HostFacts, wanted: Wanted) -> str:
    """Format number and kind, such as `2 gpu (NVIDIA H200)`."""
    if wanted.devices is not None:
        return f"{wanted.devices} cpu"
    if facts.gpus:
        # A GPU that is known only by its device file has no kind.
        names = sorted({gpu.name for gpu in facts.gpus if gpu.uuid})
        return f"{len(facts.gpus)} gpu" + (f" ({', '.join(names)})" if names else "")
    return f"{facts.tpus} tpu" if facts.tpus else "1 cpu"


def _shared_gpus(known: Known) -> Iterator[Finding]:
    """Check that containers on one machine have different GPUs: NCCL ends both ranks with `Duplicate GPU detected`."""
    first: dict[str, str] = {}
    for name, facts in known.values():
        shared = [gpu for gpu in facts.gpus if gpu.uuid and first.setdefault(gpu.uuid, name) != name]
        if shared:
            yield Finding(
                "failure", "devices", (first[shared[0].uuid], name),
                f"{first[shared[0].uuid]} and {name} have the same GPU ({shared[0].uuid})",
                "give each container GPUs of its own, or name only one of the hosts",
            )  # fmt: skip


def _check_beside(looks: Sequence[HostLook], wanted: Wanted) -> Iterator[Finding]:
    """Check that tasks on one machine have different GPUs, because JAX ends them otherwise: `Duplicate GPU detected`."""
    for look in looks:
        tasks = [look.facts, *look.beside] if look.facts is not None and wanted.devices is None else []
        uuids = [gpu.uuid for facts in tasks for gpu in facts.gpus if gpu.uuid]
        if twice := sorted({uuid for uuid in uuids if uuids.count(uuid) > 1}):
            yield Finding(
                "failure", "devices", (look.name,), f"{len(tasks)} tasks on {look.name} have the same GPU ({twice[0]})",
                "start one task there, with --per-host for its ranks and share_gpus; or have the launcher give each its own: gpus_per_rank",
            )  # fmt: skip


def _check_same(known: Known) -> Iterator[Finding]:
    """Check that no machine has two names: they would start two ranks for one host, with the same GPUs."""
    first: dict[tuple[str, str, str], str] = {}
    for name, facts in known.values():
        machine = (facts.boot, facts.hostname, facts.address)
        other = first.setdefault(machine, name)
        if facts.boot and other != name:
            yield Finding(
                "failure", "hosts", (name,), f"{other} and {name} are the same machine ({facts.hostname}, {facts.address})",
                "name it once; --per-host starts several ranks on a host",
            )  # fmt: skip


def _check_clock(looks: Sequence[HostLook]) -> Column:
    cells, findings = {}, []
    for at, look in enumerate(looks):
        if look.clock is None:
            continue
        ahead_s, error_s = look.clock
        off = abs(ahead_s) - error_s > _CLOCK_S
        cells[at] = Cell(f"{ahead_s:+.1f} s", "warning" if off else None)
        if off:
            way = "ahead of" if ahead_s > 0 else "behind"
            text = (
                f"{look.name}'s clock is {abs(ahead_s):.0f} s {way} this one: the times in its logs are off, "
                "and cloud storage refuses what is signed so; ranks do not mind"
            )
            findings.append(
                Finding("warning", "clock", (look.name,), text, f"on {look.name}: timedatectl set-ntp true")
            )
    return Column("clock", cells, tuple(findings))


def _check_disks(known: Known) -> Column:
    cells, findings = {}, []
    for at, (name, facts) in known.items():
        level: Level | None = None
        for disk in facts.disks:
            free = f"{disk.free_nbytes >> 20} MB"
            is_full = bool(disk.error) or disk.free_nbytes < _FULL_NBYTES
            if is_full:
                text = f"{name} cannot write {disk.use} to {disk.folder}: {disk.error or f'{free} free'}"
                cure = "make room there" + (
                    ", or choose another folder by MHNB_HOME here, by TMPDIR on a host" if disk.use == "logs" else ""
                )
                findings.append(Finding("failure", "disk", (name,), text, cure))
                level = "failure"
            elif disk.free_nbytes < _SCARCE_NBYTES and disk.use == "logs":
                findings.append(
                    Finding(
                        "warning",
                        "disk",
                        (name,),
                        f"{name} has {free} left for {disk.use} in {disk.folder}",
                        "make room there",
                    )
                )
                level = level or "warning"
        logs = next((disk for disk in facts.disks if disk.use == "logs"), None)
        if logs is not None:
            cells[at] = Cell(
                f"{logs.free_nbytes / 1e9:.0f} GB" if logs.free_nbytes >= 1e9 else f"{logs.free_nbytes >> 20} MB", level
            )
    return Column("disk", cells, tuple(findings))
