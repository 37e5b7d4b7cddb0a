"""Preflight checks of inherited environment variables: those that end, hang or silently change a program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from mhnb.core.preflight.facts import HostFacts, HostProbe, Requirements
from mhnb.core.preflight.report import Finding, join_hosts, most_common
from mhnb.core.reach.environment import find_forced_devices

__all__ = ["check_environment"]

_PROXIES = ("grpc_proxy", "http_proxy", "https_proxy", "all_proxy")
_IGNORED = re.compile(r"_DIR$|_PATH$|CACHE|LOG|DEBUG|TRACEBACK|DUMP")
"""Variables that may differ: those for paths, logging and debugging."""
_FLAG = re.compile(r"--(\w+)(?:=(\S+))?")


def check_environment(probes: Sequence[HostProbe], requirements: Requirements) -> list[Finding]:
    """Return findings about the hosts' own variables and their effect on a cluster.

    >>> check_environment([HostProbe("a", HostFacts("a", "3.11", environment={"XLA_FLAGS": "--x=1"}))], Requirements())
    []
    """
    known = {probe.name: probe.facts for probe in probes if probe.facts is not None}
    findings = [*_check_differences(known), *_check_pool(requirements)]
    for name, facts in known.items():
        findings += [
            *_check_xla_flags(name, facts, requirements),
            *_check_hash_seed(name, facts),
            *_check_proxies(name, facts, known),
        ]
    return findings


def _check_differences(known: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Compare the hosts' variables for JAX and XLA: compiled with other settings, the same program becomes a different one."""
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
            f"{variable} is {', '.join(f'{values[host]!r} on {host}' for host in others)}, and {most!r} elsewhere: "
            "ranks that compile differently can meet in different collectives",
            f"set {variable} in the shell's start-up files of every host alike, or in none",
        )  # fmt: skip


def _check_xla_flags(name: str, facts: HostFacts, requirements: Requirements) -> Iterator[Finding]:
    if facts.unknown_flags:
        flags = ", ".join(f"--{flag}" for flag in facts.unknown_flags)
        yield Finding(
            "failure", "environment", (name,),
            f"XLA_FLAGS on {name} has {flags}, which its jaxlib {facts.versions.get('jaxlib')} does not know: every rank would abort",
            "take it out of XLA_FLAGS",
        )  # fmt: skip
    first_values: dict[str, str] = {}
    for flag, value in _FLAG.findall(facts.environment.get("XLA_FLAGS", "")):
        if first_values.setdefault(flag, value) != value:
            yield Finding(
                "warning", "environment", (name,),
                f"XLA_FLAGS on {name} has --{flag} twice, as {first_values[flag]} and as {value}: the last one holds",
                "keep one of them",
            )  # fmt: skip
    forced = find_forced_devices(facts.environment.get("XLA_FLAGS", ""))
    if forced is not None and requirements.devices not in (None, forced):
        yield Finding(
            "warning", "environment", (name,),
            f"XLA_FLAGS on {name} asks for {forced} CPU devices, and {requirements.devices} were asked for here",
            f"each rank gets {requirements.devices}; take --xla_force_host_platform_device_count out of XLA_FLAGS",
        )  # fmt: skip


def _check_pool(requirements: Requirements) -> Iterator[Finding]:
    """Check the thread pool: if devices that wait for each other use all its threads, correct programs deadlock."""
    devices = requirements.devices or 1
    if devices > 1 and requirements.pjrt_nproc.isdecimal() and int(requirements.pjrt_nproc) <= devices:
        yield Finding(
            "failure", "environment", (),
            f"PJRT_NPROC is {requirements.pjrt_nproc} here, and ranks of {devices} devices that wait for each other would hang with it",
            "take it out of the environment of this notebook; mhnb chooses one that suffices",
        )  # fmt: skip


def _check_hash_seed(name: str, facts: HostFacts) -> Iterator[Finding]:
    seed = facts.environment.get("PYTHONHASHSEED", "")
    if seed and not seed.isdecimal():
        yield Finding(
            "note", "environment", (name,),
            f"PYTHONHASHSEED is {seed!r} on {name}: sets of strings would have another order on every rank",
            "mhnb sets it to 0 for the ranks",
        )  # fmt: skip


def _check_proxies(name: str, facts: HostFacts, known: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Check for proxies, because gRPC sends JAX's coordination through a proxy that is set, and fails there."""
    given = [variable for variable in _PROXIES if facts.environment.get(variable)]
    excluded = facts.environment.get("no_proxy", "").split(",")
    others = [each.address for each in known.values()]
    if given and not set(others) <= set(excluded) and "*" not in excluded:
        yield Finding(
            "note", "environment", (name,),
            f"{join_hosts(given)} {'is' if len(given) == 1 else 'are'} set on {name}, "
            "and the cluster's own addresses are not in its no_proxy",
            "mhnb keeps the cluster's own addresses off the proxy for the ranks",
        )  # fmt: skip
