"""The flight recorder across machines: recordings are fetched, clocks are aligned, and a lost machine is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from tests.bench.flight import SETUP
from tests.support.source import ROOT
from tests.support.trace_notes import notes_on_losses
from tests.system.hosts.cluster import Begin
from tests.system.hosts.hostnet import HostNet, wait_until

STEPS = """
for step in range(20):
    if rank == 1: time.sleep(0.05)
    total(x).block_until_ready()
"""
AHEAD_S = 3600


@pytest.fixture
def python_with_own_clock(tmp_path: Path) -> Path:
    """A Python that on machine beta has a monotonic clock an hour ahead, as if it had been booted earlier."""
    path = tmp_path / "python"
    clock = f"unshare --time --fork --kill-child --monotonic {AHEAD_S} --boottime {AHEAD_S}"
    path.write_text(
        f'#!/bin/sh\n[ "$(uname -n)" = beta ] && exec {clock} {sys.executable} "$@"\nexec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return path


def test_recordings_of_all_machines_are_compared(begin: Begin) -> None:
    """The events of each rank are read through its supervisor, and `mhnb flight` reads the copies."""
    cluster = begin(2, 1)
    cluster.run(SETUP).check()
    cluster.run("float(total(x))\nif rank == 1: float(total(x))")
    report = cluster.flight()
    assert [flight.problem for flight in report.flights] == ["", ""]
    assert report.divergence is not None
    assert [side.ranks for side in report.divergence.sides] in ([(0,), (1,)], [(1,), (0,)])
    command = [sys.executable, "-m", "mhnb", "flight", cluster.name]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "first difference: cell 2, launch 2 of ranks 0-1" in shown
    assert "problem" not in shown


def test_late_rank_is_named_across_clocks(begin: Begin, python_with_own_clock: Path) -> None:
    """Clocks that are an hour apart are aligned on the launches of all cells; the late rank is named, and the error is stated."""
    cluster = begin(2, 1, python=str(python_with_own_clock))
    cluster.run(SETUP).check()
    cluster.run("for step in range(10): total(x).block_until_ready()").check()
    result = cluster.run(STEPS).check()
    headers = [flight.header for flight in cluster.flight().flights]
    assert headers[0] is not None
    assert headers[1] is not None
    assert headers[0].clock != headers[1].clock
    assert headers[1].monotonic_ns - headers[0].monotonic_ns > 0.9 * AHEAD_S * 1e9
    stragglers = cluster.stragglers()
    assert stragglers is not None
    assert (stragglers.named, stragglers.ranks[0].rank) == ((1,), 1), (stragglers, result.notes)
    assert 0 < stragglers.clock_error_s < 0.01
    assert 0.8 < stragglers.ranks[0].waited_s < 3
    check_timeline(cluster)


def check_timeline(cluster: Cluster) -> None:
    """Check that a trace has both ranks on one clock, the waits for the late one, and the profile of the other machine."""
    report = cluster.run(STEPS, trace=True).check().trace
    assert report is not None
    assert notes_on_losses(report) == []
    first, late = report.ranks
    assert abs(first.begin_s - late.begin_s) < 60
    assert report.span_s < 60
    assert first.waiting_s > late.waiting_s
    profiles = Path(report.folder) / "plugins" / "profile" / f"cell{report.seq}"
    assert all((profiles / f"rank{rank}.xplane.pb").stat().st_size > 1000 for rank in (0, 1))


def test_lost_machine_is_named_with_its_file(begin: Begin, net: HostNet) -> None:
    """The recording of a machine that lost its power cannot be fetched: the report says where it is."""
    cluster = begin(2, 1)
    cluster.run(SETUP).check()
    net[1].cut_power()
    wait_until(lambda: cluster.state == "dead", "the loss is noticed")
    first, second = cluster.flight().flights
    assert first.events
    assert second.problem.startswith("its host (host1) cannot be asked any more; its recording is beta:/")
    assert second.problem.endswith("/flight/rank1.events")
