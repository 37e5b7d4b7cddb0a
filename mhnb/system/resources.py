"""Locate the packaged documentation, notebooks and profiles.

In a checkout they are beside the package, in an installed wheel inside it. Their content does not matter here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from mhnb.core.arguments import format_unknown
from mhnb.errors import InvalidRequest

HUB_SETTINGS = "ipcontroller_config.py"
"""The file of a profile with the hub's settings."""
_PACKAGE = Path(__file__).resolve().parents[1]


def notebooks_dir(*, package: Path = _PACKAGE) -> Path:
    """Return the folder of the notebooks that come with mhnb."""
    return _find("notebooks", package)


def docs_dir(*, package: Path = _PACKAGE) -> Path:
    """Return the folder of the documentation that comes with mhnb."""
    return _find("docs", package)


def profile_dir(name: str, *, package: Path = _PACKAGE) -> Path:
    """Return the folder of a packaged profile, such as `local`.

    Raises:
        InvalidRequest: unknown profile; the message lists the known ones.
    """
    known = list_profiles(package=package)
    if name not in known:
        raise InvalidRequest(format_unknown("profile", name, known))
    return _find("profiles", package) / name


def default_settings_dir(*, package: Path = _PACKAGE) -> Path:
    """Return the folder of the hub's and engines' default settings files."""
    return _find("profiles", package)


def read_profile_files(profile: Path, *, package: Path = _PACKAGE) -> dict[str, bytes]:
    """Return a profile's settings files by name, with defaults for missing ones.

    Only these: a profile in use has a history, logs, and connection files of other hubs.
    """
    folders = (default_settings_dir(package=package), profile)
    return {path.name: path.read_bytes() for folder in folders for path in sorted(folder.glob("*_config.py"))}


def list_profiles(*, package: Path = _PACKAGE) -> list[str]:
    """Return the names of the profiles that come with mhnb."""
    return sorted(path.parent.name for path in _find("profiles", package).glob("*/ipcluster_config.py"))


def copy_notebooks(folder: Path) -> Path:
    """Copy the notebooks with figures and table into a folder; return it.

    A file that is already there is not overwritten, because a notebook contains the user's own changes.
    """
    (folder / "img").mkdir(parents=True, exist_ok=True)
    sources = [path for pattern in ("*.ipynb", "*.md", "img/*") for path in sorted(notebooks_dir().glob(pattern))]
    for source in sources:
        target = folder / source.relative_to(notebooks_dir())
        if not target.exists():
            shutil.copyfile(source, target)
    return folder


def find_lesson(name: str) -> str:
    """Return the notebook by number or name, as `09` or `deadlock`.

    Raises:
        InvalidRequest: unknown lesson; the message lists those that exist.
    """
    files = _lesson_files()
    for file in files:
        if name in (file[:2], file[:2].removeprefix("0"), _lesson_name(file)):
            return file
    known = [each for file in files for each in (file[:2], _lesson_name(file))]
    raise InvalidRequest(f"--lesson: {format_unknown('lesson', name, known)}")


def find_old_copies(folder: Path) -> list[str]:
    """Return notebooks of an earlier edition, whose lessons have other numbers now."""
    files = _lesson_files()
    names = {_lesson_name(file) for file in files}
    found = sorted(path.name for path in folder.glob(_LESSON_FILES))
    return [file for file in found if file not in files and _lesson_name(file) in names]


_LESSON_FILES = "[0-9][0-9]_*.ipynb"


def _lesson_files() -> list[str]:
    return sorted(path.name for path in notebooks_dir().glob(_LESSON_FILES))


def _lesson_name(file: str) -> str:
    return file[3:].removesuffix(".ipynb")


def _find(folder: str, package: Path) -> Path:
    """Return the folder, preferring the checkout to an older installed copy."""
    candidates = (package.parent / folder, package / folder)
    in_checkout = (package.parent / "pyproject.toml").exists()
    found = [place for place in candidates[0 if in_checkout else 1 :] if place.is_dir()]
    if not found:
        searched = " and ".join(str(place) for place in candidates)
        raise FileNotFoundError(f"the {folder} that come with mhnb are not in {searched}\n  Fix: reinstall mhnb")
    return found[0]
