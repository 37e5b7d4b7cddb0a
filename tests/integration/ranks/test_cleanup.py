"""After a notebook and its supervisor were killed at once, every process of the cluster that still runs can be found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mhnb.cluster.cleanup import _find_orphan_reason, end_orphan, find_orphans
from mhnb.system.run_dir import RunRecord
from tests.integration.ranks.conftest import wait_for_exit

NOTEBOOK = """
import sys, mhnb
cluster = mhnb.start(2, 1, name="orphans")
cell = '''
import subprocess, jax
nap = ["sleep", "1000"]
both = [subprocess.Popen(nap).pid, subprocess.Popen(nap, start_new_session=True).pid]
both'''
started = [pid for rank in cluster.run(cell).check() for pid in eval(rank.text)]
ranks = [cluster.hub_pid, *(rank.pid for rank in cluster.ranks)]
print(cluster.supervisor_pid, *ranks, *started, flush=True)
if sys.stdin.readline():
    cluster.stop()
    print("stopped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns a cluster whose cell has started four other processes."""
    with subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"MHNB_HOME": str(tmp_path)},
    ) as process:
        yield process
        process.kill()


def read_pids(notebook: subprocess.Popen[str]) -> list[int]:
    """Return the pids of the supervisor, the hub, two ranks, and the processes that the cell has started."""
    assert notebook.stdout is not None
    return [int(word) for word in notebook.stdout.readline().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("also_hub", [False, True])
@pytest.mark.sample(1)
@pytest.mark.test_all
def test_processes_of_cells_are_found_after_all_were_killed(
    notebook: subprocess.Popen[str],
    also_hub: bool,  # noqa: FBT001
) -> None:
    """The ranks end with their supervisor; their subprocesses, also in sessions of their own, are found and ended."""
    supervisor, hub, *rest = read_pids(notebook)
    ranks, started = rest[:2], rest[2:]
    assert not {orphan.pid for orphan in find_orphans(os.environ)} & set(started)
    # What sees its notebook end, and is killed a moment later, may have begun to end what the cells started.
    for pid in (supervisor, *ranks):
        os.kill(pid, signal.SIGSTOP)
    for pid in [notebook.pid, supervisor, *([hub] if also_hub else [])]:
        os.kill(pid, signal.SIGKILL)
    notebook.wait()
    assert wait_for_exit([supervisor, hub, *ranks]) == []
    assert all(map(psutil.pid_exists, started))
    orphans = [stray for stray in find_orphans(os.environ) if stray.pid in started]
    assert {stray.pid for stray in orphans} == set(started)
    assert {stray.kind for stray in orphans} == {"sleep, process"}
    for stray in orphans:
        end_orphan(stray)
    assert wait_for_exit(started) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment that a process was started with")
def test_processes_of_live_notebook_are_not_orphans(notebook: subprocess.Popen[str]) -> None:
    """A cell's server in its own session outlives a stop, as the user intended, until the notebook has ended too."""
    assert notebook.stdin is not None
    assert notebook.stdout is not None
    supervisor, *rest = read_pids(notebook)
    own_sessions = rest[4::2]
    notebook.stdin.write("stop\n")
    notebook.stdin.flush()
    assert notebook.stdout.readline() == "stopped\n"
    assert wait_for_exit([supervisor, *rest[:3]]) == []
    assert all(map(psutil.pid_exists, own_sessions))
    assert not {orphan.pid for orphan in find_orphans(os.environ)} & set(own_sessions)
    notebook.kill()
    notebook.wait()
    orphans = [stray for stray in find_orphans(os.environ) if stray.pid in own_sessions]
    for stray in orphans:
        end_orphan(stray)
    assert {stray.pid for stray in orphans} == set(own_sessions)
    assert wait_for_exit(own_sessions) == []


@pytest.mark.test_all
def test_stopped_supervisor_of_killed_notebook_is_ended(notebook: subprocess.Popen[str], tmp_path: Path) -> None:
    """A stopped supervisor is found by its record and resumed only to end, with its ranks and their process groups."""
    supervisor, *other_pids = read_pids(notebook)
    started = other_pids[3:]
    os.kill(supervisor, signal.SIGSTOP)
    notebook.kill()
    notebook.wait()
    environment = os.environ | {"MHNB_HOME": str(tmp_path)}
    (orphan,) = [stray for stray in find_orphans(environment) if stray.pid == supervisor]
    end_orphan(orphan)
    assert wait_for_exit([supervisor, *other_pids[:3]]) == []
    for remaining in [stray for stray in find_orphans(environment) if stray.pid in started]:
        end_orphan(remaining)
    assert wait_for_exit(started) == []


def test_process_that_ends_during_check_is_not_orphan() -> None:
    """A process that ends during the check is not an orphan.

    Other clusters of this user may end at any moment, also between listing the processes and checking one of them.
    """
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        process = psutil.Process(started.pid)
        started.communicate(b"\n")
    own_record = RunRecord(
        run_dir="", name="x", owner_pid=started.pid, supervisor_pid=started.pid, is_detachable=False, rank_pids=()
    )
    assert [_find_orphan_reason(process, record, ()) for record in (None, own_record)] == [None, None]
