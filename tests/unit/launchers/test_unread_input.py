"""A process that ends before it has read its input counts as ended, without a further error."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from mhnb.core.messages import HostSpec
from mhnb.launchers.local import LocalHost
from mhnb.rank.spawn import _start_process

LONG = "x" * (65536 + 1000)
"""A little more than a pipe holds, so some of it is still unwritten when the reader has ended and the pipe is closed."""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostSpec:
    """The specification of a host whose process reads nothing."""
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    (tmp_path / "log").mkdir()
    return HostSpec("unix:none", "00", 0, 1, 1, [0], 1, "", {}, {"LONG": LONG}, "", str(tmp_path))


@pytest.mark.parametrize("end", ["wait", "release"])
def test_supervisor_that_reads_nothing_counts_as_ended(spec: HostSpec, end: str) -> None:
    """A supervisor that ended without reading its input is reported by its exit code, without an error of the pipe."""
    host = LocalHost(spec, os.environ)
    host._process.wait()
    assert "ended with exit code 1" in host.explain()
    if end == "wait":
        host.wait(())
    else:
        host.release()
    assert host._process._stdin.closed


def test_rank_that_reads_nothing_is_waited_for(spec: HostSpec, tmp_path: Path) -> None:
    """A rank that ends without reading its input is waited for like any other rank."""
    pid = _start_process("none", spec, (tmp_path / "out", tmp_path / "err"))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
