"""Preflight checks of a start and of `doctor`, for each way to reach hosts: by the launcher's own command, or by a separate login.

Slurm and mpiexec run the preflight in the command that then runs the supervisors, so that no second queueing is needed.
Where each host has a command of its own (ssh, gcloud and kubectl), the preflight comes before, with one more command
per host, all at once.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from mhnb.core.asked.shape import ClusterSpec, check_cluster_spec
from mhnb.core.preflight.facts import Endpoint, PreflightReport, Requirements
from mhnb.core.reach.hosts import parse_host
from mhnb.core.reach.ssh import SshOptions
from mhnb.errors import LaunchError, PreflightFailed
from mhnb.launch.base import Launcher
from mhnb.launch.chorus import CheckedHosts, MultiplexedProbes, PreflightCheck
from mhnb.launch.mpi import MpiLauncher
from mhnb.launch.pods import CloudLauncher
from mhnb.launch.probing import open_local_probe, open_probes
from mhnb.launch.profile import create_launcher, read_ssh_options
from mhnb.launch.slurm import SlurmHosts, SlurmLauncher
from mhnb.startup.asking import resolve_spec
from mhnb.startup.flags import start_arguments
from mhnb.startup.options import StartOptions, parse_options
from mhnb.startup.preflight import ENDPOINTS, raise_if_failed, run_probe_preflight, run_ssh_preflight
from mhnb.system.rundir import make_home

__all__ = ["InAllocationLauncher", "preflight_callback", "run_doctor", "run_preflight"]

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
    def run(chorus: MultiplexedProbes) -> PreflightReport:
        began = clock()
        with tempfile.TemporaryDirectory(prefix="mhnb-preflight-") as folder:
            own = open_local_probe(Path(folder) / "own.log")
            try:
                chorus.add_local_probe(own)
                report = run_probe_preflight(chorus, wanted, notebook_address, shape.machines)
            finally:
                own.close(_END_S)
        return raise_if_failed(replace(report, duration_s=clock() - began))

    return run


def run_doctor(args: argparse.Namespace, on_queue_status: Callable[[str], None] = print) -> PreflightReport:
    """Run the preflight that the flags of `doctor` request, which are those of `start`.

    Args:
        args: of `add_place_flags`, and the coordinator's port.
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
