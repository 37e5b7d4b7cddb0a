"""Versions of a rank's software, which must be the same on all ranks."""

from __future__ import annotations

import importlib.metadata
import platform

__all__ = ["read_versions"]


def read_versions() -> dict[str, str]:
    """Return the version of the interpreter and of each package through which ranks share a protocol or a program."""
    names = ("jax", "jaxlib", "mhnb", "numpy")
    found = {name: _version(name) for name in names}
    return {"python": platform.python_version(), **{name: v for name, v in found.items() if v}}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
