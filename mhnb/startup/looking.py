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

from mhnb.core.asked.shape import Shape, check_shape
from mhnb.core.preflight.facts import Endpoint, Wanted
from mhnb.core.preflight.report import PreflightReport
from mhnb.core.reach.hosts import parse_host
from mhnb.core.reach.ssh import SshOptions
from mhnb.errors import LaunchError, PreflightFailed
from mhnb.launch.base import Launcher
from mhnb.launch.chorus import Chorus
from mhnb.launch.launchers import find_launcher, read_ssh_options
from mhnb.launch.mpi import MpiLauncher
from mhnb.launch.pods import PodLauncher
from mhnb.launch.probing import open_own, open_probes
from mhnb.launch.rehearsal import Look, RehearsedHosts
from mhnb.launch.slurm import SlurmHosts, SlurmLauncher
from mhnb.startup.asking import take_shape
from mhnb.startup.flags import place_options
from mhnb.startup.options import StartOptions, take_options
from mhnb.startup.preflight import ENDPOINTS, look_at, look_through, refuse_unfit
from mhnb.system.rundir import make_home

__all__ = ["Rehearsing", "look_as_asked", "look_before", "make_look"]

Rehearsing = SlurmLauncher | MpiLauncher
"""Launchers that run the preflight in the allocation of the supervisors."""

_LOGIN_S = 60.0
"""How long gcloud may take before it runs anything."""
_BEGIN_LOOKS, _LOOK_S = 1200, 0.1
"""Number of polls that an mpiexec may take, including the preflight, and the seconds between two polls."""
_END_S = 1.0


def look_before(shape: Shape, options: StartOptions, tell: Callable[[], None]) -> PreflightReport | None:
    """Run the preflight on hosts that have a command each; None if there is nothing to check, or the launcher runs its own preflight.

    Args:
        shape: the spec of the cluster to start.
        options: how to start it.
        tell: called when the preflight begins; at a host that does not answer, it lasts until the login times out.

    Raises:
        PreflightFailed: a start could not work; with the table, and the `report`.
    """
    if shape.is_local or shape.profile == "split":
        return None
    launcher = find_launcher(shape, options.reach)
    if isinstance(launcher, Rehearsing):
        return None
    tell()
    return refuse_unfit(_look_by_login(shape, options, _wanted(shape, options), launcher))


def make_look(shape: Shape, options: StartOptions, towards: str) -> Look:
    """Return the preflight function for a launcher that runs its own preflight.

    Args:
        shape: the spec of the cluster to start.
        options: how to start it.
        towards: the address of this machine that the hosts must reach.
    """
    return _make_look(shape, _wanted(shape, options), towards)


def _make_look(shape: Shape, wanted: Wanted, towards: str, clock: Callable[[], float] = time.time) -> Look:
    def look(chorus: Chorus) -> PreflightReport:
        began = clock()
        with tempfile.TemporaryDirectory(prefix="mhnb-preflight-") as folder:
            own = open_own(Path(folder) / "own.log")
            try:
                chorus.add_own(own)
                report = look_through(chorus, wanted, towards, shape.machines)
            finally:
                own.close(_END_S)
        return refuse_unfit(replace(report, cost_s=clock() - began))

    return look


def look_as_asked(args: argparse.Namespace, tell: Callable[[str], None] = print) -> PreflightReport:
    """Run the preflight that the flags of `doctor` request, which are those of `start`.

    Args:
        args: of `add_place_flags`, and the coordinator's port.
        tell: receives the position of a job in Slurm's queue each time it changes.

    Raises:
        InvalidRequest: an invalid value of a flag.
        LaunchError: no machine could be checked.
    """
    asked = place_options(args)
    own = [asked.pop(name, None) for name in ("hosts", "devices", "ranks_per_host")]
    shape = take_shape(own[0], own[1], own[2], asked)
    check_shape(shape, available_nbytes=psutil.virtual_memory().available)
    options = take_options("doctor", shape, asked)
    wanted = _wanted(shape, options, args.coordinator_port)
    if shape.is_local or shape.profile == "split":
        return look_at((), SshOptions(), replace(wanted, endpoints=wanted.endpoints[-1:], controller=None))
    launcher = find_launcher(shape, options.reach)
    if isinstance(launcher, Rehearsing):
        return _rehearse(shape, wanted, options.address or launcher.find_own_address(), launcher, tell)
    return _look_by_login(shape, options, wanted, launcher)


def _wanted(shape: Shape, options: StartOptions, port: int = 0) -> Wanted:
    """Return the requirements of the cluster."""
    _, _, given = str(shape.initialize.get("coordinator_address", "")).rpartition(":")
    endpoints = tuple(_at(each, port or int(given or 0)) for each in ENDPOINTS)
    return Wanted(
        endpoints,
        devices=shape.devices,
        per_host=shape.ranks_per_host,
        controller=options.address or None,
        pool=os.environ.get("PJRT_NPROC", ""),
    )


def _at(endpoint: Endpoint, port: int) -> Endpoint:
    return replace(endpoint, port=port) if endpoint.name == "coordinator" else endpoint


def _look_by_login(shape: Shape, options: StartOptions, wanted: Wanted, launcher: Launcher) -> PreflightReport:
    if isinstance(launcher, PodLauncher):
        towards = options.address or launcher.find_own_address()
        openers = [launcher.open_probe(share) for share in shape.shares()]
        with (
            tempfile.TemporaryDirectory(prefix="mhnb-preflight-") as folder,
            open_probes(openers, Path(folder)) as probes,
        ):
            return look_through(probes, wanted, towards, login_s=_LOGIN_S)
    login = read_ssh_options(shape, options.reach)
    assert login is not None, f"no way to look at hosts of profile {shape.profile}"
    return look_at([parse_host(name) for name in shape.machines], login, wanted)


def _rehearse(
    shape: Shape, wanted: Wanted, towards: str, launcher: Rehearsing, tell: Callable[[str], None]
) -> PreflightReport:
    """Make the launcher start probes as it would start supervisors, and nothing after them.

    Raises:
        LaunchError: it could not, or the answers of the probes could not be judged.
    """
    launcher.look = _make_look(shape, wanted, towards)
    home = make_home(os.environ)
    # Not in the directory for temporary files: processes of mpiexec must see this one on their machines.
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=home) as folder:
        (Path(folder) / "log").mkdir()
        hosts: RehearsedHosts = (
            launcher.rehearse(shape, os.environ, Path(folder))
            if isinstance(launcher, SlurmLauncher)
            else launcher.rehearse(shape, towards, Path(folder))
        )
        try:
            _await_look(hosts, tell)
        finally:
            hosts.wait(())
        if isinstance(hosts.refusal, PreflightFailed):
            report: PreflightReport = hosts.refusal.report
            return report
        if hosts.report is None:
            raise hosts.refusal or LaunchError(hosts.explain())
    return hosts.report


def _await_look(hosts: RehearsedHosts, tell: Callable[[str], None]) -> None:
    """Wait for the end of a preflight: without limit while a job waits in Slurm's queue, with a limit for other launchers."""
    told, looks = "", 0
    while not hosts.looked.wait(_LOOK_S):
        looks += 1
        if isinstance(hosts, SlurmHosts):
            if hosts.standing not in ("", told):
                told = hosts.standing
                tell(told)
        elif looks > _BEGIN_LOOKS:
            return
