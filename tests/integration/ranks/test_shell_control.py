"""`mhnb status`, `interrupt`, `restart`: from a shell, for a notebook whose main thread hangs, and for a cluster without a notebook."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mhnb.cluster.attach import list_cluster_records
from mhnb.system.run_dir import find_clusters_named
from tests.support.source import ROOT

_NOTEBOOK = """
import sys
import mhnb
from mhnb.errors import MhnbError
from tests.support.warm_start import use_warm_supervisors

use_warm_supervisors()
cluster = mhnb.start(2, 1, name={name!r}, keep={keep})
{before}
print("ready", *(rank.pid for rank in cluster.ranks), flush=True)
try:
    result = cluster.run({cell!r})
    print("ended", result.how or "normally", mhnb.current().state, flush=True)
except MhnbError as error:
    print("ended", type(error).__name__, flush=True)
sys.stdin.readline()
print("now", mhnb.current().generation, *(rank.pid for rank in mhnb.current().ranks), flush=True)
print("value", mhnb.current().run("import jax; print(jax.process_index())").check()[1].stdout.strip(), flush=True)
mhnb.current().leave() if {keep} else mhnb.current().stop()
"""
_HANG_IN_COLLECTIVE = """
import jax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec as P
if jax.process_index() == 0:
    multihost_utils.sync_global_devices("never reached by rank 1")
else:
    threading.Event().wait()
"""
_HANG = "import threading; threading.Event().wait()"
_BEFORE = 'cluster.run("import jax, threading").check()'
_INTERRUPTED = 'cluster.run("import time; time.sleep(1000)", timeout_s=0.5)'


def _mhnb(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mhnb", *words], capture_output=True, text=True, check=False, timeout=100
    )


class RunningNotebook:
    """A process with a cluster, whose main thread is in a cell."""

    def __init__(self, name: str, cell: str, *, keep: bool, before: str) -> None:
        program = _NOTEBOOK.format(name=name, cell=cell, keep=keep, before=before)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.rank_pids: list[str] = []

    def wait_ready(self) -> None:
        """Wait until its ranks have started."""
        _, *self.rank_pids = self.read("ready")

    def read(self, word: str) -> list[str]:
        """Return the words of the next line, which begins with this one."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == [word], words
        return words

    def go_on(self) -> None:
        """Let the main thread go on after the cell."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def running_notebook(
    name: str, cell: str = _HANG, *, keep: bool = False, before: str = _BEFORE
) -> Iterator[RunningNotebook]:
    """Run a notebook whose main thread hangs in a cell, after earlier code, and end what is left of it."""
    notebook = RunningNotebook(name, cell, keep=keep, before=before)
    try:
        notebook.wait_ready()
        yield notebook
    finally:
        notebook.process.kill()
        notebook.process.communicate()
        if find_clusters_named(os.environ, name):
            _mhnb("stop", name)


def _read_status(name: str) -> dict[str, Any]:
    done = _mhnb("status", name, "--json")
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout)
    return values


def _wait_for_status(name: str, **expected: object) -> dict[str, Any]:
    """Return the status once it has these values; the test's time limit ends the wait.

    While a restart replaces the processes, there is a moment without a cluster of that name.
    """
    while True:
        done = _mhnb("status", name, "--json")
        values: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        if values and all(values[key] == value for key, value in expected.items()):
            return values


@pytest.mark.parametrize("cell", [_HANG, _HANG_IN_COLLECTIVE], ids=["blocked", "collective"])
@pytest.mark.sample(1)
def test_interrupt_from_a_shell_ends_the_cell(leftovers: None, cell: str) -> None:
    """`mhnb interrupt` ends the cell in which a notebook's main thread hangs, also one in a collective that others never reach."""
    with running_notebook("hung", cell) as notebook:
        _wait_for_status("hung", state="running")
        done = _mhnb("interrupt", "hung")
        assert (done.returncode, done.stdout) == (0, "hung: interrupted cell 2\n"), done.stderr
        assert notebook.read("ended")[1] == "interrupted"
        assert _mhnb("interrupt", "hung").stdout == "hung: no cell is running\n"


def test_restart_from_a_shell_gives_new_ranks(leftovers: None) -> None:
    """`mhnb restart` replaces the processes while the notebook's main thread hangs; its cell ends with an error, and cells run again."""
    with running_notebook("hung") as notebook:
        _wait_for_status("hung", state="running")
        done = _mhnb("restart", "hung")
        assert (done.returncode, done.stdout) == (0, "hung: 2 ranks restarted\n"), done.stderr
        assert notebook.read("ended")[1] == "NotStarted"
        notebook.go_on()
        _, generation, *pids = notebook.read("now")
        assert generation == "2"
        assert not set(pids) & set(notebook.rank_pids)
        assert notebook.read("value") == ["value", "1"]
        assert notebook.process.wait(60) == 0


@pytest.mark.test_all
def test_replay_from_a_shell_restores_the_variables(leftovers: None) -> None:
    """`mhnb restart --replay` runs the cells again in the notebook's process, and prints what ran and what was left out.

    A cell that does not exist is refused before anything is stopped.
    """
    with running_notebook("hung") as notebook:
        _wait_for_status("hung", state="running")
        done = _mhnb("restart", "hung", "--replay", "--to", "9")
        assert (done.returncode, done.stdout) == (1, "")
        assert "--to 9: unknown cell; the journal has cell 1 of generation 1" in done.stderr
        assert _read_status("hung")["state"] == "running"
        done = _mhnb("restart", "hung", "--replay")
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(
            r"hung: 2 ranks restarted\nmhjax · replayed cell 1 · \d.*\n  left out · cell 2: the cluster was stopped during it\n",
            done.stdout,
        )
        assert notebook.read("ended")[1] == "NotStarted"
        notebook.go_on()
        notebook.read("now")
        assert notebook.read("value") == ["value", "1"]
        assert notebook.process.wait(60) == 0


@pytest.mark.test_all
def test_replay_goes_on_if_its_shell_is_interrupted(leftovers: None, tmp_path: Path) -> None:
    """Ctrl-C ends only the command, which says so; `mhnb interrupt` ends the replay."""
    flag = tmp_path / "hang"
    before = f"import os, threading\nos.path.exists({str(flag)!r}) and threading.Event().wait()"
    with running_notebook("hung", before=f"cluster.run({before!r}).check()"):
        _wait_for_status("hung", state="running")
        flag.touch()
        command = [sys.executable, "-m", "mhnb", "restart", "hung", "--replay"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as restart:
            _wait_for_status("hung", generation=2, state="running")
            restart.send_signal(signal.SIGINT)
            _, printed = restart.communicate()
        goes_on = "mhnb restart: the notebook's process goes on with it\n  To stop that: mhnb interrupt hung\n"
        assert (restart.returncode, printed) == (130, goes_on)
        assert _mhnb("interrupt", "hung").stdout == "hung: interrupted cell 1\n"


def test_status_is_read_while_a_cell_hangs(leftovers: None) -> None:
    """`mhnb status` shows the state and each rank, as text and as JSON; `mhnb list` shows the cluster below a header."""
    with running_notebook("hung") as notebook:
        values = _wait_for_status("hung", state="running")
        assert values["answered"]
        assert [str(rank["pid"]) for rank in values["ranks"]] == notebook.rank_pids
        assert {rank["last_cell"] for rank in values["ranks"]} == {"2 running"}
        assert all(rank["memory_bytes"] > 1 << 20 for rank in values["ranks"])
        text = _mhnb("status", "hung").stdout
        assert text.startswith("hung · running · generation 1 · 2 ranks × 1 CPU device · guard lockstep\n")
        assert f"notebook: pid {notebook.process.pid}\n" in text
        header, *rows = _mhnb("list").stdout.splitlines()
        assert header.split() == ["NAME", "RANKS", "LOCATION", "NOTEBOOK", "SUPERVISOR", "KEEP"]
        (row,) = [row.split() for row in rows if row.startswith("hung ")]
        assert (row[1], row[-1]) == ("2", "no")
        (listed,) = [each for each in json.loads(_mhnb("list", "--json").stdout) if each["name"] == "hung"]
        assert listed.items() <= values.items()
        assert (listed["attached"], listed["keep"], listed["notebook_pid"]) == (True, False, notebook.process.pid)


@pytest.mark.test_all
def test_suspended_notebook_is_reported(leftovers: None) -> None:
    """If the notebook's process is suspended, the commands say so, change nothing, and name the command that needs no answer."""
    with running_notebook("hung") as notebook:
        _wait_for_status("hung", state="running")
        os.kill(notebook.process.pid, 19)
        try:
            done = _mhnb("interrupt", "hung")
            values = _read_status("hung")
        finally:
            os.kill(notebook.process.pid, 18)
        assert done.returncode == 1
        assert f"the process of its notebook (pid {notebook.process.pid}) did not answer" in done.stderr
        assert f"Fix: mhnb stop hung.{notebook.process.pid}" in done.stderr
        assert (values["answered"], values["state"]) == (False, None)
        assert [rank["state"] for rank in values["ranks"]] == ["alive", "alive"]
        # The request was withdrawn: the process does not find it when it goes on.
        assert _wait_for_status("hung", answered=True)["state"] == "running"


_NOT_REPLAYED = "nothing to replay: no cell left the cluster clean"


@pytest.mark.parametrize(
    ("before", "cell", "replayed"),
    [("", 1, _NOT_REPLAYED), (_BEFORE, 2, "replayed cell 1 · "), (_INTERRUPTED, 2, _NOT_REPLAYED)],
    ids=["first", "later", "after an interrupt"],
)
@pytest.mark.test_all
@pytest.mark.sample(1)
def test_detached_cluster_is_interrupted_and_restarted(leftovers: None, before: str, cell: int, replayed: str) -> None:
    """Without a notebook, the shell attaches to the cluster, ends its cell or replaces its processes, and detaches again.

    So does the next shell, although another process has started the ranks; a replay there goes on from the journal.
    """
    with running_notebook("hung", keep=True, before=before) as notebook:
        _wait_for_status("hung", state="running")
        notebook.process.kill()
        notebook.process.wait()
        assert "no notebook is attached\n  Fix: %mhjax attach hung." in _mhnb("status", "hung").stdout
        done = _mhnb("interrupt", "hung")
        assert (done.returncode, done.stdout) == (0, f"hung: interrupted cell {cell}; state clean\n"), done.stderr
        assert _mhnb("interrupt", "hung").stdout == "hung: no cell is running; state clean\n"
        (earlier,) = list_cluster_records(os.environ)
        done = _mhnb("restart", "hung")
        assert (done.returncode, done.stdout) == (
            0,
            "hung: 2 ranks restarted\n  In a notebook: %mhjax attach hung\n",
        ), done.stderr
        done = _mhnb("restart", "hung", "--replay")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"hung: 2 ranks restarted\nmhjax · {replayed}")
        (record,) = list_cluster_records(os.environ)
        assert record.generation == earlier.generation + 2
