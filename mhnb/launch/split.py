"""Several hosts that are all this machine: a supervisor each, over TCP, as if the others were elsewhere.

What several machines do differently can be tried on one so: the start in two steps, encryption, agreement over the network.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mhnb.core.asked.shape import HostShare
from mhnb.core.wire.hostspec import HostSpec
from mhnb.launch.base import Host
from mhnb.launch.local import LocalHost
from mhnb.system.resources import profile_dir

__all__ = ["SplitLauncher"]


class SplitLauncher:
    """Starts a supervisor here for each host."""

    def find_own_address(self) -> str:
        """Loopback: nobody else is to reach it."""
        return "127.0.0.1"

    def launch(
        self, specs: Sequence[HostSpec], shares: Sequence[HostShare], environment: Mapping[str, str], run_dir: Path
    ) -> Iterator[Host]:
        """Start them one after another; each takes a moment."""
        for spec, share in zip(specs, shares, strict=True):
            own = run_dir / share.host
            (own / "log").mkdir(parents=True, mode=0o700)
            shutil.copytree(profile_dir("local"), own / "profile")
            yield LocalHost(replace(spec, run_dir=str(own)), {**environment, **spec.environment})
