"""The software of a rank, whose versions must be the same on all of them."""

from __future__ import annotations

import importlib.metadata
import platform

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """Give the version of the interpreter and of each package that ranks share a protocol or a program by."""
    names = ("jax", "jaxlib", "mhnb", "numpy")
    found = {name: _version(name) for name in names}
    return {"python": platform.python_version(), **{name: v for name, v in found.items() if v}}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
