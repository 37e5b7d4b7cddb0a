"""Preflight checks from reported facts alone, with a fix for each fault.

A failure would end, hang or silently corrupt a start; a warning would not. Nothing here contacts a machine.
Environment variables that ranks would inherit are checked if they can end, hang or silently change a program. On the network,
ports must be free and reachable, and names must resolve to reachable addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set

from mhnb.core.launch.environment import find_forced_devices
from mhnb.core.preflight_facts import (
    Column,
    Endpoint,
    Finding,
    HostChecks,
    HostFacts,
    Level,
    PreflightReport,
    ReportCell,
    Requirements,
    is_loopback,
    join_hosts,
    most_common,
)

_ENDPOINT_NAMES = {
    "coordinator": "JAX's coordinator",
    "hub": "ipyparallel's hub",
    "link": "this notebook",
}
_CAUSES = {
    "no answer": "a firewall that drops packets, or a wrong address",
    "connection refused": "a firewall that rejects",
    "another program answers": "the address leads to another machine or program, as behind a proxy or NAT",
}


def check_ports(hosts: Sequence[HostChecks], requirements: Requirements) -> list[Column]:
    """Check that each endpoint's port is free and reachable from every host.

    >>> link = Endpoint("link", None, "10.0.0.9", 7000)
    >>> check_ports([HostChecks("a", connect_errors={"link": ""})], Requirements((link,)))[0].cells[0].text
    'ok'
    """
    return [_check_port(hosts, endpoint) for endpoint in requirements.endpoints]


def _check_port(hosts: Sequence[HostChecks], endpoint: Endpoint) -> Column:
    header = f"port {endpoint.port}" if endpoint.name == "coordinator" else endpoint.name
    owner = None if endpoint.host is None else hosts[endpoint.host]
    if owner is not None and (why := owner.listen_errors.get(endpoint.name)):
        finding = Finding(
            "failure", endpoint.name, (owner.name,),
            f"{owner.name} cannot listen at {endpoint.address}:{endpoint.port} for {_ENDPOINT_NAMES[endpoint.name]}: {why}",
            f"stop the process that uses the port (find it on {owner.name}: ss -ltnp 'sport = :{endpoint.port}'), or choose another port",
        )  # fmt: skip
        cells = {} if endpoint.host is None else {endpoint.host: ReportCell("taken", "failure")}
        return Column(header, cells, (finding,))
    cells = {
        at: ReportCell("ok") if not why else ReportCell(why, "failure")
        for at, host in enumerate(hosts)
        if (why := host.connect_errors.get(endpoint.name)) is not None
    }
    owner_name = "this machine" if owner is None else owner.name
    faulty = _group_by_error(hosts, endpoint.name)
    return Column(
        header,
        cells,
        tuple(_report_unreached(hosts, names, why, endpoint, owner_name) for why, names in faulty.items()),
    )


def _group_by_error(hosts: Sequence[HostChecks], name: str) -> dict[str, list[str]]:
    """Return why a target cannot be reached -> from which hosts."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        if why := host.connect_errors.get(name):
            found.setdefault(why, []).append(host.name)
    return found


def _report_unreached(
    hosts: Sequence[HostChecks], names: list[str], why: str, endpoint: Endpoint, owner: str
) -> Finding:
    cause = f" ({_CAUSES[why]})" if why in _CAUSES else ""
    where = f"{owner} at {endpoint.address}:{endpoint.port}"
    text = f"{join_hosts(names)} cannot reach {_ENDPOINT_NAMES[endpoint.name]} on {where}: {why}{cause}"
    fix = f"open TCP port {endpoint.port} in the firewall of {owner} for the cluster's hosts"
    fix += "" if endpoint.is_port_given else ", or choose a port that is open"
    seen = sorted({host.login_address for host in hosts if host.name in names} - {"", endpoint.address})
    if endpoint.host is None and seen:
        fix += (
            f"; the login came from {join_hosts(seen)}, so there is a jump host or NAT between: "
            "pass an address of this machine that the hosts can reach, such as --address 10.0.0.1"
        )
    return Finding("failure", endpoint.name, tuple(names), text, fix)


def check_peers(hosts: Sequence[HostChecks]) -> Column:
    """Check that hosts reach each other at system-assigned ports, for CPU collectives.

    >>> check_peers([HostChecks("a", connect_errors={"peer 1": "no answer"}), HostChecks("b")]).cells[0].text
    'not b'
    """
    cells: dict[int, ReportCell] = {}
    closed: dict[str, dict[int, list[str]]] = {}
    for at, host in enumerate(hosts):
        tried = {int(name.split()[1]): why for name, why in host.connect_errors.items() if name.startswith("peer ")}
        missing = [hosts[other].name for other, why in tried.items() if why]
        if tried:
            cells[at] = ReportCell(f"not {join_hosts(missing)}", "failure") if missing else ReportCell("ok")
        for other, why in tried.items():
            if why:
                closed.setdefault(why, {}).setdefault(other, []).append(host.name)
    findings = tuple(_report_unreachable_peers(hosts, why, pairs) for why, pairs in closed.items())
    return Column("peers", cells, findings)


def _report_unreachable_peers(hosts: Sequence[HostChecks], why: str, pairs: Mapping[int, Sequence[str]]) -> Finding:
    """Report the unreachable hosts, each with the hosts that cannot reach it."""
    others = sum(host.facts is not None for host in hosts) - 1
    from_where = {
        at: "any other host" if len(names) == others > 1 else join_hosts(names) for at, names in pairs.items()
    }
    return Finding(
        "failure", "peers", tuple(hosts[at].name for at in pairs),
        "; ".join(f"{hosts[at].name} cannot be reached from {where}" for at, where in from_where.items())
        + f": {why}. CPU collectives connect all pairs of hosts, on ports that the system chooses",
        "allow all TCP traffic between the cluster's hosts in their firewalls",
    )  # fmt: skip


def check_names(hosts: Sequence[HostChecks]) -> Column:
    """Check that each host's own name resolves to a reachable address.

    >>> check_names([]).header
    'name→address'
    """
    cells: dict[int, ReportCell] = {}
    findings: list[Finding] = []
    for at, host in enumerate(hosts):
        if host.facts is None:
            continue
        own = host.facts.name_addresses
        if not own:
            cells[at] = ReportCell("unknown", "warning")
            text = f"{host.name} cannot resolve its own name {host.facts.hostname!r} ({host.facts.name_error})"
            findings.append(_report_unusable_name(host, text))
        elif all(map(is_loopback, own)) and not is_loopback(host.address):
            cells[at] = ReportCell(own[0], "warning")
            findings.append(_report_unusable_name(host, f"{host.name}'s name resolves to loopback"))
        else:
            cells[at] = ReportCell(next((each for each in own if not is_loopback(each)), own[0]))
    return Column("name→address", cells, tuple(findings))


def _report_unusable_name(host: HostChecks, what: str) -> Finding:
    return Finding(
        "warning", "name→address", (host.name,),
        f"{what}, so other ranks cannot use it to reach that host for CPU collectives",
        f"mhnb will use {host.address} instead; to fix it, edit /etc/hosts on {host.name}",
    )  # fmt: skip


# -- preflight checks of inherited environment variables: those that end, hang or silently change a program


_PROXIES = ("grpc_proxy", "http_proxy", "https_proxy", "all_proxy")
_IGNORED = re.compile(r"_DIR$|_PATH$|CACHE|LOG|DEBUG|TRACEBACK|DUMP")
"""Variables that may differ: those for paths, logging and debugging."""
_FLAG = re.compile(r"--(\w+)(?:=(\S+))?")


def check_environment(hosts: Sequence[HostChecks], requirements: Requirements) -> list[Finding]:
    """Return findings about the hosts' environment variables that affect a cluster.

    >>> check_environment([HostChecks("a", facts=HostFacts("a", "3.11", environment={"XLA_FLAGS": "--x=1"}))], Requirements())
    []
    """
    known = {host.name: host.facts for host in hosts if host.facts is not None}
    addresses = {host.address for host in hosts if host.facts is not None}
    findings = [*_check_differences(known), *_check_pool(requirements)]
    for name, facts in known.items():
        findings += [*_check_xla_flags(name, facts, requirements), *_check_proxies(name, facts, addresses)]
    return findings


def _check_differences(known: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Compare hosts' JAX and XLA variables, because they change what is compiled."""
    variables = sorted(
        {name for facts in known.values() for name in facts.environment if name.startswith(("JAX_", "XLA_"))}
    )
    for variable in variables:
        values = {host: facts.environment.get(variable, "") for host, facts in known.items()}
        if len(set(values.values())) == 1 or _IGNORED.search(variable):
            continue
        most = most_common(list(values.values()))
        others = [host for host, value in values.items() if value != most]
        yield Finding(
            "failure", "environment", tuple(others),
            f"{variable} is {', '.join(f'{values[host]!r} on {host}' for host in others)}, but {most!r} on the other hosts: "
            "ranks that compile differently can meet in different collectives",
            f"set {variable} to the same value in the shell's start-up files of every host, or remove it there",
        )  # fmt: skip


def _check_xla_flags(name: str, facts: HostFacts, requirements: Requirements) -> Iterator[Finding]:
    if facts.unknown_flags:
        flags = ", ".join(f"--{flag}" for flag in facts.unknown_flags)
        yield Finding(
            "failure", "environment", (name,),
            f"XLA_FLAGS on {name} has {flags}, which its jaxlib {facts.versions.get('jaxlib')} does not know, so every rank would abort",
            "remove it from XLA_FLAGS",
        )  # fmt: skip
    first_values: dict[str, str] = {}
    for flag, value in _FLAG.findall(facts.environment.get("XLA_FLAGS", "")):
        if first_values.setdefault(flag, value) != value:
            yield Finding(
                "warning", "environment", (name,),
                f"XLA_FLAGS on {name} has --{flag} twice, as {first_values[flag]} and as {value}: the last one is used",
                "keep one of them",
            )  # fmt: skip
    forced = find_forced_devices(facts.environment.get("XLA_FLAGS", ""))
    if forced is not None and requirements.devices not in (None, forced):
        yield Finding(
            "warning", "environment", (name,),
            f"XLA_FLAGS on {name} requests {forced} CPU devices, but this start requests {requirements.devices}",
            f"each rank gets {requirements.devices}; remove --xla_force_host_platform_device_count from XLA_FLAGS",
        )  # fmt: skip


def _check_pool(requirements: Requirements) -> Iterator[Finding]:
    """Check the thread pool: correct programs deadlock if devices occupy every thread."""
    devices = requirements.devices or 1
    if devices > 1 and requirements.pjrt_nproc.isdecimal() and int(requirements.pjrt_nproc) <= devices:
        yield Finding(
            "failure", "environment", (),
            f"PJRT_NPROC is {requirements.pjrt_nproc} here, with which ranks of {devices} devices would deadlock",
            "unset it in this notebook's environment; mhnb chooses a suitable value",
        )  # fmt: skip


def _check_proxies(name: str, facts: HostFacts, addresses: Set[str]) -> Iterator[Finding]:
    """Check for proxies, through which gRPC would send JAX's coordination and fail."""
    given = [variable for variable in _PROXIES if facts.environment.get(variable)]
    excluded = facts.environment.get("no_proxy", "").split(",")
    if given and not addresses <= set(excluded) and "*" not in excluded:
        yield Finding(
            "note", "environment", (name,),
            f"{join_hosts(given)} {'is' if len(given) == 1 else 'are'} set on {name}, "
            "but the cluster's own addresses are not in its no_proxy",
            "mhnb excludes the cluster's own addresses from the proxy for the ranks",
        )  # fmt: skip


# -- compute preflight findings from facts alone: one column per check, and a fix for each fault


_OLDEST_PYTHON = (3, 11)
_OLDEST_JAX = (0, 10)
_MAX_CLOCK_OFFSET_S = 5.0
_MIN_FREE_NBYTES, _LOW_FREE_NBYTES = 16 << 20, 1 << 30

KnownHosts = dict[int, tuple[str, HostFacts]]
"""The hosts that replied: position -> name and facts."""


def build_preflight_report(hosts: Sequence[HostChecks], requirements: Requirements) -> PreflightReport:
    """Build the report from the facts of all hosts.

    >>> build_preflight_report([HostChecks("a", facts=HostFacts("a", "3.11.7"))], Requirements(devices=2)).failures[0].text
    'jax is not installed on a for Python 3.11.7'
    """
    known = {at: (host.name, host.facts) for at, host in enumerate(hosts) if host.facts is not None}
    columns = [
        _check_login(hosts),
        _check_python(known),
        _check_package(known, "jax"),
        _check_package(known, "mhnb", here=requirements.mhnb_version),
        _check_devices(known, requirements),
        *check_ports(hosts, requirements),
        check_peers(hosts),
        check_names(hosts),
        _check_clock(hosts),
        _check_disks(known),
    ]
    findings = [finding for column in columns for finding in column.findings]
    findings += [
        *_check_same_machine(hosts),
        *_check_jaxlib(known),
        *check_environment(hosts, requirements),
        *_check_colocated_gpus(hosts, requirements),
    ]
    return PreflightReport(
        hosts=tuple(host.name for host in hosts),
        columns=tuple(column for column in columns if column.cells),
        findings=tuple(sorted(findings, key=lambda each: ("failure", "warning", "note").index(each.level))),
    )


def _check_login(hosts: Sequence[HostChecks]) -> Column:
    # A check of this machine alone has no login.
    cells = {at: ReportCell("ok") for at, host in enumerate(hosts) if host.clock_offset is not None}
    cells |= {at: ReportCell("failed", "failure") for at, host in enumerate(hosts) if host.failure is not None}
    findings = []
    for host in hosts:
        if host.failure is not None:
            # Leave out the log's name, because the log is removed after preflight.
            text, fix = (*str(host.failure).splitlines(), "")[:2]
            findings.append(Finding("failure", "login", (host.name,), text, fix.strip()))
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
        cells[at] = ReportCell(facts.python)
        text = ""
        if _leading_numbers(facts.python) < _OLDEST_PYTHON:
            text = f"{name} has Python {facts.python} ({facts.executable}), but mhnb needs 3.11 or newer"
        elif not f"{facts.python}.".startswith(f"{most}."):
            text = (
                f"{name} has Python {facts.python}, the other hosts have {most}: they may not be able to exchange data"
            )
        if text:
            cells[at] = ReportCell(facts.python, "failure")
            findings.append(
                Finding(
                    "failure",
                    "python",
                    (name,),
                    text,
                    f"use --python, --venv or --conda to choose the same version on {name} as on the other hosts",
                )
            )
    return Column("python", cells, tuple(findings))


def _check_package(known: KnownHosts, package: str, *, here: str = "") -> Column:
    """Compare a package's versions on all hosts, and with `here` if given."""
    cells, findings = {}, []
    found = {at: facts.versions.get(package) for at, (_, facts) in known.items()}
    installed = [version for version in found.values() if version is not None]
    most = here or (most_common(installed) if installed else "")
    for at, (name, facts) in known.items():
        version = found[at]
        cells[at] = ReportCell(version or "none", None if version == most and version else "failure")
        pinned = f"{package}=={most}" if most else package
        fix = f"on {name}: {facts.executable or 'python'} -m pip install '{pinned}'"
        if version is None:
            text = f"{package} is not installed on {name} for Python {facts.executable or facts.python}"
            findings.append(
                Finding(
                    "failure",
                    package,
                    (name,),
                    text,
                    f"{fix}; or choose a Python that has it with --python, --venv or --conda",
                )
            )
        elif version != most:
            where = "this notebook has" if here else "the other hosts have"
            why = (
                "they could not communicate"
                if here
                else "JAX does not check this, and ranks with different versions fail or hang"
            )
            text = f"{name} has {package} {version}, {where} {most}: {why}"
            findings.append(Finding("failure", package, (name,), text, fix))
        elif package == "jax" and _leading_numbers(version) < _OLDEST_JAX:
            cells[at] = ReportCell(version, "failure")
            findings.append(
                Finding(
                    "failure",
                    package,
                    (name,),
                    f"{name} has jax {version}, but mhnb needs 0.10 or newer",
                    fix.replace("==", ">="),
                )
            )
    return Column(package, cells, tuple(findings))


def _check_jaxlib(known: KnownHosts) -> Iterator[Finding]:
    """Check jaxlib, without a column of its own, wherever jax is installed."""
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
            text = f"{name} has {kinds[at]}, the other hosts have {most}. Every rank needs the same number and kind of devices"
            fix = "leave that host out, or choose devices with CUDA_VISIBLE_DEVICES"
        elif requirements.devices is None and facts.gpus and len(facts.gpus) % requirements.ranks_per_host:
            text = f"{name} has {shown} for {requirements.ranks_per_host} ranks: they cannot be divided equally"
            fix = f"start 1 or {len(facts.gpus)} ranks per host"
        cells[at] = ReportCell(shown, "failure" if text else None)
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
    """Check that containers share no GPU: NCCL fails with `Duplicate GPU detected`."""
    first: dict[str, str] = {}
    for name, facts in known.values():
        shared = [gpu for gpu in facts.gpus if gpu.uuid and first.setdefault(gpu.uuid, name) != name]
        if shared:
            yield Finding(
                "failure", "devices", (first[shared[0].uuid], name),
                f"{first[shared[0].uuid]} and {name} have the same GPU ({shared[0].uuid})",
                "give each container its own GPUs, or use only one of these hosts",
            )  # fmt: skip


def _check_colocated_gpus(hosts: Sequence[HostChecks], requirements: Requirements) -> Iterator[Finding]:
    """Check that tasks share no GPU: JAX fails with `Duplicate GPU detected`."""
    for host in hosts:
        tasks = [host.facts, *host.colocated] if host.facts is not None and requirements.devices is None else []
        uuids = [gpu.uuid for facts in tasks for gpu in facts.gpus if gpu.uuid]
        if twice := sorted({uuid for uuid in uuids if uuids.count(uuid) > 1}):
            yield Finding(
                "failure", "devices", (host.name,), f"{len(tasks)} tasks on {host.name} have the same GPU ({twice[0]})",
                "start one task there with --per-host and --set share_gpus=True; or give each task its own GPU: --set gpus_per_rank=1",
            )  # fmt: skip


def _check_same_machine(hosts: Sequence[HostChecks]) -> Iterator[Finding]:
    """Check that no machine has two names, which would start ranks twice."""
    first: dict[tuple[str, str, str], str] = {}
    for host in hosts:
        if host.facts is None or not host.facts.boot_id:
            continue
        other = first.setdefault((host.facts.boot_id, host.facts.hostname, host.address), host.name)
        if other != host.name:
            yield Finding(
                "failure", "hosts", (host.name,),
                f"{other} and {host.name} are the same machine ({host.facts.hostname}, {host.address})",
                "name it once; --per-host starts several ranks on a host",
            )  # fmt: skip


def _check_clock(hosts: Sequence[HostChecks]) -> Column:
    cells, findings = {}, []
    for at, host in enumerate(hosts):
        if host.clock_offset is None:
            continue
        ahead_s, error_s = host.clock_offset
        off = abs(ahead_s) - error_s > _MAX_CLOCK_OFFSET_S
        cells[at] = ReportCell(f"{ahead_s:+.1f} s", "warning" if off else None)
        if off:
            way = "ahead of" if ahead_s > 0 else "behind"
            text = (
                f"{host.name}'s clock is {abs(ahead_s):.0f} s {way} this one: the times in its logs are wrong, "
                "and cloud storage may reject its requests; ranks are not affected"
            )
            findings.append(
                Finding("warning", "clock", (host.name,), text, f"on {host.name}: timedatectl set-ntp true")
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
                fix = "free space there" + (
                    ", or choose another folder with MHNB_HOME here or TMPDIR on the host"
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
                        "free space there",
                    )
                )
                level = level or "warning"
        logs = next((disk for disk in facts.disks if disk.purpose == "logs"), None)
        if logs is not None:
            cells[at] = ReportCell(
                f"{logs.free_nbytes / 1e9:.0f} GB" if logs.free_nbytes >= 1e9 else f"{logs.free_nbytes >> 20} MB", level
            )
    return Column("disk", cells, tuple(findings))
