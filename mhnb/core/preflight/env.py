"""Preflight checks of inherited environment variables: those that end, hang or silently change a program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from mhnb.core.preflight.facts import HostFacts, HostLook, Wanted
from mhnb.core.preflight.report import Finding, join_hosts, usual
from mhnb.core.reach.environment import find_forced_devices

__all__ = ["check_environment"]

_PROXIES = ("grpc_proxy", "http_proxy", "https_proxy", "all_proxy")
_HARMLESS = re.compile(r"_DIR$|_PATH$|CACHE|LOG|DEBUG|TRACEBACK|DUMP")
"""Variables that may differ: those for paths, logging and debugging."""
_FLAG = re.compile(r"--(\w+)(?:=(\S+))?")


def check_environment(looks: Sequence[HostLook], wanted: Wanted) -> list[Finding]:
    """Return findings about the hosts' own variables and their effect on a cluster.

    >>> check_environment([HostLook("a", HostFacts("a", "3.11", environment={"XLA_FLAGS": "--x=1"}))], Wanted())
    []
    """
    known = {look.name: look.facts for look in looks if look.facts is not None}
    findings = [*_differences(known), *_pool(wanted)]
    for name, facts in known.items():
        findings += [*_flags(name, facts, wanted), *_seed(name, facts), *_proxies(name, facts, known)]
    return findings


def _differences(known: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Compare the hosts' variables for JAX and XLA: compiled with other settings, the same program becomes a different one."""
    variables = sorted(
        {name for facts in known.values() for name in facts.environment if name.startswith(("JAX_", "XLA_"))}
    )
    for variable in variables:
        values = {host: facts.environment.get(variable, "") for host, facts in known.items()}
        if len(set(values.values())) == 1 or _HARMLESS.search(variable):
            continue
        most = usual(list(values.values()))
        others = [host for host, value in values.items() if value != most]
        yield Finding(
            "failure", "environment", tuple(others),
            f"{variable} is {', '.join(f'{values[host]!r} on {host}' for host in others)}, and {most!r} elsewhere: "
            "ranks that compile differently can meet in different collectives",
            f"set {variable} in the shell's start-up files of every host alike, or in none",
        )  # fmt: skip


def _flags(name: str, facts: HostFacts, wanted: Wanted) -> Iterator[Finding]:
    if facts.unknown_flags:
        flags = ", ".join(f"--{flag}" for flag in facts.unknown_flags)
        yield Finding(
            "failure", "environment", (name,),
            f"XLA_FLAGS on {name} has {flags}, which its jaxlib {facts.versions.get('jaxlib')} does not know: every rank would abort",
            "take it out of XLA_FLAGS",
        )  # fmt: skip
    given: dict[str, str] = {}
    for flag, value in _FLAG.findall(facts.environment.get("XLA_FLAGS", "")):
        if given.setdefault(flag, value) != value:
            yield Finding(
                "warning", "environment", (name,),
                f"XLA_FLAGS on {name} has --{flag} twice, as {given[flag]} and as {value}: the last one holds",
                "keep one of them",
            )  # fmt: skip
    forced = find_forced_devices(facts.environment.get("XLA_FLAGS", ""))
    if forced is not None and wanted.devices not in (None, forced):
        yield Finding(
            "warning", "environment", (name,),
            f"XLA_FLAGS on {name} asks for {forced} CPU devices, and {wanted.devices} were asked for here",
            f"each rank gets {wanted.devices}; take --xla_force_host_platform_device_count out of XLA_FLAGS",
        )  # fmt: skip


def _pool(wanted: Wanted) -> Iterator[Finding]:
    """Check the thread pool: if devices that wait for each other use all its threads, correct programs deadlock."""
    devices = wanted.devices or 1
    if devices > 1 and wanted.pool.isdecimal() and int(wanted.pool) <= devices:
        yield Finding(
            "failure", "environment", (),
            f"PJRT_NPROC is {wanted.pool} here, and ranks of {devices} devices that wait for each other would hang with it",
            "take it out of the environment of this notebook; mhnb chooses one that suffices",
        )  # fmt: skip


def _seed(name: str, facts: HostFacts) -> Iterator[Finding]:
    seed = facts.environment.get("PYTHONHASHSEED", "")
    if seed and not seed.isdecimal():
        yield Finding(
            "note", "environment", (name,),
            f"PYTHONHASHSEED is {seed!r} on {name}: sets of strings would have another order on every rank",
            "mhnb sets it to 0 for the ranks",
        )  # fmt: skip


def _proxies(name: str, facts: HostFacts, known: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Check for proxies, because gRPC sends JAX's coordination through a proxy that is set, and fails there."""
    given = [variable for variable in _PROXIES if facts.environment.get(variable)]
    spared = facts.environment.get("no_proxy", "").split(",")
    others = [each.address for each in known.values()]
    if given and not set(others) <= set(spared) and "*" not in spared:
        yield Finding(
            "note", "environment", (name,),
            f"{join_hosts(given)} {'is' if len(given) == 1 else 'are'} set on {name}, "
            "and the cluster's own addresses are not in its no_proxy",
            "mhnb keeps the cluster's own addresses off the proxy for the ranks",
        )  # fmt: skip
