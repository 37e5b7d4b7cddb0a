"""The other supported Python and JAX: 3.12+ beside 3.11, and 3.11 beside 3.12+.

Finds an interpreter, creates its environment in `.venv-other`, and reports why there is none.
`python -m tests.support.other_python` prepares it (a step of the set-up: no test uses the network); `--find` only searches.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ENVIRONMENT", "find", "interpreter", "main", "prepare", "why_absent"]

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-other"
PINS = ROOT / ".ci" / "constraints.txt"

_SECOND_LINE = (3, 12)
_WANTED = "3.11" if sys.version_info >= _SECOND_LINE else "3.12 or newer"
_PROBE = "import sys, venv; print(*sys.version_info[:2], sys.executable)"
_NAMES = ("python3.13", "python3.12", "python3.14", "python3.11", "python3")


def _find_uv() -> str | None:
    """Find uv, which `make venv` may have installed beside this interpreter."""
    return shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)


def _candidates() -> Iterator[str]:
    """Yield possible interpreters, the likeliest first; the probe checks whether they run."""
    if named := os.environ.get("MHNB_OTHER_PYTHON"):
        yield named
    yield from (path for name in _NAMES if (path := shutil.which(name)))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from (str(path) for path in sorted(pyenv.glob("versions/3.*/bin/python")))
    if uv := _find_uv():
        wanted = "3.11" if sys.version_info >= _SECOND_LINE else ">=3.12"
        command = [uv, "python", "find", "--no-project", "--no-python-downloads", wanted]
        yield from subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")[:1]


def _is_other(path: str) -> bool:
    """Return whether it runs and has the other Python version."""
    try:
        probe = subprocess.run([path, "-c", _PROBE], capture_output=True, text=True, check=False)
    except OSError:
        return False  # a name that does not run is not a candidate
    if probe.returncode != 0:
        return False
    version = tuple(int(part) for part in probe.stdout.split()[:2])
    return version >= (3, 11) and (version >= _SECOND_LINE) != (sys.version_info >= _SECOND_LINE)


def find() -> str | None:
    """Find an interpreter of the other Python version."""
    return next((path for path in _candidates() if path and _is_other(path)), None)


def interpreter() -> Path:
    """Return the path of the prepared environment's interpreter, whether it exists or not."""
    return ENVIRONMENT / "bin" / "python"


def _environment_digest() -> str:
    """Return a digest of the files that determine the environment."""
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + PINS.read_bytes() + _WANTED.encode()).hexdigest()


def _is_ready() -> bool:
    stamp = ENVIRONMENT / ".ready"
    return stamp.exists() and stamp.read_text() == _environment_digest() and interpreter().exists()


def why_absent() -> str | None:
    """Return why the other Python cannot be used now; None if its environment is ready."""
    if _is_ready():
        return None
    if find():
        return "its environment is not prepared; `make other-python` does that"
    return f"no Python {_WANTED} on PATH, in pyenv or known to uv (or name it in MHNB_OTHER_PYTHON)"


def prepare() -> str:
    """Create the environment unless it exists, and return its state in one line.

    Raises:
        subprocess.CalledProcessError: the environment could not be created.
    """
    if _is_ready():
        return f"other Python: {interpreter()} is ready"
    found = find()
    if found is None:
        return f"other Python: skipped, {why_absent()}"
    wanted = ["--quiet", "--constraint", str(PINS), "--editable", f"{ROOT}[dev]"]
    uv = _find_uv()
    if (
        uv is None
        or subprocess.run(
            [uv, "venv", "--quiet", "--clear", "--seed", "--python", found, ENVIRONMENT], check=False
        ).returncode
    ):
        subprocess.run([found, "-m", "venv", "--clear", ENVIRONMENT], check=True)
    if uv is None or subprocess.run([uv, "pip", "install", "--python", interpreter(), *wanted], check=False).returncode:
        subprocess.run([interpreter(), "-m", "pip", "install", *wanted], check=True)
    (ENVIRONMENT / ".ready").write_text(_environment_digest())
    return f"other Python: made {ENVIRONMENT.name} from {found}"


def main(arguments: list[str]) -> int:
    """Prepare the environment, or with `--find` only print the path of an interpreter."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.other_python", description=__doc__)
    parser.add_argument("--find", action="store_true", help="print an interpreter of the other line; exit 1 if none")
    if parser.parse_args(arguments).find:
        found = find()
        print(found or why_absent())
        return 0 if found else 1
    try:
        print(prepare())
    except subprocess.CalledProcessError as error:
        print(f"other Python: skipped, making {ENVIRONMENT.name} failed: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
