"""Real standby ranks: a restart uses them, starts other ranks if they do not fit, and leaves none behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from mhnb.errors import InvalidRequest
from tests.integration.ranks.conftest import list_pids, wait_for_exit

Fresh = Callable[..., Cluster]
WAIT_S = 60.0


def wait_for_standby(cluster: Cluster) -> list[int]:
    """Wait until the standby cluster is ready; return the pids of its ranks."""
    assert cluster.standby is not None
    standby, deadline = cluster.standby.cluster, time.monotonic() + WAIT_S
    while standby.state == "starting" and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert standby.state == "clean", standby.reason
    return [rank.pid for rank in standby.ranks if rank.pid is not None]


def test_restart_uses_the_standby_ranks(fresh: Fresh) -> None:
    """The standby ranks become the cluster, a replay works on them, and new ones start; without a replay they are bare."""
    cluster = fresh(4, 1, standby=True)
    cluster.run("import jax\nx = jax.device_count()").check()
    old, warm = list_pids(cluster), wait_for_standby(cluster)
    after = cluster.restart(replay=True)
    try:
        assert [rank.pid for rank in after.ranks] == warm
        assert wait_for_exit(old) == []
        assert after.run("x")[3].text == "4"
        wait_for_standby(after)
        again = after.restart()
        assert (again.generation, again.run("'x' in dir()")[3].text) == (cluster.generation + 2, "False")
        pids = [*list_pids(again), *wait_for_standby(again)]
    finally:
        manager.by_name(cluster.name).stop()
    assert wait_for_exit(pids) == []


@pytest.mark.parametrize("what", ["environment", "killed"])
@pytest.mark.test_all
def test_standby_ranks_that_do_not_fit_are_not_used(fresh: Fresh, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """If the environment has changed or a standby rank has died, the restart starts other ranks, and nothing is left."""
    cluster = fresh(2, 1, standby=True)
    warm = wait_for_standby(cluster)
    if what == "environment":
        monkeypatch.setenv("MHNB_TEST_WORD", "new")
    else:
        os.kill(warm[0], signal.SIGKILL)
        assert wait_for_exit(warm) == []
    after = cluster.restart()
    try:
        assert not set(warm) & {rank.pid for rank in after.ranks}
        assert wait_for_exit(warm) == []
        value = after.run("import os\nos.environ.get('MHNB_TEST_WORD')")[1].text
        assert value == ("'new'" if what == "environment" else None)
    finally:
        after.stop()


@pytest.mark.test_all
def test_interrupted_restart_ends_the_standby_ranks(fresh: Fresh) -> None:
    """If a restart is interrupted while the standby ranks start, they are ended, and the next restart starts other ranks.

    Otherwise nothing would refer to them any more.
    """
    cluster = fresh(2, 1, standby=True)
    warm, standby = wait_for_standby(cluster), cluster.standby
    assert standby is not None

    def interrupt(_timeout_s: float) -> None:
        raise KeyboardInterrupt

    standby.start_thread.join = interrupt  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        cluster.restart()
    assert wait_for_exit(warm) == []
    after = cluster.restart()
    try:
        assert after.run("1 + 1")[1].text == "2"
    finally:
        after.stop()


def test_standby_and_keep_exclude_each_other() -> None:
    """`--keep` and `--standby` exclude each other, because standby ranks that outlive the notebook are useless."""
    with pytest.raises(InvalidRequest, match="--keep cannot be combined with --standby"):
        manager.start(2, 1, name="both", keep=True, standby=True)
