"""`mhnb.sharding` agrees with JAX on random shardings."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.source import ROOT

CHECKS = ("check_arrays", "check_boxes", "check_meshes", "check_plans", "check_public", "check_refusals", "check_words")


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    """The tracebacks of the checks that failed, in a process with eight fake devices."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.unit.sharding.against_jax"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **flags}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    checks, failures = json.loads(done.stdout.splitlines()[-1])
    assert tuple(sorted(checks)) == CHECKS
    return dict(failures)


@pytest.mark.other_python
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.slow
def test_agrees_with_jax(failures: dict[str, str], check: str) -> None:
    """Each check of tests/unit/sharding/against_jax.py passes."""
    assert check not in failures, failures[check]
