"""Real ranks, and what they leave, inherit and may send: what the page on security promises."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from mhnb.errors import RanksLost
from mhnb.system.waiting import wait_until
from tests.integration.ranks.conftest import list_pids, wait_for_exit

FIND_CHANNEL = """
import gc
from mhnb.transport.client import TransportClient
gc.unfreeze()
own = next(x for x in gc.get_objects() if type(x) is TransportClient)
"""


@pytest.fixture
def begin() -> Callable[..., Cluster]:
    """Start a cluster of two ranks."""
    return lambda name, **options: manager.start(2, 1, name=name, **options)


@pytest.mark.parametrize("is_split", [False, True])
def test_other_users_can_read_no_file(
    begin: Callable[..., Cluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    split_profile: str,
    *,
    is_split: bool,
) -> None:
    """Other users can read no file of a cluster, while it runs and after it, with a umask of 0.

    Folders have mode 0700, files and sockets 0600; what a cell makes has the user's umask.
    """
    home, made = tmp_path / "h", tmp_path / "made"
    monkeypatch.setenv("MHNB_HOME", str(home))
    before = os.umask(0)
    try:
        cluster = begin("modes", keep=True, **({"profile": split_profile} if is_split else {}))
        cluster.run(
            f"import os, jax.numpy as jnp\nprint(jnp.ones(2))\nos.system('echo hi')\nopen({str(made)!r}, 'w').close()"
        )
        cluster.push(v=1)
        cluster.run("1 / 0")
        # ipyparallel writes its list of engines after the first heartbeat.
        assert wait_until(lambda: any(home.rglob("engines.json")), 60.0, 0.05)
        running = list_readable(home)
        cluster.stop()
    finally:
        os.umask(before)
    assert running == {}
    assert list_readable(home) == {}
    assert stat.S_IMODE(made.stat().st_mode) == 0o666


def list_readable(home: Path) -> dict[str, str]:
    """Return the paths that other users could read or enter, with their modes."""
    found = {path: path.lstat().st_mode for path in (home, *home.rglob("*")) if not path.is_symlink()}
    assert len(found) > 20
    return {
        str(path): oct(mode)
        for path, mode in found.items()
        if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600)
    }


@pytest.mark.cold_start  # the system shows the environment with which a process was started
def test_no_process_shows_a_key(begin: Callable[..., Cluster], split_profile: str) -> None:
    """Neither a command line, which every user can read, nor an environment that a cell's subprocess inherits has a key."""
    cluster = begin("keys", profile=split_profile)
    try:
        key = cluster._resources.key.hex()
        shown = cluster.run(
            "import os, subprocess\nprint(subprocess.check_output(['env'], text=True), dict(os.environ))"
        )
        for pid in list_pids(cluster):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                assert key not in " ".join(each.cmdline())
                assert key not in str(each.environ())
        assert all(key not in rank.stdout for rank in shown)
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    "said",
    [
        "own.frames.send([b'shouting'])",
        "own.send(StopHost())",
        "own.send(CellEnded(0, 1, 'ok', [], 0.0))",
        "own.send(OutputProduced(1, 1, [['Stream', 'stdout', 7]]))",
        "own.send(CellEnded(1, 1, 'ok', [], 0.0, {'host_arrays': [[{}]], 'abandoned_launch': [{}]}))",
    ],
)
@pytest.mark.sample(2)
def test_garbage_from_a_cell_ends_only_its_cluster(
    begin: Callable[..., Cluster], capsys: pytest.CaptureFixture[str], said: str
) -> None:
    """A cell that writes to the control connection ends only its own cluster.

    The message names the rank and what it sent; the cell ends, and a restart works.
    """
    cluster = begin("garbage")
    cell = (
        f"{FIND_CHANNEL}from mhnb.core.messages import *\n"
        f"if own.frames.peer == 'r1':\n    {said}\n    import time; time.sleep(600)"
    )
    try:
        message = " ".join(cluster.run(cell).notes)
    except RanksLost as error:
        message = str(error)
    assert "rank 1" in message
    assert "rank 1 (host1) sent an invalid message" in capsys.readouterr().err
    assert cluster.state == "dead"
    pids = list_pids(cluster)
    fresh = cluster.restart()
    assert [rank.stdout for rank in fresh.run("print('whole')")] == ["whole\n"] * 2
    fresh.stop()
    assert wait_for_exit(pids) == []
