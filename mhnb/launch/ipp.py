"""Launchers for ipyparallel's own tools: with one of mhnb's profiles, `ipcluster start` brings up the same ranks, engine id = rank.

The engines belong to a process of their own, `mhnb.keep.engines`, which outlives `ipcluster start --daemonize` as ipyparallel's own do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from ipyparallel.cluster.launcher import EngineLauncher, LocalControllerLauncher, LocalProcessLauncher

from mhnb.launch.settings import KINDS

__all__ = [
    "MhnbControllerLauncher",
    "MhnbEngineLauncher",
    "MhnbGpuEngineLauncher",
    "MhnbKubernetesEngineLauncher",
    "MhnbLocalEngineLauncher",
    "MhnbMpiEngineLauncher",
    "MhnbSlurmEngineLauncher",
    "MhnbSshEngineLauncher",
    "MhnbTpuEngineLauncher",
]

_LONGEST_STOP_S = 30


def _command(profile_dir: str, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "mhnb.keep.engines", profile_dir, *words]


def _ask(profile_dir: str, *words: str) -> str:
    """Ask something of the profile.

    Raises:
        RuntimeError: it says what is wrong.
    """
    done = subprocess.run(_command(profile_dir, *words), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return done.stdout.strip()


class MhnbControllerLauncher(LocalControllerLauncher):
    """The hub on this machine, at the address that the profile's hosts reach."""

    def start(self) -> Any:
        """Find the address, then start."""
        given: list[str] = list(self.controller_args)  # type: ignore[has-type]
        if not any(word.startswith(("--ip=", "--IPController.ip=")) for word in given):
            address = _ask(self.profile_dir, "--address")
            self.controller_args = [*given, f"--ip={address}", f"--location={address}"]
        return super().start()


class MhnbEngineLauncher(LocalProcessLauncher, EngineLauncher):
    """All ranks, as the profile says."""

    kind: ClassVar[str] = "local"
    """Of the profile."""
    stop_seconds_until_kill = _LONGEST_STOP_S

    @property
    def engine_count(self) -> int:
        """The number of ranks that the profile means where nobody says one."""
        if getattr(self.parent, "n", None) is not None:
            # ipyparallel would prefer this number to the one that was asked for.
            raise AttributeError("engine_count")
        return int(_ask(self.profile_dir, "--count"))

    def find_args(self) -> list[str]:
        """The words of the process that owns the engines."""
        words: Sequence[str] = ["--cluster-id", self.cluster_id, "-n", str(self.n)]
        # Also what was given on ipcluster's own command line.
        given = dict((self.config or {}).get(KINDS[self.kind].__name__, {}))
        return _command(self.profile_dir, *words, "--settings", json.dumps(given, default=str))

    def get_env(self) -> dict[str, str]:
        """The environment, without the hub's key: every process of this user could read it there."""
        return {name: value for name, value in super().get_env().items() if name != "IPP_CONNECTION_INFO"}

    def start(self, n: int) -> Any:
        """Start so many."""
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
    """Machines that Slurm gives."""

    kind = "slurm"


class MhnbMpiEngineLauncher(MhnbEngineLauncher):
    """Processes that an mpiexec starts."""

    kind = "mpi"


class MhnbTpuEngineLauncher(MhnbEngineLauncher):
    """The workers of a TPU VM."""

    kind = "tpu"


class MhnbKubernetesEngineLauncher(MhnbEngineLauncher):
    """Pods."""

    kind = "kubernetes"
