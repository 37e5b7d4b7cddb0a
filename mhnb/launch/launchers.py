"""Create the launcher for a cluster spec, from the settings of its profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from mhnb.core.asked.shape import Shape
from mhnb.core.reach.allocation import WITHOUT_HOLDING
from mhnb.core.reach.hosts import HostName, parse_host
from mhnb.core.reach.mpi import MpiOptions
from mhnb.core.reach.pods import KubernetesOptions, TpuOptions, kubectl_command, tpu_command
from mhnb.core.reach.slurm import SlurmOptions, is_inside_job
from mhnb.core.reach.ssh import SshOptions
from mhnb.core.wire.hostspec import HostSpec
from mhnb.errors import InvalidRequest
from mhnb.launch.base import Launcher
from mhnb.launch.mpi import MpiLauncher
from mhnb.launch.pods import PodLauncher
from mhnb.launch.profile import load_profile
from mhnb.launch.settings import Settings
from mhnb.launch.slurm import SlurmLauncher
from mhnb.launch.split import SplitLauncher
from mhnb.launch.ssh_hosts import SshLauncher

__all__ = ["find_launcher", "fit_spec", "read_ssh_options", "restart_note"]


def find_launcher(shape: Shape, reach: Mapping[str, Any]) -> Launcher:
    """Create the launcher of a spec's profile.

    Raises:
        InvalidRequest: an unknown profile, or a setting that it does not have.
    """
    if shape.profile == "split":
        return SplitLauncher()
    profile = load_profile(shape.profile, reach)
    return _MAKERS[profile.kind](shape, profile.settings)


def fit_spec(spec: HostSpec, shape: Shape, reach: Mapping[str, Any]) -> HostSpec:
    """Return a host's spec with the profile's settings for the remote side."""
    if shape.profile == "split":
        return spec
    settings: Any = load_profile(shape.profile, reach).settings
    # The shell enters a configured folder before the interpreter starts, or reports that it is missing.
    return replace(spec, share_gpus=settings.share_gpus, cwd="." if settings.cwd else spec.cwd)


def restart_note(shape: Shape, *, keep: bool) -> str:
    """Return a note if a restart must request machines from a scheduler again; otherwise an empty string."""
    queues = keep and (shape.kind or shape.profile) == "slurm" and not is_inside_job(os.environ)
    return WITHOUT_HOLDING if queues else ""


def _machines(shape: Shape) -> list[HostName]:
    return [parse_host(name) for name in shape.machines]


def _ssh(shape: Shape, settings: Any) -> Launcher:
    if not shape.machines:
        raise InvalidRequest(
            "the ssh profile needs the names of the machines: --hosts a,b[1-3], --hostfile FILE, or c.MhnbSsh.hosts in the profile"
        )
    return SshLauncher(_machines(shape), _make_ssh_options(settings))


def _make_ssh_options(settings: Any) -> SshOptions:
    options: SshOptions = replace(settings.make(SshOptions), environment=dict(settings.environment))
    return options


def read_ssh_options(shape: Shape, reach: Mapping[str, Any]) -> SshOptions | None:
    """Return the ssh options for the machines of a spec; None if they are not reached by ssh.

    Raises:
        InvalidRequest: a setting that the profile does not have.
    """
    if shape.profile == "split":
        return None
    profile = load_profile(shape.profile, reach)
    return _make_ssh_options(profile.settings) if profile.kind == "ssh" else None


def _slurm(shape: Shape, settings: Any) -> Launcher:
    if shape.machines:
        raise InvalidRequest(
            f"hosts {', '.join(shape.machines)}: Slurm chooses the machines; name them for it: "
            f"--set extra=--nodelist={','.join(shape.machines)}"
        )
    return SlurmLauncher(settings.make(SlurmOptions), settings.far())


def _mpi(shape: Shape, settings: Any) -> Launcher:
    return MpiLauncher(settings.make(MpiOptions), settings.far(), _machines(shape), os.environ)


def _tpu(_shape: Shape, settings: Any) -> Launcher:
    options = settings.make(TpuOptions)
    return PodLauncher(options.gcloud, partial(tpu_command, options), settings.far())


def _kubernetes(_shape: Shape, settings: Any) -> Launcher:
    options = settings.make(KubernetesOptions)
    return PodLauncher(options.kubectl, partial(kubectl_command, options), settings.far())


_MAKERS: dict[str, Callable[[Shape, Settings], Launcher]] = {
    "kubernetes": _kubernetes,
    "mpi": _mpi,
    "slurm": _slurm,
    "ssh": _ssh,
    "tpu": _tpu,
}
