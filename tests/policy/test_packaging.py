"""An installed package has what a checkout has: the wheel's contents, the profiles, the directories."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from mhnb.errors import InvalidRequest
from mhnb.system.resources import (
    copy_notebooks,
    default_settings_dir,
    docs_dir,
    notebooks_dir,
    profile_dir,
    read_profile_files,
)
from tests.support.source import PACKAGE, ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel of this checkout without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_wheel_contains_every_file(wheel: zipfile.ZipFile) -> None:
    """Every module, solution, notebook, profile and page is in the wheel, the tests are not, and the package is typed."""
    names = set(wheel.namelist())
    # The solutions of the exercises, which `mhnb.teach.solution` reads, are `.ipy`.
    code = {path.relative_to(ROOT).as_posix() for pattern in ("*.py", "*.ipy") for path in PACKAGE.rglob(pattern)}
    beside = {f"mhnb/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "profiles").rglob("*.py")}
    beside |= {
        f"mhnb/{path.relative_to(ROOT).as_posix()}"
        for pattern in ("*.ipynb", "*.svg")
        for path in (ROOT / "notebooks").rglob(pattern)
    }
    beside |= {f"mhnb/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "docs").rglob("*.md")}
    assert code | beside | {"mhnb/py.typed"} <= names
    assert not [name for name in names if name.startswith("tests/")]


@pytest.mark.other_python
def test_resources_are_found_in_an_installed_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """An unpacked wheel finds its notebooks, pages and profiles inside the package."""
    wheel.extractall(tmp_path)
    assert notebooks_dir(package=tmp_path / "mhnb") == tmp_path / "mhnb" / "notebooks"
    assert docs_dir(package=tmp_path / "mhnb") == tmp_path / "mhnb" / "docs"
    profile = profile_dir("local", package=tmp_path / "mhnb")
    assert profile == tmp_path / "mhnb" / "profiles" / "local"
    assert read_profile_files(profile, package=tmp_path / "mhnb").keys() == read_profile_files(profile).keys()


def test_resources_are_found_in_a_checkout() -> None:
    """In a checkout the directories beside the package are used, not a copy from an editable install."""
    assert notebooks_dir() == ROOT / "notebooks"
    assert docs_dir() == ROOT / "docs"
    assert profile_dir("local") == ROOT / "profiles" / "local"


def test_missing_resources_are_named(tmp_path: Path) -> None:
    """A package without its directories says which one is missing and where it looked."""
    with pytest.raises(FileNotFoundError, match="notebooks that come with mhnb are not in"):
        notebooks_dir(package=tmp_path / "mhnb")


def test_copied_notebooks_keep_the_users_changes(tmp_path: Path) -> None:
    """A copy has every notebook and figure; a second one adds what is missing and keeps what the user has changed."""
    folder = copy_notebooks(tmp_path / "mine")
    changed, deleted = min(folder.glob("*.ipynb")), next((folder / "img").iterdir())
    changed.write_text("changed")
    deleted.unlink()
    assert copy_notebooks(tmp_path / "mine") == folder
    assert changed.read_text() == "changed"
    patterns = ("*.ipynb", "README.md", "img/*")
    wanted = {path.relative_to(notebooks_dir()) for pattern in patterns for path in notebooks_dir().glob(pattern)}
    assert {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} == wanted


def test_unknown_profile_lists_existing_profiles() -> None:
    """A profile that does not come with mhnb is an error that lists those that do."""
    with pytest.raises(InvalidRequest, match=r"unknown profile 'nowhere'; expected .*local"):
        profile_dir("nowhere")


PROFILE_FILES = sorted((ROOT / "profiles").rglob("*_config.py"))
_OWNERS = {
    "Cluster": "ipyparallel.cluster.cluster",
    "HeartMonitor": "ipyparallel.controller.heartmonitor",
    "MhnbGpu": "mhnb.launchers.profiles",
    "MhnbLocal": "mhnb.launchers.profiles",
    "IPController": "ipyparallel.controller.app",
    "IPEngine": "ipyparallel.engine.app",
}


def _unknown_settings(config: Config) -> list[str]:
    unknown = []
    for owner, settings in config.items():
        known = getattr(importlib.import_module(_OWNERS[owner]), owner).class_trait_names(config=True)
        unknown += [f"{owner}.{name}" for name in settings if name not in known]
    return unknown


@pytest.mark.other_python
@pytest.mark.parametrize("path", PROFILE_FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_profile_settings_exist(path: Path) -> None:
    """Every setting of a profile exists in the installed ipyparallel, because a misspelt setting would do nothing."""
    config = PyFileConfigLoader(path.name, path=str(path.parent)).load_config()
    assert config
    assert not _unknown_settings(config)


def test_a_misspelt_setting_is_found() -> None:
    """The check of the settings can fail."""
    assert _unknown_settings(Config({"IPController": {"use_thread": True}})) == ["IPController.use_thread"]


def test_default_hub_listens_on_loopback_only() -> None:
    """No port of a hub with the default settings can be reached from another machine."""
    config = PyFileConfigLoader("ipcontroller_config.py", path=str(default_settings_dir())).load_config()
    assert config.IPController.ip == "127.0.0.1"
    assert not [name for name in config.IPController if name.endswith("_ip")]
