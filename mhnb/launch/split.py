"""Launcher that simulates several hosts on this machine: one supervisor per host, connected over TCP as from other machines.

It exercises code that only several machines use: the start in two steps, encryption, agreement over the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mhnb.core.asked.shape import HostAssignment
from mhnb.core.wire.protocol import HostSpec
from mhnb.launch.base import Host
from mhnb.launch.local import LocalHost
from mhnb.system.resources import profile_dir
from mhnb.system.rundir import fill_run_dir

__all__ = ["FakeMultiHostLauncher"]


class FakeMultiHostLauncher:
    """Starts a supervisor on this machine for each host."""

    def find_own_address(self) -> str:
        """Return loopback, because no other machine connects."""
        return "127.0.0.1"

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostAssignment], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Start the supervisors one after another; each takes a moment."""
        for spec, share in zip(specs, shares, strict=True):
            own = run_dir / share.host
            fill_run_dir(own, {path.name: path.read_bytes() for path in profile_dir("local").glob("*_config.py")})
            yield LocalHost(replace(spec, run_dir=str(own)), {**environment, **spec.environment})
