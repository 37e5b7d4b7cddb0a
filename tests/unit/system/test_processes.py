"""A process that ends while it is inspected."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from mhnb.system.processes import (
    find_start_time_s,
    is_running,
    is_same_process,
    is_stopped,
    resident_nbytes,
    wait_until_ended,
)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> psutil.Process:
    """This process, as one that has just ended: psutil passes the system's error on, as on a machine with many processes."""
    process = psutil.Process()

    def fail(*_: object, **__: object) -> None:
        raise FileNotFoundError(f"/proc/{process.pid}/stat")

    for method in ("_get_ident", "status", "is_running", "memory_info", "create_time"):
        monkeypatch.setattr(psutil.Process, method, fail)
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_process_that_just_ended_raises_nothing(ending: psutil.Process) -> None:
    """An ended process is reported as not running and raises nothing, so a loop over many processes continues."""
    pid = os.getpid()
    assert (find_start_time_s(pid), is_same_process(pid, 1.0), is_stopped(pid), resident_nbytes(pid)) == (
        None,
        False,
        False,
        None,
    )
    assert not is_running(ending)
    assert wait_until_ended([ending])
