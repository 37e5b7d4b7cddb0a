"""Preflight checks of the network: ports must be free and reachable, and names must resolve to reachable addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhnb.core.preflight.facts import Endpoint, HostProbe, Requirements, is_loopback
from mhnb.core.preflight.report import Cell, Column, Finding, join_hosts

__all__ = ["check_names", "check_peers", "check_ports"]

_ENDPOINT_NAMES = {
    "coordinator": "JAX's coordinator",
    "hub": "ipyparallel's hub",
    "link": "this notebook",
}
_CAUSES = {
    "no answer": "a firewall that drops packets, or a wrong address",
    "connection refused": "a firewall that rejects",
    "somebody else answers": "the address leads to another machine or program, as behind a proxy or NAT",
}


def check_ports(probes: Sequence[HostProbe], requirements: Requirements) -> list[Column]:
    """Check that each endpoint's port is free where it is to listen, and reachable from every host.

    >>> check_ports([HostProbe("a", connect_errors={"link": ""})], Requirements((Endpoint("link", None),)))[0].cells[0].text
    'ok'
    """
    return [_check_port(probes, endpoint, requirements) for endpoint in requirements.endpoints]


def _check_port(probes: Sequence[HostProbe], endpoint: Endpoint, requirements: Requirements) -> Column:
    address, port = requirements.addresses.get(endpoint.name, ("", endpoint.port))
    header = f"port {port}" if endpoint.name == "coordinator" and port else endpoint.name
    listen_errors, owner = requirements.listen_errors, "this machine"
    if endpoint.host is not None:
        listen_errors, owner = probes[endpoint.host].listen_errors, probes[endpoint.host].name
    if why := listen_errors.get(endpoint.name):
        finding = Finding(
            "failure", endpoint.name, (owner,), f"{owner} cannot listen at {address}:{port} for {_ENDPOINT_NAMES[endpoint.name]}: {why}",
            f"end what holds the port ({owner}: ss -ltnp 'sport = :{port}'), or choose another one",
        )  # fmt: skip
        cells = {} if endpoint.host is None else {endpoint.host: Cell("taken", "failure")}
        return Column(header, cells, (finding,))
    cells = {
        at: Cell("ok") if not why else Cell(why, "failure")
        for at, probe in enumerate(probes)
        if (why := probe.connect_errors.get(endpoint.name)) is not None
    }
    faulty = _group_by_error(probes, endpoint.name)
    return Column(
        header,
        cells,
        tuple(_report_unreached(probes, hosts, why, endpoint, requirements) for why, hosts in faulty.items()),
    )


def _group_by_error(probes: Sequence[HostProbe], name: str) -> dict[str, list[str]]:
    """Return why a target cannot be reached -> from which hosts."""
    found: dict[str, list[str]] = {}
    for probe in probes:
        if why := probe.connect_errors.get(name):
            found.setdefault(why, []).append(probe.name)
    return found


def _report_unreached(
    probes: Sequence[HostProbe], hosts: list[str], why: str, endpoint: Endpoint, requirements: Requirements
) -> Finding:
    address, port = requirements.addresses[endpoint.name]
    owner = "this machine" if endpoint.host is None else probes[endpoint.host].name
    cause = f" ({_CAUSES[why]})" if why in _CAUSES else ""
    text = f"{join_hosts(hosts)} cannot reach {_ENDPOINT_NAMES[endpoint.name]} on {owner} at {address}:{port}: {why}{cause}"
    fix = f"let TCP port {port} of {owner} through its firewall for the cluster's hosts"
    fix += ", or choose a port that is open" if endpoint.port == 0 else ""
    if endpoint.host is None and (seen := _find_other_addresses(probes, hosts, address)):
        fix += f"; the login came from {join_hosts(seen)}, so there is a jump host or NAT between: name an address that hosts can reach"
    return Finding("failure", endpoint.name, tuple(hosts), text, fix)


def _find_other_addresses(probes: Sequence[HostProbe], hosts: list[str], address: str) -> list[str]:
    """Return the other addresses under which the hosts see this machine."""
    seen = [
        probe.facts.ssh_connection[0]
        for probe in probes
        if probe.name in hosts and probe.facts is not None and probe.facts.ssh_connection
    ]
    return sorted(set(seen) - {address})


def check_peers(probes: Sequence[HostProbe]) -> Column:
    """Check that hosts reach each other at ports that the system assigns, as CPU collectives need.

    >>> check_peers([HostProbe("a", connect_errors={"peer 1": "no answer"}), HostProbe("b")]).cells[0].text
    'not b'
    """
    cells: dict[int, Cell] = {}
    closed: dict[str, dict[int, list[str]]] = {}
    for at, probe in enumerate(probes):
        tried = {int(name.split()[1]): why for name, why in probe.connect_errors.items() if name.startswith("peer ")}
        missing = [probes[other].name for other, why in tried.items() if why]
        if tried:
            cells[at] = Cell(f"not {join_hosts(missing)}", "failure") if missing else Cell("ok")
        for other, why in tried.items():
            if why:
                closed.setdefault(why, {}).setdefault(other, []).append(probe.name)
    findings = tuple(_report_unreachable_peers(probes, why, pairs) for why, pairs in closed.items())
    return Column("peers", cells, findings)


def _report_unreachable_peers(probes: Sequence[HostProbe], why: str, pairs: Mapping[int, Sequence[str]]) -> Finding:
    """Return the finding that names the unreachable hosts, and the hosts they cannot be reached from."""
    others = sum(probe.facts is not None for probe in probes) - 1
    from_where = {
        at: "any other host" if len(hosts) == others > 1 else join_hosts(hosts) for at, hosts in pairs.items()
    }
    return Finding(
        "failure", "peers", tuple(probes[at].name for at in pairs),
        "; ".join(f"{probes[at].name} cannot be reached from {where}" for at, where in from_where.items())
        + f": {why}. CPU collectives connect any two hosts, at ports that the system chooses",
        "let all TCP between the cluster's hosts through their firewalls",
    )  # fmt: skip


def check_names(probes: Sequence[HostProbe], requirements: Requirements) -> Column:
    """Check that each host's own name resolves to a reachable address, and that hosts can resolve the notebook's machine.

    >>> check_names([], Requirements()).header
    'name→address'
    """
    cells: dict[int, Cell] = {}
    findings: list[Finding] = []
    for at, probe in enumerate(probes):
        if probe.facts is None:
            continue
        own, real = probe.facts.names.get(probe.facts.hostname, ()), probe.facts.address
        if not own:
            cells[at] = Cell("unknown", "warning")
            findings.append(
                _report_unusable_name(
                    probe.name, f"{probe.name} cannot resolve its own name {probe.facts.hostname!r}", real
                )
            )
        elif all(map(is_loopback, own)) and not is_loopback(real):
            cells[at] = Cell(own[0], "warning")
            findings.append(_report_unusable_name(probe.name, f"{probe.name}'s name resolves to loopback", real))
        else:
            cells[at] = Cell(next((each for each in own if not is_loopback(each)), own[0]))
        if requirements.controller and (why := probe.facts.resolve_errors.get(requirements.controller)):
            cells[at] = Cell(cells[at].text, "failure")
            findings.append(_report_unknown_controller(probe.name, requirements, why))
    return Column("name→address", cells, tuple(findings))


def _report_unusable_name(host: str, what: str, real: str) -> Finding:
    return Finding(
        "warning", "name→address", (host,), f"{what}, so ranks there cannot be reached by it for CPU collectives",
        f"mhnb will use {real} instead; to mend it, edit /etc/hosts on {host}",
    )  # fmt: skip


def _report_unknown_controller(host: str, requirements: Requirements, why: str) -> Finding:
    return Finding(
        "failure", "name→address", (host,),
        f"{host} cannot resolve {requirements.controller!r}, the name that was given for this machine: {why}",
        f"give an address instead ({requirements.controller_address}), or enter the name into /etc/hosts on {host}",
    )  # fmt: skip
