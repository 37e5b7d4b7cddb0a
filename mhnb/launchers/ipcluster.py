"""ipyparallel launcher classes: `ipcluster start` starts the ranks of a profile.

An engine's id is its rank. A separate process, `mhnb.cluster.ipcluster_engines`, owns the engines.
It outlives `ipcluster start --daemonize` as ipyparallel's own engines do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from ipyparallel.cluster.launcher import EngineLauncher, LocalControllerLauncher, LocalProcessLauncher

from mhnb.launchers.profiles import KINDS
from mhnb.system.resources import HUB_SETTINGS, default_settings_dir

_STOP_TIMEOUT_S = 30


def _engines_command(profile_dir: str, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "mhnb.cluster.ipcluster_engines", profile_dir, *words]


def _query_profile(profile_dir: str, *words: str) -> str:
    """Query the profile in a separate process.

    Raises:
        RuntimeError: with the error output of that process.
    """
    done = subprocess.run(_engines_command(profile_dir, *words), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return done.stdout.strip()


class MhnbControllerLauncher(LocalControllerLauncher):
    """The hub on this machine, at an address reachable from the hosts.

    If the profile has no settings of the hub, it gets those that it would have in a notebook.
    """

    def start(self) -> Any:
        """Find the address, then start the hub."""
        arguments: list[str] = list(self.controller_args)  # type: ignore[has-type]
        if not any(word.startswith(("--ip=", "--IPController.ip=")) for word in arguments):
            address = _query_profile(self.profile_dir, "--address")
            self.controller_args = [*arguments, f"--ip={address}", f"--location={address}"]
        return super().start()

    def find_args(self) -> list[str]:
        """Return the command line of the hub."""
        command: list[str] = super().find_args()
        if (Path(self.profile_dir) / HUB_SETTINGS).exists():
            return command
        defaults = {"--config": str(default_settings_dir() / HUB_SETTINGS)}
        if KINDS[getattr(self.parent.engine_launcher_class, "kind", "local")].is_remote:
            defaults["--IPController.enable_curve"] = "True"
        # The hub accepts an argument once.
        given = tuple(word.partition("=")[0] for word in command)
        return [*command, *(f"{name}={value}" for name, value in defaults.items() if name not in given)]


class MhnbEngineLauncher(LocalProcessLauncher, EngineLauncher):
    """All ranks, as the profile defines them."""

    kind: ClassVar[str] = "local"
    """Kind of the profile."""
    stop_seconds_until_kill = _STOP_TIMEOUT_S

    @property
    def engine_count(self) -> int:
        """Return the profile's default number of ranks."""
        if getattr(self.parent, "n", None) is not None:
            # ipyparallel would prefer this number to the requested one.
            raise AttributeError("engine_count")
        return int(_query_profile(self.profile_dir, "--count"))

    def find_args(self) -> list[str]:
        """Return the command line of the process that owns the engines."""
        words: Sequence[str] = ["--cluster-id", self.cluster_id, "-n", str(self.n)]
        # Includes settings from ipcluster's own command line.
        settings = dict((self.config or {}).get(KINDS[self.kind].__name__, {}))
        return _engines_command(self.profile_dir, *words, "--settings", json.dumps(settings, default=str))

    def get_env(self) -> dict[str, str]:
        """Return the environment without the hub's key, which other processes could read."""
        return {name: value for name, value in super().get_env().items() if name != "IPP_CONNECTION_INFO"}

    def start(self, n: int) -> Any:
        """Start this number of ranks."""
        self.n = n
        return super().start()


class MhnbLocalEngineLauncher(MhnbEngineLauncher):
    """Simulated hosts."""


class MhnbGpuEngineLauncher(MhnbEngineLauncher):
    """The GPUs of this machine."""

    kind = "gpu"


class MhnbSshEngineLauncher(MhnbEngineLauncher):
    """Machines reached by ssh."""

    kind = "ssh"


class MhnbSlurmEngineLauncher(MhnbEngineLauncher):
    """Machines allocated by Slurm."""

    kind = "slurm"


class MhnbMpiEngineLauncher(MhnbEngineLauncher):
    """Processes started by an mpiexec."""

    kind = "mpi"


class MhnbTpuEngineLauncher(MhnbEngineLauncher):
    """The workers of a TPU VM."""

    kind = "tpu"


class MhnbKubernetesEngineLauncher(MhnbEngineLauncher):
    """Pods."""

    kind = "kubernetes"
