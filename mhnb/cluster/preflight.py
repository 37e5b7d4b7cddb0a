"""Preflight of a start, and `doctor`: check hosts before JAX is imported.

Each supervisor answers the checks between its report and the start of its ranks: facts about its machine, then listening and
connecting between all of them. They take a second or two, and leave no process and no port behind. A host whose supervisor has
not come up is explained from what the command that was to start it has printed. `doctor` starts the supervisors and ends them after
the checks.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import msgspec
import psutil

from mhnb.cluster.event_loop import EventLoop
from mhnb.cluster.flags import start_arguments
from mhnb.cluster.generation import create_generation
from mhnb.cluster.host_monitor import HostAnswer, HostMonitor, HostRequests
from mhnb.cluster.interrupts import run_uninterrupted
from mhnb.cluster.options import StartRequest, resolve_start
from mhnb.cluster.status import ClusterListener
from mhnb.core.addresses import Address, parse_address, parse_host_and_port
from mhnb.core.cluster_spec import ClusterSpec, check_cluster_spec
from mhnb.core.launch.hosts import group_by_machine, label_hosts
from mhnb.core.preflight_checks import build_preflight_report
from mhnb.core.preflight_facts import Endpoint, HostChecks, HostFacts, PreflightReport, Requirements
from mhnb.core.state.events import RunPreflight
from mhnb.errors import HostUnfit, HostUnreachable, LaunchError, MhnbError, PreflightFailed
from mhnb.system.host_checks import CONNECT_S, CONNECTIONS_AT_ONCE, Listener, collect_facts, find_version
from mhnb.view.print_text import print_text
from mhnb.view.reports.preflight import build_preflight_error

_FACTS_S, _ANSWER_S = 30.0, 20.0
_STOP_S = 10.0


def preflight_error(report: PreflightReport) -> PreflightFailed:
    """Return the error for a failed preflight, with its table and `report`."""
    return PreflightFailed(print_text(build_preflight_error(report)), report=report)


def check_hosts(
    shape: ClusterSpec,
    url: str,
    command: RunPreflight,
    requests: HostRequests,
    *,
    shares_machines: bool = False,
    clock: Callable[[], float] = time.time,
) -> PreflightReport:
    """Check the hosts of a start.

    Args:
        shape: the spec of the cluster.
        url: where the notebook listens, `tcp:ADDRESS:PORT`.
        command: what the supervisors have reported.
        requests: to the supervisors.
        shares_machines: whether several hosts on one machine are meant, and checked once.
        clock: seconds since 1970.

    Raises:
        RequestsClosed: the start has ended meanwhile.
    """
    began = clock()
    checks = _Preflight(shape, url, command, requests)
    checks.collect_facts()
    checks.find_machines(shares_machines=shares_machines)
    checks.measure_clocks(clock)
    checks.connect(checks.listen())
    return replace(checks.build_report(), duration_s=clock() - began)


class _Preflight:
    """Checks in steps, each for hosts that answered all earlier ones."""

    def __init__(self, shape: ClusterSpec, url: str, command: RunPreflight, requests: HostRequests) -> None:
        self._shape, self._command, self._requests = shape, command, requests
        self._endpoints = tuple(_find_endpoints(url, command))
        self._hosts: dict[int, HostChecks] = {}
        """The first supervisor of each machine -> what is known of the machine. A position in the report counts the machines."""
        self._token = secrets.token_hex(8)

    def build_report(self) -> PreflightReport:
        requirements = replace(make_requirements(self._shape), endpoints=self._endpoints)
        return build_preflight_report(list(self._hosts.values()), requirements)

    def _ask(self, check: str, arguments: Mapping[int, Mapping[str, Any]], limit_s: float) -> dict[int, HostAnswer]:
        """Return the answers of hosts; one that gives none has failed."""
        answers = self._requests.ask(check, arguments, timeout_s=limit_s)
        for supervisor in arguments:
            answer = answers.get(supervisor)
            if answer is None or answer.error:
                error = "" if answer is None else answer.error
                self._hosts[supervisor] = _mark_late(self._hosts[supervisor], limit_s, error)
        return {supervisor: answers[supervisor] for supervisor in arguments if self._hosts[supervisor].failure is None}

    def _find_checkable(self) -> list[int]:
        return [supervisor for supervisor, host in self._hosts.items() if host.facts is not None]

    def collect_facts(self) -> None:
        """Collect each host's facts, or the failure of its supervisor."""
        for at, supervisor in enumerate(self._command.hosts):
            name = self._shape.machines[at] if self._shape.machines else f"host{supervisor}"
            # One that has reported may have failed since.
            failure = self._command.failures.get(supervisor)
            self._hosts[supervisor] = (
                HostChecks(name, self._command.reports[supervisor].address)
                if failure is None
                else _explain_failure(name, failure)
            )
        asked: dict[int, dict[str, Any]] = {k: {} for k in self._command.hosts if k not in self._command.failures}
        for supervisor, answer in self._ask("facts", asked, _FACTS_S).items():
            self._hosts[supervisor] = _read_facts(self._hosts[supervisor], answer.value)

    def find_machines(self, *, shares_machines: bool) -> None:
        """Keep one supervisor per shared machine, and label unnamed machines."""
        if shares_machines:
            supervisors, hosts = list(self._hosts), list(self._hosts.values())
            self._hosts = {
                supervisors[first]: replace(
                    hosts[first], colocated=tuple(facts for at in rest if (facts := hosts[at].facts) is not None)
                )
                for first, *rest in group_by_machine(hosts)
            }
        if self._shape.machines:
            return
        hostnames = ["" if host.facts is None else host.facts.hostname for host in self._hosts.values()]
        labels = label_hosts(hostnames, [host.address for host in self._hosts.values()])
        for (supervisor, host), label in zip(list(self._hosts.items()), labels, strict=True):
            if host.facts is not None:
                self._hosts[supervisor] = replace(host, name=label)

    def measure_clocks(self, clock: Callable[[], float]) -> None:
        """Compare the clock of each host with this machine's."""
        before = clock()
        for supervisor, answer in self._ask("clock", {k: {} for k in self._find_checkable()}, _ANSWER_S).items():
            after = answer.received_at
            offset = answer.value - (before + after) / 2, (after - before) / 2
            self._hosts[supervisor] = replace(self._hosts[supervisor], clock_offset=offset)

    def listen(self) -> dict[int, dict[str, int]]:
        """Listen on each host, also for the coordinator; return ports by name."""
        sockets = {k: [self._socket("peer", self._hosts[k].address, 0)] for k in self._find_checkable()}
        # Where the coordinator listens, if the user has set that apart from its address for the others.
        bind_address = self._shape.initialize.get("coordinator_bind_address")
        for endpoint in self._endpoints:
            if (supervisor := self._find_supervisor(endpoint)) in sockets:
                bound = Address(endpoint.address, endpoint.port)
                if bind_address:
                    bound = parse_host_and_port(bind_address, "coordinator_bind_address")
                sockets[supervisor].append(self._socket(endpoint.name, bound.host, bound.port))
        ports: dict[int, dict[str, int]] = {}
        answers = self._ask("listen", {k: {"sockets": each} for k, each in sockets.items()}, _ANSWER_S)
        for supervisor, answer in answers.items():
            errors = {name: it["error"] for name, it in answer.value.items() if "error" in it}
            self._hosts[supervisor] = replace(self._hosts[supervisor], listen_errors=errors)
            ports[supervisor] = {name: it["port"] for name, it in answer.value.items() if "port" in it}
        return ports

    def connect(self, ports: Mapping[int, Mapping[str, int]]) -> None:
        """Connect from every host to every endpoint and to every other host."""
        targets = [
            self._socket(endpoint.name, endpoint.address, endpoint.port, is_own=endpoint.host is not None)
            for endpoint in self._endpoints
            if endpoint.host is None or endpoint.name in ports.get(self._find_supervisor(endpoint), {})
        ]
        peers = {
            supervisor: self._socket(f"peer {at}", host.address, ports[supervisor]["peer"])
            for at, (supervisor, host) in enumerate(self._hosts.items())
            if "peer" in ports.get(supervisor, {})
        }
        arguments = {
            supervisor: {
                "targets": [*targets, *(peer for other, peer in peers.items() if other != supervisor)],
                "timeout_s": CONNECT_S,
            }
            for supervisor in self._find_checkable()
        }
        # If every connection is tried to its limit.
        rounds = 1 + (len(self._endpoints) + len(self._hosts)) // CONNECTIONS_AT_ONCE
        for supervisor, answer in self._ask("connect", arguments, _ANSWER_S + CONNECT_S * rounds).items():
            self._hosts[supervisor] = replace(self._hosts[supervisor], connect_errors=answer.value)

    def _find_supervisor(self, endpoint: Endpoint) -> int:
        """Return the supervisor of the machine that listens; -1 for the notebook's."""
        return -1 if endpoint.host is None else list(self._hosts)[endpoint.host]

    def _socket(self, name: str, address: str, port: int, *, is_own: bool = True) -> dict[str, Any]:
        """Describe a socket for a request; `is_own` if a check listens there."""
        return {"name": name, "address": address, "port": port, "word": self._token if is_own else ""}


def _find_endpoints(url: str, command: RunPreflight) -> list[Endpoint]:
    """Return what every host must reach: notebook, hub and JAX's coordinator."""
    link = parse_address(url)
    found = [Endpoint("link", None, link.host, link.port)]
    if command.connection:
        # The hub has several ports, all at this address; an engine registers at this one first.
        hub: dict[str, Any] = json.loads(command.connection)
        found.append(Endpoint("hub", None, found[0].address, int(hub["registration"])))
    if command.coordinator:
        coordinator = parse_host_and_port(command.coordinator, "coordinator_address")
        free_ports = command.reports[command.hosts[0]].free_ports
        is_given = coordinator.port not in free_ports
        found.append(Endpoint("coordinator", 0, coordinator.host, coordinator.port, is_given))
    return found


def _explain_failure(name: str, failure: LaunchError) -> HostChecks:
    """Return what is known of a host whose supervisor has not reported."""
    if isinstance(failure, HostUnreachable) and failure.parts.get("kind") == "notebook":
        # Its login works, and the notebook's port does not: that is a finding about the port.
        why, _, login_address = failure.cause.rpartition(": ")[2].partition("; the login came from ")
        return HostChecks(name, login_address=login_address, connect_errors={"link": why})
    return HostChecks(name, failure=failure)


def _read_facts(host: HostChecks, answer: Any) -> HostChecks:
    try:
        return replace(host, facts=msgspec.convert(answer, HostFacts))
    except msgspec.ValidationError as error:
        text = f"{host.name}: mhnb cannot read what the host reports: {error}\n  Fix: install the same version of mhnb there as here"
        return replace(host, failure=HostUnfit(text, host=host.name, kind="version", cause=str(error)))


def _mark_late(host: HostChecks, limit_s: float, error: str) -> HostChecks:
    """Return the host as failed, with its error or as silent."""
    failure: LaunchError
    if error:
        text = f"{host.name}: the preflight checks failed there: {error}\n  Fix: correct this on {host.name}, then start again"
        failure = HostUnfit(text, host=host.name, kind="ended", cause=error)
    else:
        text = f"{host.name}: no answer within {limit_s:g} s\n  Fix: log in by hand; the host may be overloaded, or a disk may hang"
        failure = HostUnreachable(text, host=host.name, kind="late", cause="no answer")
    return replace(host, facts=None, failure=failure)


def make_requirements(shape: ClusterSpec) -> Requirements:
    """Return what a cluster requires of its hosts, without the ports."""
    return Requirements(
        devices=shape.devices,
        ranks_per_host=shape.ranks_per_host,
        mhnb_version=find_version("mhnb") or "",
        pjrt_nproc=os.environ.get("PJRT_NPROC", ""),
    )


# -- doctor


def run_doctor(args: argparse.Namespace, on_queue_status: Callable[[str], None] = print) -> PreflightReport:
    """Run the preflight that the flags of `doctor` request.

    Args:
        args: of `add_doctor_flags`.
        on_queue_status: receives the position of a job in Slurm's queue each time it changes.

    Raises:
        InvalidRequest: an invalid value of a flag.
        LaunchError: no machine could be checked.
    """
    request = resolve_start(**{"name": f"doctor-{os.getpid()}"} | start_arguments(args))
    check_cluster_spec(request.shape, available_nbytes=psutil.virtual_memory().available)
    if request.shape.is_local:
        return _check_this_machine(request.shape, args.coordinator_port)
    return _check_launched(request, args.coordinator_port, on_queue_status)


def _check_this_machine(
    shape: ClusterSpec, coordinator_port: int, clock: Callable[[], float] = time.time
) -> PreflightReport:
    """Check the only machine, which is this one, without a supervisor."""
    began = clock()
    host = HostChecks("this machine", facts=collect_facts(is_notebooks=True))
    try:
        listener = Listener(host.address, coordinator_port, "")
    except OSError as error:
        endpoint = Endpoint("coordinator", 0, host.address, coordinator_port, bool(coordinator_port))
        host = replace(host, listen_errors={"coordinator": error.strerror or str(error)})
    else:
        endpoint = Endpoint("coordinator", 0, host.address, listener.port, bool(coordinator_port))
        host = replace(host, connect_errors={"coordinator": ""})
        listener.close()
    report = build_preflight_report([host], replace(make_requirements(shape), endpoints=(endpoint,)))
    return replace(report, duration_s=clock() - began)


def _check_launched(
    request: StartRequest, coordinator_port: int, on_queue_status: Callable[[str], None]
) -> PreflightReport:
    """Start the supervisors of a cluster, check their hosts, and end them.

    Args:
        coordinator_port: the port to check for JAX's coordinator; 0 for what a start would use.
        on_queue_status: see `run_doctor`.
    """
    shares_machines = request.profile.settings.shares_machines
    reports: queue.SimpleQueue[PreflightReport] = queue.SimpleQueue()

    def check(command: RunPreflight, requests: HostRequests) -> MhnbError | None:
        command = _replace_port(command, coordinator_port)
        url = resources.transport.url
        reports.put(check_hosts(request.shape, url, command, requests, shares_machines=shares_machines))
        return LaunchError("the checks are done")

    listener, cleanup = ClusterListener(), ExitStack()
    try:
        resources = create_generation(request, generation=1, now=time.monotonic())
        cleanup.callback(shutil.rmtree, resources.run_dir, ignore_errors=True)
        cleanup.callback(resources.abort_start)
        for _ in resources.launch_hosts(request.profile):
            pass
        monitor = HostMonitor(
            resources.transport, resources.hosts, timeout_s=request.options.host_timeout_s, run_preflight=check
        )
        loop = EventLoop(resources.transport, resources.state_machine, monitor, clock=time.monotonic, listener=listener)
        loop.start()
        cleanup.callback(loop.close, _STOP_S)
        shown = ""
        while True:
            update = listener.start_updates.get()
            if not reports.empty():
                return reports.get()
            if isinstance(update, MhnbError):
                raise update
            if (position := resources.state_machine.registry.queue_position) not in ("", shown):
                shown = position
                on_queue_status(shown)
    finally:
        run_uninterrupted(cleanup.close)


def _replace_port(command: RunPreflight, port: int) -> RunPreflight:
    if not port or not command.coordinator:
        return command
    coordinator = parse_host_and_port(command.coordinator, "coordinator_address")
    return replace(command, coordinator=str(replace(coordinator, port=port)))
