"""Run pip on this machine, in the environment of the rank."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["describe_environment", "run_pip"]


def describe_environment() -> dict[str, Any]:
    """Describe the environment that packages are installed into. Equal ones may be shared, or be equal copies."""
    prefix = Path(sys.prefix)
    found = prefix.stat()
    return {"python": sys.executable, "prefix": str(prefix), "inode": found.st_ino, "changed_ns": found.st_mtime_ns}


def run_pip(arguments: Sequence[str]) -> dict[str, Any]:
    """Run pip, make imports look at the disk again, and return pip's exit code and output.

    Raises:
        RuntimeError: neither pip nor uv is installed.
    """
    command = _find_pip()
    subcommand, *rest = arguments
    # No user is there to answer a prompt.
    confirmation = ["--yes"] if subcommand == "uninstall" and command[0] == sys.executable else []
    completed = subprocess.run(
        [*command, subcommand, *confirmation, *rest],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        env=os.environ | {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_PYTHON": sys.executable},
    )
    importlib.invalidate_caches()
    return {"code": completed.returncode, "said": completed.stdout}


def _find_pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip"]
    raise RuntimeError(f"{sys.executable} has no pip, and there is no uv; {sys.executable} -m ensurepip may bring it")
