"""Prepare a host: the folders that matplotlib gets."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from mhnb.core.messages import HostSpec
from mhnb.rank.host_setup import prepare_host

pytestmark = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")


def _prepare(run_dir: Path, environment: dict[str, str]) -> str | None:
    spec = HostSpec("unix:none", "00", 0, 1, 1, [0], 1, "", {}, {}, "", str(run_dir))
    prepare_host(spec, environment)
    return environment.get("MPLCONFIGDIR")


def test_usable_matplotlib_folder_is_kept(tmp_path: Path) -> None:
    """matplotlib keeps the user's own folder, whether `HOME` or `MPLCONFIGDIR` names it."""
    home, configured = tmp_path / "home", tmp_path / "named"
    assert _prepare(tmp_path / "run", {"HOME": str(home)}) is None
    assert _prepare(tmp_path / "run", {"HOME": str(home), "MPLCONFIGDIR": str(configured)}) == str(configured)


def test_matplotlib_gets_a_folder_if_none_is_usable(tmp_path: Path) -> None:
    """All ranks get one folder in the run directory if matplotlib has no usable folder.

    Otherwise each rank would make its own and leave it behind; the run directory is removed after the run.
    """
    (tmp_path / "file").touch()
    unusable = str(tmp_path / "file" / "folder")
    run_dir_folder = str(tmp_path / "run" / "matplotlib")
    assert _prepare(tmp_path / "run", {}) == run_dir_folder
    assert _prepare(tmp_path / "run", {"HOME": unusable}) == run_dir_folder
    assert _prepare(tmp_path / "run", {"HOME": str(tmp_path), "MPLCONFIGDIR": unusable}) == run_dir_folder
    assert _prepare(tmp_path / "run", {"HOME": ""}) == run_dir_folder


@pytest.mark.skipif(sys.platform == "darwin", reason="there it has one folder")
def test_settings_stay_if_only_the_cache_is_unusable(tmp_path: Path) -> None:
    """Only the cache moves if the settings folder is usable, so that matplotlib's styles are read as without mhnb."""
    (tmp_path / "file").touch()
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "file" / "folder")}
    assert _prepare(tmp_path / "run", environment) is None
    assert environment["XDG_CACHE_HOME"] == str(tmp_path / "run" / "cache")
