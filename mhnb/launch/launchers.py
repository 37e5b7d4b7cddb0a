"""Which launcher a shape asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mhnb.core.hosts import parse_host
from mhnb.core.shape import Shape
from mhnb.core.ssh import SshOptions
from mhnb.errors import InvalidRequest
from mhnb.launch.base import Launcher
from mhnb.launch.split import SplitLauncher
from mhnb.launch.ssh_hosts import SshLauncher

__all__ = ["find_launcher", "read_ssh_options"]


def find_launcher(shape: Shape, reach: Mapping[str, Any]) -> Launcher:
    """Make the launcher of a shape's profile.

    Raises:
        InvalidRequest: no profile of that name, or a setting that it does not have.
    """
    if shape.profile == "split":
        return SplitLauncher()
    if shape.profile == "ssh":
        return SshLauncher([parse_host(name) for name in shape.machines], read_ssh_options(reach))
    raise InvalidRequest(f"profile {shape.profile!r} is not known")


def read_ssh_options(reach: Mapping[str, Any]) -> SshOptions:
    """Read the settings of the ssh profile."""
    known = {part.name for part in fields(SshOptions)}
    if unknown := sorted(set(reach) - known):
        raise InvalidRequest(
            f"start: there is no option {', '.join(unknown)}; for ssh there are {', '.join(sorted(known))}"
        )
    return SshOptions(**reach)
