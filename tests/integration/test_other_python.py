"""Run the tests marked `other_python` on the other supported line of Python and JAX."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import other_python


def _versions(python: str) -> str:
    probe = "import sys, jax; print(*sys.version_info[:2], jax.__version__)"
    return subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True).stdout


@pytest.mark.ranks
@pytest.mark.requires_part("other_python")
@pytest.mark.timeout(1800)
def test_sample_passes_on_the_other_python(record_property: Callable[[str, object], None]) -> None:
    """The tests marked `other_python` pass on the other Python, and there is at least one."""
    # Only the folders that have some: collecting all tests takes half a minute. Whole folders, because files import tests from others.
    files = (other_python.ROOT / "tests").rglob("test_*.py")
    folders = {str(path.parent) for path in files if "mark.other_python" in path.read_text()}
    options = ["-q", "-p", "no:cacheprovider", "-m", "other_python and not soak"]
    command = [str(other_python.interpreter()), "-m", "pytest", *options, *sorted(folders)]
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "MHNB_REQUIRE", "MHNB_TESTED"))
    }
    done = subprocess.run(command, cwd=other_python.ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    record_property("count", int(passed[1]))


@pytest.mark.ranks
@pytest.mark.requires_part("other_python")
def test_other_python_has_other_versions() -> None:
    """The second environment differs from this one in its versions of Python and JAX."""
    here, there = _versions(sys.executable).split(), _versions(str(other_python.interpreter())).split()
    assert here[1] != there[1]
    assert here[2] != there[2]


def test_broken_python_is_not_a_candidate(tmp_path: Path) -> None:
    """A version manager's stub that is on PATH and fails is not a candidate, and neither is a Python of this line."""
    stub = tmp_path / "python3.12"
    stub.write_text("#!/bin/sh\nexit 127\n")
    stub.chmod(0o700)
    assert not other_python._is_other(str(stub))
    assert not other_python._is_other(str(tmp_path / "not-there"))
    assert not other_python._is_other(sys.executable)
