"""A process that ends while it is looked at."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from mhnb.launch.gone import await_gone, lives
from mhnb.system.processes import find_began_s, is_halted, is_still, resident_nbytes


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> psutil.Process:
    """This process, for psutil one whose files are gone and then another's: it passes the system's error on, as on a machine in a crowd."""
    process = psutil.Process()

    def fail(*_: object, **__: object) -> None:
        raise FileNotFoundError(f"/proc/{process.pid}/stat")

    for look in ("_get_ident", "status", "is_running", "memory_info", "create_time"):
        monkeypatch.setattr(psutil.Process, look, fail)
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_it_is_gone_and_no_error(ending: psutil.Process) -> None:
    """Whoever looks at one process of many goes on to the next."""
    pid = os.getpid()
    assert (find_began_s(pid), is_still(pid, 1.0), is_halted(pid), resident_nbytes(pid)) == (None, False, False, None)
    assert not lives(ending)
    assert await_gone([ending])
