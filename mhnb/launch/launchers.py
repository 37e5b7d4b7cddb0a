"""Which launcher a shape asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mhnb.core.shape import Shape
from mhnb.errors import InvalidRequest
from mhnb.launch.base import Launcher
from mhnb.launch.split import SplitLauncher

__all__ = ["find_launcher"]


def find_launcher(shape: Shape, reach: Mapping[str, Any]) -> Launcher:  # noqa: ARG001  # not yet
    """Make the launcher of a shape's profile.

    Raises:
        InvalidRequest: no profile of that name, or a setting that it does not have.
    """
    if shape.profile == "split":
        return SplitLauncher()
    raise InvalidRequest(f"profile {shape.profile!r} is not known")
