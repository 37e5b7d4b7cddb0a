"""Preflight checks of a start and of `doctor`: check every machine before a JAX process is committed to any.

A preflight collects facts from each machine, connections between them, and the findings. It takes a few seconds, with
all machines at once, and leaves no process and no port behind.

Hosts are reached by the launcher's own command, or by a separate login. Slurm and mpiexec run the preflight in the command
that then runs the supervisors, so that no second queueing is needed. Where each host has a command of its own (ssh, gcloud
and kubectl), the preflight comes before, with one more command per host, all at once.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from mhnb.cluster.flags import start_arguments
from mhnb.cluster.options import StartOptions, parse_options, resolve_spec
from mhnb.core.cluster_spec import ClusterSpec, check_cluster_spec
from mhnb.core.launch.hosts import HostName, group_by_machine, label_hosts, parse_host
from mhnb.core.launch.ssh import SshOptions, choose_python
from mhnb.core.preflight_checks import build_preflight_report
from mhnb.core.preflight_facts import (
    Endpoint,
    HostFacts,
    HostProbe,
    PreflightReport,
    Requirements,
    is_loopback,
    parse_facts,
)
from mhnb.errors import LaunchError, PreflightFailed
from mhnb.launchers.base import Launcher
from mhnb.launchers.cloud import CloudLauncher
from mhnb.launchers.mpi import MpiLauncher
from mhnb.launchers.probe_client import Probes, make_ssh_opener, open_local_probe, open_probes
from mhnb.launchers.probe_script import find_version
from mhnb.launchers.probe_shared import CheckedHosts, MultiplexedProbes, PreflightCheck
from mhnb.launchers.profiles import create_launcher, read_ssh_options
from mhnb.launchers.slurm import SlurmHosts, SlurmLauncher
from mhnb.system.run_dir import make_home
from mhnb.view.tables.reports import format_preflight_text

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


# -- preflight of a start and of `doctor`


InAllocationLauncher = SlurmLauncher | MpiLauncher
"""Launchers that run the preflight in the allocation of the supervisors."""

_LOGIN_S = 60.0
"""How long gcloud may take before it runs anything."""
_MAX_POLLS, _POLL_S = 1200, 0.1
"""Number of polls that an mpiexec may take, including the preflight, and the seconds between two polls."""
_END_S = 1.0


def run_preflight(shape: ClusterSpec, options: StartOptions, on_begin: Callable[[], None]) -> PreflightReport | None:
    """Run the preflight on hosts that have a command each; None if there is nothing to check, or the launcher runs its own preflight.

    Args:
        shape: the spec of the cluster to start.
        options: how to start it.
        on_begin: called when the preflight begins; at a host that does not answer, it lasts until the login times out.

    Raises:
        PreflightFailed: a start could not work; with the table, and the `report`.
    """
    if shape.is_local or shape.profile == "split":
        return None
    launcher = create_launcher(shape, options.reach)
    if isinstance(launcher, InAllocationLauncher):
        return None
    on_begin()
    return raise_if_failed(_run_by_login(shape, options, _requirements(shape, options), launcher))


def preflight_callback(shape: ClusterSpec, options: StartOptions, notebook_address: str) -> PreflightCheck:
    """Return the preflight function for a launcher that runs its own preflight.

    Args:
        shape: the spec of the cluster to start.
        options: how to start it.
        notebook_address: the address of this machine that the hosts must reach.
    """
    return _make_preflight(shape, _requirements(shape, options), notebook_address)


def _make_preflight(
    shape: ClusterSpec, wanted: Requirements, notebook_address: str, clock: Callable[[], float] = time.time
) -> PreflightCheck:
    def run(probes: MultiplexedProbes) -> PreflightReport:
        began = clock()
        with tempfile.TemporaryDirectory(prefix="mhnb-preflight-") as folder:
            own = open_local_probe(Path(folder) / "own.log")
            try:
                probes.add_local_probe(own)
                report = run_probe_preflight(probes, wanted, notebook_address, shape.machines)
            finally:
                own.close(_END_S)
        return raise_if_failed(replace(report, duration_s=clock() - began))

    return run


def run_doctor(args: argparse.Namespace, on_queue_status: Callable[[str], None] = print) -> PreflightReport:
    """Run the preflight that the flags of `doctor` request, which are those of `start`.

    Args:
        args: of `add_doctor_flags`.
        on_queue_status: receives the position of a job in Slurm's queue each time it changes.

    Raises:
        InvalidRequest: an invalid value of a flag.
        LaunchError: no machine could be checked.
    """
    arguments = start_arguments(args)
    own = [arguments.pop(name, None) for name in ("hosts", "devices", "ranks_per_host")]
    shape = resolve_spec(own[0], own[1], own[2], arguments)
    check_cluster_spec(shape, available_nbytes=psutil.virtual_memory().available)
    options = parse_options("doctor", shape, arguments)
    wanted = _requirements(shape, options, args.coordinator_port)
    if shape.is_local or shape.profile == "split":
        return run_ssh_preflight((), SshOptions(), replace(wanted, endpoints=wanted.endpoints[-1:], controller=None))
    launcher = create_launcher(shape, options.reach)
    if isinstance(launcher, InAllocationLauncher):
        return _run_in_allocation(
            shape, wanted, options.address or launcher.find_own_address(), launcher, on_queue_status
        )
    return _run_by_login(shape, options, wanted, launcher)


def _requirements(shape: ClusterSpec, options: StartOptions, port: int = 0) -> Requirements:
    """Return the requirements of the cluster."""
    _, _, coordinator_port = str(shape.initialize.get("coordinator_address", "")).rpartition(":")
    endpoints = tuple(_with_coordinator_port(each, port or int(coordinator_port or 0)) for each in ENDPOINTS)
    return Requirements(
        endpoints,
        devices=shape.devices,
        ranks_per_host=shape.ranks_per_host,
        controller=options.address or None,
        pjrt_nproc=os.environ.get("PJRT_NPROC", ""),
    )


def _with_coordinator_port(endpoint: Endpoint, port: int) -> Endpoint:
    return replace(endpoint, port=port) if endpoint.name == "coordinator" else endpoint


def _run_by_login(
    shape: ClusterSpec, options: StartOptions, wanted: Requirements, launcher: Launcher
) -> PreflightReport:
    if isinstance(launcher, CloudLauncher):
        notebook_address = options.address or launcher.find_own_address()
        openers = [launcher.open_probe(share) for share in shape.assign_hosts()]
        with (
            tempfile.TemporaryDirectory(prefix="mhnb-preflight-") as folder,
            open_probes(openers, Path(folder)) as probes,
        ):
            return run_probe_preflight(probes, wanted, notebook_address, login_s=_LOGIN_S)
    login = read_ssh_options(shape, options.reach)
    assert login is not None, f"no way to look at hosts of profile {shape.profile}"
    return run_ssh_preflight([parse_host(name) for name in shape.machines], login, wanted)


def _run_in_allocation(
    shape: ClusterSpec,
    wanted: Requirements,
    notebook_address: str,
    launcher: InAllocationLauncher,
    on_queue_status: Callable[[str], None],
) -> PreflightReport:
    """Make the launcher start probes as it would start supervisors, and nothing after them.

    Raises:
        LaunchError: it could not, or the answers of the probes could not be judged.
    """
    launcher.preflight_check = _make_preflight(shape, wanted, notebook_address)
    home = make_home(os.environ)
    # Not in the directory for temporary files: processes of mpiexec must see this one on their machines.
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=home) as folder:
        (Path(folder) / "log").mkdir()
        hosts: CheckedHosts = (
            launcher.start_preflight(shape, os.environ, Path(folder))
            if isinstance(launcher, SlurmLauncher)
            else launcher.start_preflight(shape, notebook_address, Path(folder))
        )
        try:
            _wait_for_preflight(hosts, on_queue_status)
        finally:
            hosts.wait(())
        if isinstance(hosts.preflight_error, PreflightFailed):
            report: PreflightReport = hosts.preflight_error.report
            return report
        if hosts.report is None:
            raise hosts.preflight_error or LaunchError(hosts.explain())
    return hosts.report


def _wait_for_preflight(hosts: CheckedHosts, on_queue_status: Callable[[str], None]) -> None:
    """Wait for the end of a preflight: without limit while a job waits in Slurm's queue, with a limit for other launchers."""
    last_status, polls = "", 0
    while not hosts.preflight_done.wait(_POLL_S):
        polls += 1
        if isinstance(hosts, SlurmHosts):
            if hosts.queue_status not in ("", last_status):
                last_status = hosts.queue_status
                on_queue_status(last_status)
        elif polls > _MAX_POLLS:
            return
