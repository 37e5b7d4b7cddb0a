"""Receive files from the notebook, and run pip on a rank's machine.

For a sync the rank finds out which files are missing, writes them, and reports what they mean for imports.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from mhnb.system.processes import digest_file
from mhnb.system.run_dir import find_home

_PARTIAL_SUFFIX = ".mhnb-part"
"""Suffix of a file that is not complete yet, so that an import never finds half of one."""


def list_missing_files(subfolder: str, files: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return which files are missing here or differ.

    Args:
        subfolder: the folder, relative to this rank's working directory.
        files: for each path, its size in bytes, mode and digest.
    """
    cwd = Path.cwd()
    folder = cwd / _check_inside(subfolder) if subfolder else cwd
    wanted = [path for path, facts in files.items() if not _is_same(folder / _check_inside(path), *facts)]
    return {"folder": str(folder), "wanted": wanted, "strays_home": not subfolder and cwd == find_home()}


def write_files(folder: str, chunks: Sequence[Sequence[Any]], payload: Sequence[Any]) -> None:
    """Write chunks of files in order; name a file when complete.

    Raises:
        OSError: a file cannot be written; no partial file is left.
    """
    for (path, mode, start, is_last), data in zip(chunks, payload, strict=True):
        target = Path(folder) / _check_inside(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}{_PARTIAL_SUFFIX}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if start and partial.stat().st_size != start:
                raise OSError(f"{target}: the part before byte {start} is missing")
            with partial.open("ab" if start else "wb") as file:
                file.write(data)
            if is_last:
                partial.chmod(mode)
                partial.replace(target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def finish_files(folder: str, paths: Sequence[str]) -> list[str]:
    """Invalidate import caches; return modules imported from replaced files."""
    importlib.invalidate_caches()
    changed = {str(Path(folder) / path) for path in paths}
    return sorted(name for name, module in tuple(sys.modules.items()) if getattr(module, "__file__", None) in changed)


def _check_inside(path: str) -> PurePosixPath:
    """Check that a path stays in its folder, and return it.

    Raises:
        ValueError: the path is outside the folder.
    """
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"{path!r} is outside the target folder")
    return pure


def _is_same(path: Path, nbytes: int, mode: int, digest: str) -> bool:
    try:
        found = path.stat()
        return found.st_size == nbytes and found.st_mode & 0o777 == mode and digest_file(path) == digest
    except OSError:
        return False


# -- run pip in the rank's environment


def describe_environment() -> dict[str, Any]:
    """Describe the environment that packages are installed into.

    Equal descriptions mean one shared environment, or equal copies.
    """
    prefix = Path(sys.prefix)
    found = prefix.stat()
    return {"python": sys.executable, "prefix": str(prefix), "inode": found.st_ino, "changed_ns": found.st_mtime_ns}


def run_pip(arguments: Sequence[str]) -> dict[str, Any]:
    """Run pip, invalidate import caches, and return exit code and output.

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
    raise RuntimeError(f"{sys.executable} has no pip, and uv was not found\n  Fix: {sys.executable} -m ensurepip")
