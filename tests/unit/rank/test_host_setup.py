"""Prepare a host: the folders that matplotlib gets."""

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
    """matplotlib keeps the user's own folder, whether `HOME` or `MPLCONFIGDIR` names it."""
    home, named = tmp_path / "home", tmp_path / "named"
    assert _settle(tmp_path / "run", {"HOME": str(home)}) is None
    assert _settle(tmp_path / "run", {"HOME": str(home), "MPLCONFIGDIR": str(named)}) == str(named)


def test_matplotlib_gets_a_folder_where_it_can_use_none(tmp_path: Path) -> None:
    """All ranks get one folder in the run directory if matplotlib has no usable folder.

    Otherwise each rank would make its own and leave it behind; the run directory is removed after the run.
    """
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "folder")
    ours = str(tmp_path / "run" / "matplotlib")
    assert _settle(tmp_path / "run", {}) == ours
    assert _settle(tmp_path / "run", {"HOME": nowhere}) == ours
    assert _settle(tmp_path / "run", {"HOME": str(tmp_path), "MPLCONFIGDIR": nowhere}) == ours
    assert _settle(tmp_path / "run", {"HOME": ""}) == ours


@pytest.mark.skipif(sys.platform == "darwin", reason="there it has one folder")
def test_settings_stay_where_only_the_cache_has_no_place(tmp_path: Path) -> None:
    """Only the cache moves if the settings folder is usable, so that matplotlib's styles are read as without mhnb."""
    (tmp_path / "file").touch()
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "file" / "folder")}
    assert _settle(tmp_path / "run", environment) is None
    assert environment["XDG_CACHE_HOME"] == str(tmp_path / "run" / "cache")
