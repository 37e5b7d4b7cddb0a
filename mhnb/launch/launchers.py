"""Create the launcher for a cluster spec, from the settings of its profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from mhnb.core.asked.shape import ClusterSpec
from mhnb.core.reach.hosts import HostName, parse_host
from mhnb.core.reach.mpi import MpiOptions
from mhnb.core.reach.pods import KubernetesOptions, TpuOptions, kubectl_command, tpu_command
from mhnb.core.reach.slurm import REQUEUE_NOTE, SlurmOptions, is_inside_job
from mhnb.core.reach.ssh import SshOptions
from mhnb.core.wire.protocol import HostSpec
from mhnb.errors import InvalidRequest
from mhnb.launch.base import Launcher
from mhnb.launch.mpi import MpiLauncher
from mhnb.launch.pods import CloudLauncher
from mhnb.launch.profile import load_profile
from mhnb.launch.settings import Settings
from mhnb.launch.slurm import SlurmLauncher
from mhnb.launch.split import FakeMultiHostLauncher
from mhnb.launch.ssh_hosts import SshLauncher

__all__ = ["apply_profile", "create_launcher", "format_restart_note", "read_ssh_options"]


def create_launcher(cluster_spec: ClusterSpec, profile_settings: Mapping[str, Any]) -> Launcher:
    """Create the launcher of a spec's profile.

    Raises:
        InvalidRequest: an unknown profile, or a setting that it does not have.
    """
    if cluster_spec.profile == "split":
        return FakeMultiHostLauncher()
    profile = load_profile(cluster_spec.profile, profile_settings)
    return _FACTORIES[profile.kind](cluster_spec, profile.settings)


def apply_profile(spec: HostSpec, cluster_spec: ClusterSpec, profile_settings: Mapping[str, Any]) -> HostSpec:
    """Return a host's spec with the profile's settings for the remote side."""
    if cluster_spec.profile == "split":
        return spec
    settings: Any = load_profile(cluster_spec.profile, profile_settings).settings
    # The shell enters a configured folder before the interpreter starts, or reports that it is missing.
    return replace(spec, share_gpus=settings.share_gpus, cwd="." if settings.cwd else spec.cwd)


def format_restart_note(cluster_spec: ClusterSpec, *, is_detachable: bool) -> str:
    """Return a note if a restart must request machines from a scheduler again; otherwise an empty string."""
    queues = is_detachable and (cluster_spec.kind or cluster_spec.profile) == "slurm" and not is_inside_job(os.environ)
    return REQUEUE_NOTE if queues else ""


def _parse_machines(cluster_spec: ClusterSpec) -> list[HostName]:
    return [parse_host(name) for name in cluster_spec.machines]


def _ssh_launcher(cluster_spec: ClusterSpec, settings: Any) -> Launcher:
    if not cluster_spec.machines:
        raise InvalidRequest(
            "the ssh profile needs the names of the machines: --hosts a,b[1-3], --hostfile FILE, or c.MhnbSsh.hosts in the profile"
        )
    return SshLauncher(_parse_machines(cluster_spec), _make_ssh_options(settings))


def _make_ssh_options(settings: Any) -> SshOptions:
    options: SshOptions = replace(settings.build_options(SshOptions), environment=dict(settings.environment))
    return options


def read_ssh_options(cluster_spec: ClusterSpec, profile_settings: Mapping[str, Any]) -> SshOptions | None:
    """Return the ssh options for the machines of a spec; None if they are not reached by ssh.

    Raises:
        InvalidRequest: a setting that the profile does not have.
    """
    if cluster_spec.profile == "split":
        return None
    profile = load_profile(cluster_spec.profile, profile_settings)
    return _make_ssh_options(profile.settings) if profile.kind == "ssh" else None


def _slurm_launcher(cluster_spec: ClusterSpec, settings: Any) -> Launcher:
    if cluster_spec.machines:
        raise InvalidRequest(
            f"hosts {', '.join(cluster_spec.machines)}: Slurm chooses the machines; name them for it: "
            f"--set extra=--nodelist={','.join(cluster_spec.machines)}"
        )
    return SlurmLauncher(settings.build_options(SlurmOptions), settings.remote_options())


def _mpi_launcher(cluster_spec: ClusterSpec, settings: Any) -> Launcher:
    return MpiLauncher(
        settings.build_options(MpiOptions), settings.remote_options(), _parse_machines(cluster_spec), os.environ
    )


def _tpu_launcher(_cluster_spec: ClusterSpec, settings: Any) -> Launcher:
    options = settings.build_options(TpuOptions)
    return CloudLauncher(options.gcloud, partial(tpu_command, options), settings.remote_options())


def _kubernetes_launcher(_cluster_spec: ClusterSpec, settings: Any) -> Launcher:
    options = settings.build_options(KubernetesOptions)
    return CloudLauncher(options.kubectl, partial(kubectl_command, options), settings.remote_options())


_FACTORIES: dict[str, Callable[[ClusterSpec, Settings], Launcher]] = {
    "kubernetes": _kubernetes_launcher,
    "mpi": _mpi_launcher,
    "slurm": _slurm_launcher,
    "ssh": _ssh_launcher,
    "tpu": _tpu_launcher,
}
