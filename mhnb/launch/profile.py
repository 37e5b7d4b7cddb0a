"""Profiles: IPython profile directories that define how hosts are reached. Find one, read its settings, report its errors.

A profile's kind is the launcher that its ipcluster_config.py names: `c.Cluster.engine_launcher_class = "mhnb-slurm"`.
"""

from __future__ import annotations

import ast
import difflib
import shlex
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.paths import get_ipython_dir
from traitlets import Dict, List, TraitError, TraitType, Unicode
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from mhnb.errors import InvalidRequest
from mhnb.launch.settings import KINDS, Settings
from mhnb.system.resources import list_profiles, profile_dir

__all__ = ["Profile", "find_profile", "is_path", "load_profile", "user_profile_dir", "user_profiles"]

_FILE = "ipcluster_config.py"
_PREFIX = "mhnb-"


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile that was loaded."""

    name: str
    """Name as requested."""
    folder: Path
    kind: str
    """local, ssh, slurm, mpi, gpu, tpu, kubernetes."""
    count: int | None
    """Its number of ranks, `c.Cluster.n`; None if it sets none."""
    settings: Settings


def user_profile_dir(name: str) -> Path:
    """Return the folder of a user's own profile, in IPython's directory."""
    return Path(get_ipython_dir()) / f"profile_{name}"


def user_profiles() -> list[str]:
    """Return the names of the user's own profiles whose launcher is one of mhnb's."""
    files = sorted(Path(get_ipython_dir()).glob(f"profile_*/{_FILE}"))
    return [
        file.parent.name.removeprefix("profile_") for file in files if f'"{_PREFIX}' in file.read_text(encoding="utf-8")
    ]


def is_path(name: str) -> bool:
    """Return whether a profile is named by its folder."""
    return "/" in name or name.startswith((".", "~"))


def find_profile(name: str) -> Path:
    """Return the folder of a profile: a given directory, one of the user's own, or one that comes with mhnb.

    Raises:
        InvalidRequest: unknown profile; the message lists the existing ones.
    """
    if not is_path(name) and name in list_profiles():
        return profile_dir(name)
    folder = Path(name).expanduser().absolute() if is_path(name) else user_profile_dir(name)
    if (folder / _FILE).is_file():
        return folder
    if is_path(name):
        raise InvalidRequest(
            f"--profile {name}: there is no {_FILE} in that folder; mhnb profile new {name} --from ssh makes a profile to change"
        )
    raise InvalidRequest(
        f"--profile {name!r}: there is no such profile; there are {', '.join([*list_profiles(), *user_profiles()])}, "
        "or give the folder of one, with a /"
    )


def load_profile(name: str, profile_settings: Mapping[str, Any] | None = None) -> Profile:
    """Load a profile; settings of this start override its own.

    Args:
        name: its name or directory.
        profile_settings: settings by name; texts are parsed as the setting's type.

    Raises:
        InvalidRequest: an unknown profile, a file that cannot be run, an unknown setting, a value of the wrong type; the message names
            the file and the line, or the option.
    """
    folder = find_profile(name)
    path = folder / _FILE
    config = _run_config(path)
    kind = _find_kind(config, path)
    cls = KINDS[kind]
    _check_settings(config, path)
    settings = cls()
    known = cls.class_traits(config=True)
    for key, value in config.get(cls.__name__, {}).items():
        _set(settings, key, value, _locate_setting(path, cls.__name__, key))
    for key, value in (profile_settings or {}).items():
        if key not in known:
            raise InvalidRequest(
                f"start: there is no option {key}; profile {name} has {', '.join(sorted(known))}{_did_you_mean(key, known)}"
            )
        if value is not None:
            _set(settings, key, _parse_setting(known[key], value, key), f"{key}={value!r}")
    return Profile(name, folder, kind, config.get("Cluster", {}).get("n"), settings)


def _run_config(path: Path) -> Config:
    """Run the file as IPython would.

    Raises:
        InvalidRequest: it cannot be run; the message names the line.
    """
    try:
        return PyFileConfigLoader(path.name, path=str(path.parent)).load_config()
    except SyntaxError as error:
        line = error.lineno if error.filename == str(path) else None
        raise InvalidRequest(f"{_format_position(path, line)}: {error.msg}: {(error.text or '').strip()}") from error
    except Exception as error:  # a profile is the user's own code
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        raise InvalidRequest(
            f"{_format_position(path, lines[-1] if lines else None)}: {type(error).__name__}: {error}"
        ) from error


def _format_position(path: Path, line: int | None) -> str:
    return f"{path}, line {line}" if line else str(path)


def _find_kind(config: Config, path: Path) -> str:
    named = config.get("Cluster", {}).get("engine_launcher_class", f"{_PREFIX}local")
    kind = str(named).removeprefix(_PREFIX)
    if not str(named).startswith(_PREFIX) or kind not in KINDS:
        where = _locate_setting(path, "Cluster", "engine_launcher_class")
        raise InvalidRequest(
            f"{where}: {named!r} is no launcher of mhnb; give one of {', '.join(_PREFIX + kind for kind in sorted(KINDS))}"
        )
    return kind


def _check_settings(config: Config, path: Path) -> None:
    """Raise for settings that would have no effect, because their class or name does not exist."""
    classes = {cls.__name__: cls for cls in KINDS.values()}
    for owner, settings in config.items():
        if owner.startswith("Mhnb") and owner not in classes:
            raise InvalidRequest(
                f"{_locate_setting(path, owner)}: there is no c.{owner}; there are {', '.join(sorted(classes))}"
            )
        known = classes[owner].class_trait_names(config=True) if owner in classes else list(settings)
        for name in settings:
            if name not in known:
                raise InvalidRequest(
                    f"{_locate_setting(path, owner, name)}: c.{owner} has no setting {name!r}{_did_you_mean(name, known)}; "
                    f"it has {', '.join(sorted(known))}"
                )


def _did_you_mean(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _locate_setting(path: Path, owner: str, name: str | None = None) -> str:
    """Return the file, and the line that sets something if the text shows it."""
    wanted = f"c.{owner}" if name is None else f"c.{owner}.{name}"
    lines = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == wanted
    ]
    return _format_position(path, max(lines, default=None))


def _set(settings: Settings, name: str, value: object, where: str) -> None:
    try:
        setattr(settings, name, value)
    except TraitError as error:
        trait = settings.traits()[name]
        raise InvalidRequest(f"{where}: {name} is {value!r}, and {trait.info()} is expected: {trait.help}") from error


def _parse_setting(trait: TraitType[Any, Any], value: object, name: str) -> object:
    """Parse a typed text as the type of the setting; other values stay as they are."""
    if isinstance(trait, List):
        return (
            shlex.split(value) if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else value
        )
    if isinstance(trait, Dict) and isinstance(value, str | list):
        pairs = [text.partition("=") for text in ([value] if isinstance(value, str) else value)]
        return {key: setting for key, _, setting in pairs}
    if isinstance(value, list):
        # If a flag was given twice, the last value counts.
        value = value[-1]
    if not isinstance(value, str) or isinstance(trait, Unicode):
        return value
    try:
        return trait.from_string(value)
    except (TraitError, ValueError) as error:
        raise InvalidRequest(f"{name}={value!r}: {trait.info()} is expected: {trait.help}") from error
