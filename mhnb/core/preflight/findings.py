"""Compute preflight findings from facts alone: one column per check, and a fix for each fault.

A failure would end, hang or silently corrupt a start; a warning would not. Nothing here contacts a machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mhnb.core.preflight.env import check_environment
from mhnb.core.preflight.facts import HostFacts, HostProbe, Requirements
from mhnb.core.preflight.net import check_names, check_peers, check_ports
from mhnb.core.preflight.report import Cell, Column, Finding, Level, PreflightReport, most_common

__all__ = ["build_preflight_report"]

_OLDEST_PYTHON = (3, 11)
_OLDEST_JAX = (0, 10)
_MAX_CLOCK_OFFSET_S = 5.0
_MIN_FREE_NBYTES, _LOW_FREE_NBYTES = 16 << 20, 1 << 30

KnownHosts = dict[int, tuple[str, HostFacts]]
"""The hosts that replied: position -> name and facts."""


def build_preflight_report(probes: Sequence[HostProbe], requirements: Requirements) -> PreflightReport:
    """Build the report from the facts of all hosts.

    >>> build_preflight_report([HostProbe("a", HostFacts("a", "3.11.7"))], Requirements(devices=2)).failures[0].text
    'a has no jax for its Python 3.11.7'
    """
    known = {at: (probe.name, probe.facts) for at, probe in enumerate(probes) if probe.facts is not None}
    columns = [
        _check_login(probes),
        _check_python(known),
        _check_package(known, "jax"),
        _check_package(known, "mhnb", here=requirements.mhnb_version),
        _check_devices(known, requirements),
        *check_ports(probes, requirements),
        check_peers(probes),
        check_names(probes, requirements),
        _check_clock(probes),
        _check_disks(known),
    ]
    findings = [finding for column in columns for finding in column.findings]
    findings += [
        *_check_same_machine(known),
        *_check_jaxlib(known),
        *check_environment(probes, requirements),
        *_check_colocated_gpus(probes, requirements),
    ]
    return PreflightReport(
        hosts=tuple(look.name for look in probes),
        columns=tuple(column for column in columns if column.cells),
        findings=tuple(sorted(findings, key=lambda each: ("failure", "warning", "note").index(each.level))),
        addresses=tuple(None if look.facts is None else look.facts.address for look in probes),
        endpoints=requirements.addresses,
    )


def _check_login(probes: Sequence[HostProbe]) -> Column:
    # A check of this machine alone has no login.
    cells = {at: Cell("ok") for at, probe in enumerate(probes) if probe.clock_offset is not None}
    cells |= {at: Cell("failed", "failure") for at, look in enumerate(probes) if look.failure is not None}
    findings = []
    for look in probes:
        if look.failure is not None:
            # Leave out the log's name, because the log is removed after preflight.
            text, fix = (*str(look.failure).splitlines(), "")[:2]
            findings.append(Finding("failure", "login", (look.name,), text, fix.strip()))
    return Column("login", cells, tuple(findings))


def _leading_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (0, 10) of `0.10.2.dev3`."""
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts if part.isdecimal())


def _check_python(known: KnownHosts) -> Column:
    cells, findings = {}, []
    versions = {at: facts.python for at, (_, facts) in known.items()}
    most = ".".join(map(str, _leading_numbers(most_common(list(versions.values()))))) if versions else ""
    for at, (name, facts) in known.items():
        cells[at] = Cell(facts.python)
        text = ""
        if _leading_numbers(facts.python) < _OLDEST_PYTHON:
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


def _check_package(known: KnownHosts, package: str, *, here: str = "") -> Column:
    """Compare a package's versions across all hosts, and with the version here if both sides communicate through the package."""
    cells, findings = {}, []
    found = {at: facts.versions.get(package) for at, (_, facts) in known.items()}
    installed = [version for version in found.values() if version is not None]
    most = here or (most_common(installed) if installed else "")
    for at, (name, facts) in known.items():
        version = found[at]
        cells[at] = Cell(version or "none", None if version == most and version else "failure")
        pinned = f"{package}=={most}" if most else package
        fix = f"on {name}: {facts.executable or 'python'} -m pip install '{pinned}'"
        if version is None:
            text = f"{name} has no {package} for its Python {facts.executable or facts.python}"
            findings.append(
                Finding("failure", package, (name,), text, f"{fix}; or name the Python, venv or conda that has it")
            )
        elif version != most:
            where = "here" if here else "elsewhere"
            why = (
                "they would not understand each other"
                if here
                else "JAX does not notice, and ranks of two versions fail or hang"
            )
            text = f"{name} has {package} {version}, and {most} is {where}: {why}"
            findings.append(Finding("failure", package, (name,), text, fix))
        elif package == "jax" and _leading_numbers(version) < _OLDEST_JAX:
            cells[at] = Cell(version, "failure")
            findings.append(
                Finding(
                    "failure",
                    package,
                    (name,),
                    f"{name} has jax {version}, and mhnb needs 0.10 or newer",
                    fix.replace("==", ">="),
                )
            )
    return Column(package, cells, tuple(findings))


def _check_jaxlib(known: KnownHosts) -> Iterator[Finding]:
    """Check jaxlib, which has no column of its own, wherever jax is installed."""
    for finding in _check_package(known, "jaxlib").findings:
        if not any(known[at][1].versions.get("jax") is None for at in known if known[at][0] in finding.hosts):
            yield finding


def _check_devices(known: KnownHosts, requirements: Requirements) -> Column:
    cells, findings = {}, []
    kinds = {at: _describe_devices(facts, requirements) for at, (_, facts) in known.items()}
    most = most_common(list(kinds.values())) if kinds else ""
    for at, (name, facts) in known.items():
        # The finding has room for the kind; the cell does not.
        shown = kinds[at].partition(" (")[0]
        text = fix = ""
        if kinds[at] != most:
            text = f"{name} has {kinds[at]}, and elsewhere there are {most}: every rank must have as many devices, of the same kind"
            fix = "leave that host out, or choose devices with CUDA_VISIBLE_DEVICES"
        elif requirements.devices is None and facts.gpus and len(facts.gpus) % requirements.ranks_per_host:
            text = f"{name} has {shown} for {requirements.ranks_per_host} ranks: they cannot be shared out equally"
            fix = f"start 1 or {len(facts.gpus)} ranks per host"
        cells[at] = Cell(shown, "failure" if text else None)
        if text:
            findings.append(Finding("failure", "devices", (name,), text, fix))
    return Column("devices", cells, (*findings, *_check_shared_gpus(known)))


def _describe_devices(facts: HostFacts, requirements: Requirements) -> str:
    """Format number and kind, such as `2 gpu (NVIDIA H200)`."""
    if requirements.devices is not None:
        return f"{requirements.devices} cpu"
    if facts.gpus:
        # A GPU that is known only by its device file has no kind.
        names = sorted({gpu.name for gpu in facts.gpus if gpu.uuid})
        return f"{len(facts.gpus)} gpu" + (f" ({', '.join(names)})" if names else "")
    return f"{facts.tpus} tpu" if facts.tpus else "1 cpu"


def _check_shared_gpus(known: KnownHosts) -> Iterator[Finding]:
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


def _check_colocated_gpus(probes: Sequence[HostProbe], requirements: Requirements) -> Iterator[Finding]:
    """Check that tasks on one machine have different GPUs, because JAX ends them otherwise: `Duplicate GPU detected`."""
    for probe in probes:
        tasks = [probe.facts, *probe.colocated] if probe.facts is not None and requirements.devices is None else []
        uuids = [gpu.uuid for facts in tasks for gpu in facts.gpus if gpu.uuid]
        if twice := sorted({uuid for uuid in uuids if uuids.count(uuid) > 1}):
            yield Finding(
                "failure", "devices", (probe.name,), f"{len(tasks)} tasks on {probe.name} have the same GPU ({twice[0]})",
                "start one task there, with --per-host for its ranks and share_gpus; or have the launcher give each its own: gpus_per_rank",
            )  # fmt: skip


def _check_same_machine(known: KnownHosts) -> Iterator[Finding]:
    """Check that no machine has two names: they would start two ranks for one host, with the same GPUs."""
    first: dict[tuple[str, str, str], str] = {}
    for name, facts in known.values():
        machine = (facts.boot_id, facts.hostname, facts.address)
        other = first.setdefault(machine, name)
        if facts.boot_id and other != name:
            yield Finding(
                "failure", "hosts", (name,), f"{other} and {name} are the same machine ({facts.hostname}, {facts.address})",
                "name it once; --per-host starts several ranks on a host",
            )  # fmt: skip


def _check_clock(probes: Sequence[HostProbe]) -> Column:
    cells, findings = {}, []
    for at, probe in enumerate(probes):
        if probe.clock_offset is None:
            continue
        ahead_s, error_s = probe.clock_offset
        off = abs(ahead_s) - error_s > _MAX_CLOCK_OFFSET_S
        cells[at] = Cell(f"{ahead_s:+.1f} s", "warning" if off else None)
        if off:
            way = "ahead of" if ahead_s > 0 else "behind"
            text = (
                f"{probe.name}'s clock is {abs(ahead_s):.0f} s {way} this one: the times in its logs are off, "
                "and cloud storage refuses what is signed so; ranks do not mind"
            )
            findings.append(
                Finding("warning", "clock", (probe.name,), text, f"on {probe.name}: timedatectl set-ntp true")
            )
    return Column("clock", cells, tuple(findings))


def _check_disks(known: KnownHosts) -> Column:
    cells, findings = {}, []
    for at, (name, facts) in known.items():
        level: Level | None = None
        for disk in facts.disks:
            free = f"{disk.free_nbytes >> 20} MB"
            is_full = bool(disk.error) or disk.free_nbytes < _MIN_FREE_NBYTES
            if is_full:
                text = f"{name} cannot write {disk.purpose} to {disk.folder}: {disk.error or f'{free} free'}"
                fix = "make room there" + (
                    ", or choose another folder by MHNB_HOME here, by TMPDIR on a host"
                    if disk.purpose == "logs"
                    else ""
                )
                findings.append(Finding("failure", "disk", (name,), text, fix))
                level = "failure"
            elif disk.free_nbytes < _LOW_FREE_NBYTES and disk.purpose == "logs":
                findings.append(
                    Finding(
                        "warning",
                        "disk",
                        (name,),
                        f"{name} has {free} left for {disk.purpose} in {disk.folder}",
                        "make room there",
                    )
                )
                level = level or "warning"
        logs = next((disk for disk in facts.disks if disk.purpose == "logs"), None)
        if logs is not None:
            cells[at] = Cell(
                f"{logs.free_nbytes / 1e9:.0f} GB" if logs.free_nbytes >= 1e9 else f"{logs.free_nbytes >> 20} MB", level
            )
    return Column("disk", cells, tuple(findings))
