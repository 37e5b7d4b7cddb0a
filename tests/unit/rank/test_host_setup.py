"""Where a supervisor settles."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from mhnb.core.messages import HostSpec
from mhnb.rank.host_setup import prepare_host

pytestmark = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")


def _settle(run_dir: Path, environment: dict[str, str]) -> str | None:
    spec = HostSpec("unix:none", "00", 0, 1, 1, [0], 1, "", {}, {}, "", str(run_dir))
    prepare_host(spec, environment)
    return environment.get("MPLCONFIGDIR")


def test_matplotlib_keeps_a_folder_that_it_can_use(tmp_path: Path) -> None:
    """The user's own, by whichever name."""
    home, named = tmp_path / "home", tmp_path / "named"
    assert _settle(tmp_path / "run", {"HOME": str(home)}) is None
    assert _settle(tmp_path / "run", {"HOME": str(home), "MPLCONFIGDIR": str(named)}) == str(named)


def test_matplotlib_gets_a_folder_where_it_can_use_none(tmp_path: Path) -> None:
    """One for all ranks, which goes with the run: each would make its own otherwise, and leave it behind."""
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "folder")
    ours = str(tmp_path / "run" / "matplotlib")
    assert _settle(tmp_path / "run", {}) == ours
    assert _settle(tmp_path / "run", {"HOME": nowhere}) == ours
    assert _settle(tmp_path / "run", {"HOME": str(tmp_path), "MPLCONFIGDIR": nowhere}) == ours
    assert _settle(tmp_path / "run", {"HOME": ""}) == ours


@pytest.mark.skipif(sys.platform == "darwin", reason="there it has one folder")
def test_settings_stay_where_only_the_cache_has_no_place(tmp_path: Path) -> None:
    """matplotlib's styles are read as without us."""
    (tmp_path / "file").touch()
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "file" / "folder")}
    assert _settle(tmp_path / "run", environment) is None
    assert environment["XDG_CACHE_HOME"] == str(tmp_path / "run" / "cache")
