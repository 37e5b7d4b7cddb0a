"""How often a start runs the Python of its profile: all of a cluster has the settings of one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster

Fresh = Callable[..., Cluster]


class CountingProfile:
    """A profile whose file counts how often it is run."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        self._runs = folder / "runs"
        self.file = folder / "ipcluster_config.py"
        folder.mkdir(exist_ok=True)
        self.file.write_text(f"{text}\nwith open({str(self._runs)!r}, 'a') as runs:\n    runs.write('x')\n")

    def count(self) -> int:
        """Return how often the file was run since the last call."""
        text = self._runs.read_text() if self._runs.exists() else ""
        self._runs.unlink(missing_ok=True)
        return len(text)


@pytest.fixture
def local_profile(tmp_path: Path) -> CountingProfile:
    """A profile of simulated hosts."""
    return CountingProfile(tmp_path / "own", "c.MhnbLocal.devices = 1")


def test_start_on_several_hosts_runs_the_profile_once(fresh: Fresh, split_profile: str) -> None:
    """A start runs the file once, however many hosts there are; the same start again once, to know what is asked for.

    A restart does not run it: it keeps what the cluster was started with, also if the file is gone.
    """
    profile = CountingProfile(Path(split_profile), Path(split_profile, "ipcluster_config.py").read_text())
    cluster = fresh(3, 1, profile=split_profile)
    assert profile.count() == 1
    assert fresh(3, 1, profile=split_profile, name=cluster.name) is cluster
    assert profile.count() == 1
    profile.file.unlink()
    after = cluster.restart()
    assert after.run("1").check()[2].text == "1"
    after.stop()
    assert profile.count() == 0


@pytest.mark.test_all
def test_standby_ranks_have_the_profile_of_the_start(fresh: Fresh, local_profile: CountingProfile) -> None:
    """Neither the standby ranks, nor the restart that takes them over, nor the next ones run the file."""
    cluster = fresh(2, None, profile=str(local_profile.folder), standby=True)
    assert (local_profile.count(), len(cluster.devices)) == (1, 2)
    local_profile.file.write_text("c.MhnbLocal.devices = 1\n")
    after = cluster.restart()
    assert after.standby is not None
    assert after.standby.cluster.profile is cluster.profile
    after.stop()
    assert local_profile.count() == 0


@pytest.mark.test_all
def test_attached_cluster_runs_the_profile_when_it_needs_it(fresh: Fresh, local_profile: CountingProfile) -> None:
    """An attach needs no profile. The restart after it runs the file, which another process had run; the next one does not."""
    cluster = fresh(2, None, profile=str(local_profile.folder), keep=True, name="kept")
    cluster.leave()
    assert local_profile.count() == 1
    attached = manager.attach("kept")
    assert local_profile.count() == 0
    restarted = attached.restart()
    assert local_profile.count() == 1
    restarted.restart().stop()
    assert local_profile.count() == 0


@pytest.mark.test_all
def test_start_that_takes_over_runs_the_profile_once(fresh: Fresh, local_profile: CountingProfile) -> None:
    """A start that takes over a kept cluster runs the file once, also if it compares settings, and if a restart follows."""
    line = {"profile": str(local_profile.folder), "keep": True, "name": "kept"}
    fresh(2, None, **line).leave()
    assert local_profile.count() == 1
    attached = fresh(2, None, **line, ranks_per_host=1)
    assert local_profile.count() == 1
    attached.restart().stop()
    assert local_profile.count() == 0
