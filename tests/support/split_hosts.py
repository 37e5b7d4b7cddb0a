"""A kind of profile for tests: a supervisor on this machine for each host, as on several machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from mhnb.core.cluster_spec import ClusterSpec, HostAssignment
from mhnb.core.messages import HostSpec
from mhnb.launchers.base import Host, Launcher
from mhnb.launchers.local import LocalHost
from mhnb.launchers.profiles import KINDS, Settings
from mhnb.system.resources import read_profile_files
from mhnb.system.run_dir import fill_run_dir

_PROFILE = """c = get_config()
c.Cluster.engine_launcher_class = "mhnb-split"
c.Cluster.controller_launcher_class = "mhnb"
"""


class SplitLauncher:
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
            fill_run_dir(own, read_profile_files(run_dir / "profile"))
            yield LocalHost(replace(spec, run_dir=str(own)), {**environment, **spec.environment})


class MhnbSplit(Settings):
    """Several supervisors on this machine."""

    kind = "split"
    shares_machines = True

    def create_launcher(self, cluster_spec: ClusterSpec) -> Launcher:  # noqa: ARG002  # part of the interface
        return SplitLauncher()


@pytest.fixture
def split_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Register the kind, and return the folder of a profile of it."""
    monkeypatch.setitem(KINDS, MhnbSplit.kind, MhnbSplit)
    folder = tmp_path / "split"
    folder.mkdir()
    (folder / "ipcluster_config.py").write_text(_PROFILE)
    return str(folder)
