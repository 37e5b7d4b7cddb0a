"""`mhnb profile`: list the profiles, copy one, or show one's settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mhnb.cli.command import CommandParser
from mhnb.errors import InvalidRequest
from mhnb.system.resources import HUB_SETTINGS, list_profiles, read_profile_files
from mhnb.system.run_dir import expand_user

if TYPE_CHECKING:
    from mhnb.launchers.profiles import Profile

_ENCRYPT = b"""# Encrypt the network traffic, including that of the hub.
c.IPController.enable_curve = True
"""


def add_profile_command(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `mhnb profile`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|new|show", parser_class=CommandParser)
    actions.add_parser("list", help="List the profiles that come with mhnb, and your own.")
    new = actions.add_parser("new", help="Copy a profile into your IPython folder, where you can change it.")
    new.add_argument("name", metavar="NAME", help="name of the new profile, or the path of a folder to create")
    new.add_argument(
        "--from", dest="origin", default="local", metavar="PROFILE", help="profile to copy (default: local)"
    )
    show = actions.add_parser("show", help="Show the folder of a profile, and each setting with its value.")
    show.add_argument("name", metavar="NAME", help="name of the profile, or its folder")


def run_profile_command(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit status.

    Raises:
        InvalidRequest: the profile does not exist or is invalid, or the new name is already in use.
    """
    {"list": _list, "new": _new, "show": _show}[args.action](args)
    return 0


def _list(_args: argparse.Namespace) -> None:
    from mhnb.launchers.profiles import find_profile, user_profile_dir, user_profiles

    for name in list_profiles():
        print(f"{name:<12}{_first_line(find_profile(name))}")
    for name in user_profiles():
        print(f"{name:<12}{user_profile_dir(name)}")


def _first_line(folder: Path) -> str:
    return (folder / "ipcluster_config.py").read_text(encoding="utf-8").splitlines()[0].strip('"')


def _new(args: argparse.Namespace) -> None:
    from mhnb.launchers.profiles import find_profile, load_profile, user_profile_dir

    source_folder = find_profile(args.origin)
    files = read_profile_files(source_folder)
    if not (source_folder / HUB_SETTINGS).exists() and load_profile(args.origin).settings.is_remote:
        # `ipcluster start` sets it only for a profile without this file.
        files[HUB_SETTINGS] += _ENCRYPT
    is_path = "/" in args.name
    if not is_path and args.name in list_profiles():
        raise InvalidRequest(
            f"profile {args.name!r} comes with mhnb\n  Fix: mhnb profile new my-{args.name} --from {args.name}"
        )
    if not is_path and not args.name.replace("-", "").replace("_", "").isalnum():
        raise InvalidRequest(
            f"profile {args.name!r}: expected letters, digits, - and _ only, or the path of a folder, which has a /"
        )
    folder = expand_user(args.name) if is_path else user_profile_dir(args.name)
    if (folder / "ipcluster_config.py").exists():
        raise InvalidRequest(
            f"{folder} already has an ipcluster_config.py\n  Fix: edit that file, or choose another name"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, content in sorted(files.items()):
        if (folder / file_name).exists():
            raise InvalidRequest(f"{folder / file_name} already exists\n  Fix: choose another name")
        (folder / file_name).write_bytes(content)
    print(f"created {folder}\n  edit its ipcluster_config.py, then run: %mhjax start --profile {args.name}")


def _show(args: argparse.Namespace) -> None:
    from mhnb.launchers.profiles import load_profile

    profile = load_profile(args.name)
    print(f"{profile.name} · {profile.kind} · {profile.folder}")
    if profile.count is not None:
        print(f"  c.Cluster.n = {profile.count}")
    for line in _format_settings(profile):
        print(line)


def _format_settings(profile: Profile) -> list[str]:
    cls = type(profile.settings)
    traits = cls.class_traits(config=True)
    lines = []
    for name in sorted(traits):
        value = getattr(profile.settings, name)
        # Settings with a default value are marked with `#`, as suggestions are in the profile's file.
        mark = "  " if value != traits[name].default_value and value not in ([], {}) else "# "
        lines += [f"  {mark}c.{cls.__name__}.{name} = {value!r}", f"      {traits[name].help}"]
    return lines
