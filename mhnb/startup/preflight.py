"""Check every machine before a JAX process is committed to any: facts from each, connections between them, and the findings.

Takes a few seconds, with all machines at once, and leaves no process and no port behind.
"""

from __future__ import annotations

import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mhnb.core.preflight.facts import (
    Endpoint,
    HostFacts,
    HostProbe,
    PreflightReport,
    Requirements,
    is_loopback,
    parse_facts,
)
from mhnb.core.preflight.findings import build_preflight_report
from mhnb.core.reach.hosts import HostName, group_by_machine, label_hosts
from mhnb.core.reach.ssh import SshOptions, choose_python
from mhnb.errors import PreflightFailed
from mhnb.launch.chorus import MultiplexedProbes
from mhnb.launch.probe import find_version
from mhnb.launch.probing import Probes, make_ssh_opener, open_probes
from mhnb.view.boards.collectives import format_preflight_text

__all__ = ["ENDPOINTS", "raise_if_failed", "run_probe_preflight", "run_ssh_preflight"]

ENDPOINTS = (Endpoint("link", None), Endpoint("hub", None), Endpoint("coordinator", 0))
"""What every host must reach: the notebook, beside it the hub, and on the first host JAX's coordinator."""

_FACTS_S, _ANSWER_S, _CONNECT_S = 30.0, 20.0, 8.0
_LOOPBACK = "127.0.0.1"


def raise_if_failed(report: PreflightReport) -> PreflightReport:
    """Return a report without failures.

    Raises:
        PreflightFailed: there are failures; with the table, and the `report`.
    """
    if not report.ok:
        raise PreflightFailed(format_preflight_text(report), report=report)
    return report


def run_ssh_preflight(
    hosts: Sequence[HostName], options: SshOptions, wanted: Requirements, *, clock: Callable[[], float] = time.time
) -> PreflightReport:
    """Run the preflight over ssh on the hosts, or on this machine if no host is named.

    Args:
        hosts: in the order of their ranks.
        options: how to log in, and the Python there.
        wanted: the requirements of the cluster; no endpoints mean `ENDPOINTS`.
        clock: seconds since 1970.
    """
    options = choose_python(options, sys.executable)
    wanted = replace(wanted, endpoints=wanted.endpoints or (ENDPOINTS if hosts else ENDPOINTS[-1:]))
    with tempfile.TemporaryDirectory(prefix="mhnb-preflight-") as folder:
        openers = [make_ssh_opener(host, options) for host in hosts]
        with open_probes(openers, Path(folder)) as probes:
            names = [str(host) for host in hosts] or ["this machine"]
            preflight = _Preflight(probes, wanted, names, is_local=not hosts)
            return preflight.run(clock, options.connect_timeout_s, max(_CONNECT_S, options.connect_timeout_s))


def run_probe_preflight(
    probes: Probes | MultiplexedProbes,
    wanted: Requirements,
    notebook_address: str,
    names: Sequence[str] = (),
    *,
    login_s: float = 0.0,
    clock: Callable[[], float] = time.time,
) -> PreflightReport:
    """Run the preflight on machines that a launcher's own command reaches.

    Args:
        probes: on the machines, and the one of this machine.
        wanted: the requirements of the cluster.
        notebook_address: the address of this machine that they must reach.
        names: of the machines, if the user has named them; otherwise each machine's own name is used.
        login_s: how much longer than the preflight itself their first answer may take.
        clock: seconds since 1970.
    """
    wanted = replace(wanted, endpoints=wanted.endpoints or ENDPOINTS)
    return _Preflight(probes, wanted, list(names), notebook_address=notebook_address).run(clock, login_s)


class _Preflight:
    """One preflight of all machines.

    Args:
        probes: on the machines; the last one is that of this machine.
        wanted: the requirements of the cluster.
        names: of the machines; empty: their own names are used.
        is_local: this machine is the only one.
        notebook_address: the address of this machine that they must reach; empty if our own ssh has reached them.
    """

    def __init__(
        self,
        probes: Probes | MultiplexedProbes,
        wanted: Requirements,
        names: list[str],
        *,
        is_local: bool = False,
        notebook_address: str = "",
    ) -> None:
        self._probes, self._wanted = probes, replace(wanted, mhnb_version=find_version("mhnb") or "")
        self._names, self._is_local, self._notebook_address = names, is_local, notebook_address
        self._token = secrets.token_hex(8)
        self._colocated: list[tuple[HostFacts, ...]] = []

    def run(self, clock: Callable[[], float], login_s: float, connect_s: float = _CONNECT_S) -> PreflightReport:
        began = clock()
        facts = self._request_facts(login_s + _FACTS_S)
        clocks = self._probes.measure_clocks(_ANSWER_S, clock)
        controller = self._controller_address(facts)
        listening = self._listen(facts)
        wanted = replace(
            self._wanted,
            controller_address=controller,
            addresses=self._endpoints(facts, listening, controller),
            listen_errors={} if self._is_local else _listen_errors(listening[-1]),
        )
        reached = self._connect(facts, listening, wanted, connect_s)
        failures = self._probes.failures()
        unreachable = self._probes.unreachable() if isinstance(self._probes, MultiplexedProbes) else {}
        host_probes = [
            HostProbe(
                name,
                None if failures[at] is not None else facts[at],
                failures[at],
                clock_offset=None if self._is_local else clocks[at],
                ports={key: answer["port"] for key, answer in (listening[at] or {}).items() if "port" in answer},
                listen_errors=_listen_errors(listening[at]),
                # A machine that does not receive this machine's requests does not reach it.
                connect_errors={"link": unreachable[at]} if at in unreachable else reached[at] or {},
                colocated=self._colocated[at] if self._colocated else (),
            )
            for at, name in enumerate(self._names)
        ]
        return replace(build_preflight_report(host_probes, wanted), duration_s=clock() - began)

    def _request_facts(self, timeout_s: float) -> list[HostFacts | None]:
        names = [self._wanted.controller] if self._wanted.controller else []
        own = self._probes.count
        requests = {at: {"names": names, "is_notebooks": False, "towards": self._notebook_address} for at in range(own)}
        answers = self._probes.request(
            "facts", requests | {own: {"names": [], "is_notebooks": True}}, timeout_s=timeout_s
        )
        facts = [None if answer is None else parse_facts(answer) for answer in answers]
        if self._is_local:
            # A single machine is reached by no other, so loopback is right.
            return [None if fact is None else replace(fact, ssh_connection=(), outgoing_address="") for fact in facts]
        if (failure := self._probes.failures()[-1]) is not None:
            # Without this machine's own probe, nothing can be concluded about the others.
            raise failure
        return self._select_and_name(facts)

    def _select_and_name(self, facts: list[HostFacts | None]) -> list[HostFacts | None]:
        """Select one task for each machine, and name the machines by their own names if the user has not named them."""
        *others, own = facts
        chosen = list(range(len(others)))
        if isinstance(self._probes, MultiplexedProbes):
            groups = group_by_machine(others)
            chosen = [first for first, *_ in groups]
            self._colocated = [tuple(fact for at in rest if (fact := others[at]) is not None) for _, *rest in groups]
            self._probes.select_tasks(chosen)
        if len(self._names) == len(others):
            self._names = [self._names[at] for at in chosen]
        else:
            unknown = self._probes.hostname if isinstance(self._probes, MultiplexedProbes) else lambda _: ""
            selected = [others[at] for at in chosen]
            hostnames = [unknown(at) if fact is None else fact.hostname for at, fact in enumerate(selected)]
            self._names = label_hosts(hostnames, [None if fact is None else fact.address for fact in selected])
        return [*(others[at] for at in chosen), own]

    def _controller_address(self, facts: Sequence[HostFacts | None]) -> str:
        """Return this machine's address for the hosts: the given one, otherwise the one that leads to them."""
        known = [each for each in facts[: len(self._names)] if each is not None]
        if (requested := self._wanted.controller) is not None:
            found = next((each.names[requested] for each in known if each.names.get(requested)), ())
            return found[0] if found else _local_address_towards([each.address for each in known])
        return _local_address_towards([each.address for each in known])

    def _listen(self, facts: Sequence[HostFacts | None]) -> list[Any]:
        """Listen at every endpoint, and at one more port on every host."""
        known = {at: fact.address for at, fact in enumerate(facts[: len(self._names)]) if fact is not None}
        requests: dict[int, list[dict[str, Any]]] = {}
        for endpoint in self._wanted.endpoints:
            # The notebook listens at the address that leads to the hosts, whatever name they use for it.
            address = (
                _local_address_towards(list(known.values())) if endpoint.host is None else known.get(endpoint.host)
            )
            if address is not None:
                requests.setdefault(self._probe_index(endpoint), []).append(
                    self._socket(endpoint.name, address, endpoint.port)
                )
        if not self._is_local:
            for at, address in known.items():
                requests.setdefault(at, []).append(self._socket("peer", address, 0))
        return self._probes.request(
            "listen", {at: {"sockets": sockets} for at, sockets in requests.items()}, timeout_s=_ANSWER_S
        )

    def _probe_index(self, endpoint: Endpoint) -> int:
        """Return the position of the probe that listens for an endpoint: the notebook's is last."""
        return len(self._names) if endpoint.host is None else endpoint.host

    def _socket(self, name: str, address: str, port: int) -> dict[str, Any]:
        return {"name": name, "address": address, "port": port, "word": self._token}

    def _endpoints(
        self, facts: Sequence[HostFacts | None], listening: Sequence[Any], controller: str
    ) -> dict[str, tuple[str, int]]:
        """Return where each endpoint listens during the preflight, or should listen."""
        found: dict[str, tuple[str, int]] = {}
        for endpoint in self._wanted.endpoints:
            at = self._probe_index(endpoint)
            answer = (listening[at] or {}).get(endpoint.name)
            fact = facts[at]
            if answer is not None and fact is not None:
                address = controller if endpoint.host is None else fact.address
                found[endpoint.name] = address, answer.get("port", endpoint.port)
        return found

    def _connect(
        self, facts: Sequence[HostFacts | None], listening: Sequence[Any], wanted: Requirements, timeout_s: float
    ) -> list[Any]:
        """Connect from every host to every endpoint and to every other host."""
        open_endpoints = {endpoint.name for endpoint in wanted.endpoints if self._is_listening(endpoint, listening)}
        targets = [self._socket(name, *place) for name, place in wanted.addresses.items() if name in open_endpoints]
        targets += [
            self._socket(f"peer {at}", fact.address, listening[at]["peer"]["port"])
            for at, fact in enumerate(facts[: len(self._names)])
            if fact is not None and "port" in (listening[at] or {}).get("peer", {})
        ]
        arguments = {
            at: {"targets": targets, "timeout_s": timeout_s, "skip": f"peer {at}"}
            for at, fact in enumerate(facts[: len(self._names)])
            if fact is not None
        }
        return self._probes.request("connect", arguments, timeout_s=_ANSWER_S + timeout_s * 2)

    def _is_listening(self, endpoint: Endpoint, listening: Sequence[Mapping[str, Any] | None]) -> bool:
        return "port" in (listening[self._probe_index(endpoint)] or {}).get(endpoint.name, {})


def _listen_errors(listening: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the errors of listeners that could not be opened."""
    return {name: answer["error"] for name, answer in (listening or {}).items() if "error" in answer}


def _local_address_towards(addresses: Sequence[str]) -> str:
    """Return the local address from which this machine reaches the first of these that is not loopback. Nothing is sent."""
    target = next((each for each in addresses if not is_loopback(each)), _LOOPBACK)
    with socket.socket(socket.AF_INET6 if ":" in target else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            # There is no route at all, which every check from a host then reports.
            return _LOOPBACK
        return str(probe.getsockname()[0])
