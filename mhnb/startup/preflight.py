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

from mhnb.core.preflight.facts import Endpoint, HostFacts, HostLook, Wanted, is_loopback, parse_facts
from mhnb.core.preflight.findings import judge
from mhnb.core.preflight.report import PreflightReport
from mhnb.core.reach.hosts import HostName
from mhnb.core.reach.machines import group_by_machine, name_machines
from mhnb.core.reach.ssh import SshOptions, choose_python
from mhnb.errors import PreflightFailed
from mhnb.launch.chorus import Chorus
from mhnb.launch.probe import find_version
from mhnb.launch.probing import Probes, open_probes, open_ssh
from mhnb.view.boards.preflight import format_preflight_text

__all__ = ["ENDPOINTS", "look_at", "look_through", "refuse_unfit"]

ENDPOINTS = (Endpoint("link", None), Endpoint("hub", None), Endpoint("coordinator", 0))
"""What every host must reach: the notebook, beside it the hub, and on the first host JAX's coordinator."""

_FACTS_S, _ANSWER_S, _CONNECT_S = 30.0, 20.0, 8.0
_LOOPBACK = "127.0.0.1"


def refuse_unfit(report: PreflightReport) -> PreflightReport:
    """Return a report without failures.

    Raises:
        PreflightFailed: there are failures; with the table, and the `report`.
    """
    if not report.ok:
        raise PreflightFailed(format_preflight_text(report), report=report)
    return report


def look_at(
    hosts: Sequence[HostName], options: SshOptions, wanted: Wanted, *, clock: Callable[[], float] = time.time
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
        openers = [open_ssh(host, options) for host in hosts]
        with open_probes(openers, Path(folder)) as probes:
            names = [str(host) for host in hosts] or ["this machine"]
            look = _Look(probes, wanted, names, is_local=not hosts)
            return look.take(clock, options.connect_timeout_s, max(_CONNECT_S, options.connect_timeout_s))


def look_through(
    probes: Probes | Chorus,
    wanted: Wanted,
    towards: str,
    names: Sequence[str] = (),
    *,
    login_s: float = 0.0,
    clock: Callable[[], float] = time.time,
) -> PreflightReport:
    """Run the preflight on machines that a launcher's own command reaches.

    Args:
        probes: on the machines, and the one of this machine.
        wanted: the requirements of the cluster.
        towards: the address of this machine that they must reach.
        names: of the machines, if the user has named them; otherwise each machine's own name is used.
        login_s: how much longer than the preflight itself their first answer may take.
        clock: seconds since 1970.
    """
    wanted = replace(wanted, endpoints=wanted.endpoints or ENDPOINTS)
    return _Look(probes, wanted, list(names), towards=towards).take(clock, login_s)


class _Look:
    """One preflight of all machines.

    Args:
        probes: on the machines; the last one is that of this machine.
        wanted: the requirements of the cluster.
        names: of the machines; empty: their own names are used.
        is_local: this machine is the only one.
        towards: the address of this machine that they must reach; empty if our own ssh has reached them.
    """

    def __init__(
        self, probes: Probes | Chorus, wanted: Wanted, names: list[str], *, is_local: bool = False, towards: str = ""
    ) -> None:
        self._probes, self._wanted = probes, replace(wanted, mhnb=find_version("mhnb") or "")
        self._names, self._is_local, self._towards = names, is_local, towards
        self._word = secrets.token_hex(8)
        self._beside: list[tuple[HostFacts, ...]] = []

    def take(self, clock: Callable[[], float], login_s: float, connect_s: float = _CONNECT_S) -> PreflightReport:
        began = clock()
        facts = self._ask_facts(login_s + _FACTS_S)
        clocks = self._probes.ask_time(_ANSWER_S, clock)
        controller = self._controller_address(facts)
        heard = self._listen(facts)
        wanted = replace(
            self._wanted,
            controller_address=controller,
            addresses=self._endpoints(facts, heard, controller),
            taken={} if self._is_local else _errors(heard[-1]),
        )
        reached = self._connect(facts, heard, wanted, connect_s)
        failures = self._probes.failures()
        deaf = self._probes.deaf() if isinstance(self._probes, Chorus) else {}
        looks = [
            HostLook(
                name,
                None if failures[at] is not None else facts[at],
                failures[at],
                clock=None if self._is_local else clocks[at],
                ports={key: answer["port"] for key, answer in (heard[at] or {}).items() if "port" in answer},
                taken=_errors(heard[at]),
                # A machine that does not receive this machine's requests does not reach it.
                reached={"link": deaf[at]} if at in deaf else reached[at] or {},
                beside=self._beside[at] if self._beside else (),
            )
            for at, name in enumerate(self._names)
        ]
        return replace(judge(looks, wanted), cost_s=clock() - began)

    def _ask_facts(self, timeout_s: float) -> list[HostFacts | None]:
        names = [self._wanted.controller] if self._wanted.controller else []
        own = self._probes.count
        asked = {at: {"names": names, "is_notebooks": False, "towards": self._towards} for at in range(own)}
        answers = self._probes.ask("facts", asked | {own: {"names": [], "is_notebooks": True}}, timeout_s=timeout_s)
        facts = [None if answer is None else parse_facts(answer) for answer in answers]
        if self._is_local:
            # A single machine is reached by no other, so loopback is right.
            return [None if fact is None else replace(fact, ssh=(), outward="") for fact in facts]
        if (failure := self._probes.failures()[-1]) is not None:
            # Without this machine's own probe, nothing can be concluded about the others.
            raise failure
        return self._name(facts)

    def _name(self, facts: list[HostFacts | None]) -> list[HostFacts | None]:
        """Select one task for each machine, and name the machines by their own names if the user has not named them."""
        *others, own = facts
        chosen = list(range(len(others)))
        if isinstance(self._probes, Chorus):
            groups = group_by_machine(others)
            chosen = [first for first, *_ in groups]
            self._beside = [tuple(fact for at in rest if (fact := others[at]) is not None) for _, *rest in groups]
            self._probes.narrow(chosen)
        if len(self._names) == len(others):
            self._names = [self._names[at] for at in chosen]
        else:
            unknown = self._probes.hostname if isinstance(self._probes, Chorus) else lambda _: ""
            kept = [others[at] for at in chosen]
            called = [unknown(at) if fact is None else fact.hostname for at, fact in enumerate(kept)]
            self._names = name_machines(called, [None if fact is None else fact.address for fact in kept])
        return [*(others[at] for at in chosen), own]

    def _controller_address(self, facts: Sequence[HostFacts | None]) -> str:
        """Return this machine's address for the hosts: the given one, otherwise the one that leads to them."""
        known = [each for each in facts[: len(self._names)] if each is not None]
        if (given := self._wanted.controller) is not None:
            found = next((each.names[given] for each in known if each.names.get(given)), ())
            return found[0] if found else _way_to([each.address for each in known])
        return _way_to([each.address for each in known])

    def _listen(self, facts: Sequence[HostFacts | None]) -> list[Any]:
        """Listen at every endpoint, and at one more port on every host."""
        known = {at: fact.address for at, fact in enumerate(facts[: len(self._names)]) if fact is not None}
        requests: dict[int, list[dict[str, Any]]] = {}
        for endpoint in self._wanted.endpoints:
            # The notebook listens at the address that leads to the hosts, whatever name they use for it.
            address = _way_to(list(known.values())) if endpoint.host is None else known.get(endpoint.host)
            if address is not None:
                requests.setdefault(self._place(endpoint), []).append(
                    self._socket(endpoint.name, address, endpoint.port)
                )
        if not self._is_local:
            for at, address in known.items():
                requests.setdefault(at, []).append(self._socket("peer", address, 0))
        return self._probes.ask(
            "listen", {at: {"sockets": sockets} for at, sockets in requests.items()}, timeout_s=_ANSWER_S
        )

    def _place(self, endpoint: Endpoint) -> int:
        """Return the position of the probe that listens for an endpoint: the notebook's is last."""
        return len(self._names) if endpoint.host is None else endpoint.host

    def _socket(self, name: str, address: str, port: int) -> dict[str, Any]:
        return {"name": name, "address": address, "port": port, "word": self._word}

    def _endpoints(
        self, facts: Sequence[HostFacts | None], heard: Sequence[Any], controller: str
    ) -> dict[str, tuple[str, int]]:
        """Return where each endpoint listens during the preflight, or should listen."""
        found: dict[str, tuple[str, int]] = {}
        for endpoint in self._wanted.endpoints:
            at = self._place(endpoint)
            answer = (heard[at] or {}).get(endpoint.name)
            fact = facts[at]
            if answer is not None and fact is not None:
                address = controller if endpoint.host is None else fact.address
                found[endpoint.name] = address, answer.get("port", endpoint.port)
        return found

    def _connect(
        self, facts: Sequence[HostFacts | None], heard: Sequence[Any], wanted: Wanted, timeout_s: float
    ) -> list[Any]:
        """Connect from every host to every endpoint and to every other host."""
        listening = {endpoint.name for endpoint in wanted.endpoints if self._is_heard(endpoint, heard)}
        targets = [self._socket(name, *place) for name, place in wanted.addresses.items() if name in listening]
        targets += [
            self._socket(f"peer {at}", fact.address, heard[at]["peer"]["port"])
            for at, fact in enumerate(facts[: len(self._names)])
            if fact is not None and "port" in (heard[at] or {}).get("peer", {})
        ]
        arguments = {
            at: {"targets": targets, "timeout_s": timeout_s, "skip": f"peer {at}"}
            for at, fact in enumerate(facts[: len(self._names)])
            if fact is not None
        }
        return self._probes.ask("connect", arguments, timeout_s=_ANSWER_S + timeout_s * 2)

    def _is_heard(self, endpoint: Endpoint, heard: Sequence[Mapping[str, Any] | None]) -> bool:
        return "port" in (heard[self._place(endpoint)] or {}).get(endpoint.name, {})


def _errors(heard: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the errors of listeners that could not be opened."""
    return {name: answer["error"] for name, answer in (heard or {}).items() if "error" in answer}


def _way_to(addresses: Sequence[str]) -> str:
    """Return the local address from which this machine reaches the first of these that is not loopback. Nothing is sent."""
    target = next((each for each in addresses if not is_loopback(each)), _LOOPBACK)
    with socket.socket(socket.AF_INET6 if ":" in target else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            # There is no route at all, which every check from a host then reports.
            return _LOOPBACK
        return str(probe.getsockname()[0])
