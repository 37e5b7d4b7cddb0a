"""Preflight checks of the network: ports must be free and reachable, and names must resolve to reachable addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhnb.core.preflight.facts import Endpoint, HostLook, Wanted, is_loopback
from mhnb.core.preflight.report import Cell, Column, Finding, join_hosts

__all__ = ["check_names", "check_peers", "check_ports"]

_WHAT = {
    "coordinator": "JAX's coordinator",
    "hub": "ipyparallel's hub",
    "link": "this notebook",
}
_FIREWALL = {
    "no answer": "a firewall that drops packets, or a wrong address",
    "connection refused": "a firewall that rejects",
    "somebody else answers": "the address leads to another machine or program, as behind a proxy or NAT",
}


def check_ports(looks: Sequence[HostLook], wanted: Wanted) -> list[Column]:
    """Check that each endpoint's port is free where it is to listen, and reachable from every host.

    >>> check_ports([HostLook("a", reached={"link": ""})], Wanted((Endpoint("link", None),)))[0].cells[0].text
    'ok'
    """
    return [_check_port(looks, endpoint, wanted) for endpoint in wanted.endpoints]


def _check_port(looks: Sequence[HostLook], endpoint: Endpoint, wanted: Wanted) -> Column:
    address, port = wanted.addresses.get(endpoint.name, ("", endpoint.port))
    header = f"port {port}" if endpoint.name == "coordinator" and port else endpoint.name
    taken, owner = wanted.taken, "this machine"
    if endpoint.host is not None:
        taken, owner = looks[endpoint.host].taken, looks[endpoint.host].name
    if why := taken.get(endpoint.name):
        finding = Finding(
            "failure", endpoint.name, (owner,), f"{owner} cannot listen at {address}:{port} for {_WHAT[endpoint.name]}: {why}",
            f"end what holds the port ({owner}: ss -ltnp 'sport = :{port}'), or choose another one",
        )  # fmt: skip
        cells = {} if endpoint.host is None else {endpoint.host: Cell("taken", "failure")}
        return Column(header, cells, (finding,))
    cells = {
        at: Cell("ok") if not why else Cell(why, "failure")
        for at, look in enumerate(looks)
        if (why := look.reached.get(endpoint.name)) is not None
    }
    faulty = _by_cause(looks, endpoint.name)
    return Column(
        header, cells, tuple(_unreached(looks, hosts, why, endpoint, wanted) for why, hosts in faulty.items())
    )


def _by_cause(looks: Sequence[HostLook], name: str) -> dict[str, list[str]]:
    """Return why a target cannot be reached -> from which hosts."""
    found: dict[str, list[str]] = {}
    for look in looks:
        if why := look.reached.get(name):
            found.setdefault(why, []).append(look.name)
    return found


def _unreached(looks: Sequence[HostLook], hosts: list[str], why: str, endpoint: Endpoint, wanted: Wanted) -> Finding:
    address, port = wanted.addresses[endpoint.name]
    owner = "this machine" if endpoint.host is None else looks[endpoint.host].name
    cause = f" ({_FIREWALL[why]})" if why in _FIREWALL else ""
    text = f"{join_hosts(hosts)} cannot reach {_WHAT[endpoint.name]} on {owner} at {address}:{port}: {why}{cause}"
    cure = f"let TCP port {port} of {owner} through its firewall for the cluster's hosts"
    cure += ", or choose a port that is open" if endpoint.port == 0 else ""
    if endpoint.host is None and (seen := _seen_as(looks, hosts, address)):
        cure += f"; the login came from {join_hosts(seen)}, so there is a jump host or NAT between: name an address that hosts can reach"
    return Finding("failure", endpoint.name, tuple(hosts), text, cure)


def _seen_as(looks: Sequence[HostLook], hosts: list[str], address: str) -> list[str]:
    """Return the other addresses under which the hosts see this machine."""
    seen = [look.facts.ssh[0] for look in looks if look.name in hosts and look.facts is not None and look.facts.ssh]
    return sorted(set(seen) - {address})


def check_peers(looks: Sequence[HostLook]) -> Column:
    """Check that hosts reach each other at ports that the system assigns, as CPU collectives need.

    >>> check_peers([HostLook("a", reached={"peer 1": "no answer"}), HostLook("b")]).cells[0].text
    'not b'
    """
    cells: dict[int, Cell] = {}
    closed: dict[str, dict[int, list[str]]] = {}
    for at, look in enumerate(looks):
        tried = {int(name.split()[1]): why for name, why in look.reached.items() if name.startswith("peer ")}
        missing = [looks[other].name for other, why in tried.items() if why]
        if tried:
            cells[at] = Cell(f"not {join_hosts(missing)}", "failure") if missing else Cell("ok")
        for other, why in tried.items():
            if why:
                closed.setdefault(why, {}).setdefault(other, []).append(look.name)
    findings = tuple(_closed(looks, why, pairs) for why, pairs in closed.items())
    return Column("peers", cells, findings)


def _closed(looks: Sequence[HostLook], why: str, pairs: Mapping[int, Sequence[str]]) -> Finding:
    """Return the finding that names the unreachable hosts, and the hosts they cannot be reached from."""
    others = sum(look.facts is not None for look in looks) - 1
    from_where = {
        at: "any other host" if len(hosts) == others > 1 else join_hosts(hosts) for at, hosts in pairs.items()
    }
    return Finding(
        "failure", "peers", tuple(looks[at].name for at in pairs),
        "; ".join(f"{looks[at].name} cannot be reached from {where}" for at, where in from_where.items())
        + f": {why}. CPU collectives connect any two hosts, at ports that the system chooses",
        "let all TCP between the cluster's hosts through their firewalls",
    )  # fmt: skip


def check_names(looks: Sequence[HostLook], wanted: Wanted) -> Column:
    """Check that each host's own name resolves to a reachable address, and that hosts can resolve the notebook's machine.

    >>> check_names([], Wanted()).header
    'name→address'
    """
    cells: dict[int, Cell] = {}
    findings: list[Finding] = []
    for at, look in enumerate(looks):
        if look.facts is None:
            continue
        own, real = look.facts.names.get(look.facts.hostname, ()), look.facts.address
        if not own:
            cells[at] = Cell("unknown", "warning")
            findings.append(
                _unusable(look.name, f"{look.name} cannot resolve its own name {look.facts.hostname!r}", real)
            )
        elif all(map(is_loopback, own)) and not is_loopback(real):
            cells[at] = Cell(own[0], "warning")
            findings.append(_unusable(look.name, f"{look.name}'s name resolves to loopback", real))
        else:
            cells[at] = Cell(next((each for each in own if not is_loopback(each)), own[0]))
        if wanted.controller and (why := look.facts.why.get(wanted.controller)):
            cells[at] = Cell(cells[at].text, "failure")
            findings.append(_unknown_controller(look.name, wanted, why))
    return Column("name→address", cells, tuple(findings))


def _unusable(host: str, what: str, real: str) -> Finding:
    return Finding(
        "warning", "name→address", (host,), f"{what}, so ranks there cannot be reached by it for CPU collectives",
        f"mhnb will use {real} instead; to mend it, edit /etc/hosts on {host}",
    )  # fmt: skip


def _unknown_controller(host: str, wanted: Wanted, why: str) -> Finding:
    return Finding(
        "failure", "name→address", (host,),
        f"{host} cannot resolve {wanted.controller!r}, the name that was given for this machine: {why}",
        f"give an address instead ({wanted.controller_address}), or enter the name into /etc/hosts on {host}",
    )  # fmt: skip
