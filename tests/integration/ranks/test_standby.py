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
from tests.integration.ranks.conftest import every_pid, wait_gone

Fresh = Callable[..., Cluster]
WAIT_S = 60.0


def wait_for_spare(cluster: Cluster) -> list[int]:
    """Wait until the standby cluster is ready; return the pids of its ranks."""
    assert cluster.spare is not None
    reserve, until = cluster.spare.cluster, time.monotonic() + WAIT_S
    while reserve.state == "starting" and time.monotonic() < until:
        threading.Event().wait(0.05)
    assert reserve.state == "clean", reserve.reason
    return [rank.pid for rank in reserve.ranks if rank.pid is not None]


def test_a_restart_takes_the_reserve(fresh: Fresh) -> None:
    """The standby ranks become the cluster, a replay works on them, and new ones start; without a replay they are bare."""
    cluster = fresh(4, 1, spare=True)
    cluster.run("import jax\nx = jax.device_count()").check()
    old, warm = every_pid(cluster), wait_for_spare(cluster)
    after = cluster.restart(replay=True)
    try:
        assert [rank.pid for rank in after.ranks] == warm
        assert wait_gone(old) == []
        assert after.run("x")[3].text == "4"
        wait_for_spare(after)
        again = after.restart()
        assert (again.generation, again.run("'x' in dir()")[3].text) == (cluster.generation + 2, "False")
        pids = [*every_pid(again), *wait_for_spare(again)]
    finally:
        manager.by_name(cluster.name).stop()
    assert wait_gone(pids) == []


@pytest.mark.parametrize("what", ["environment", "killed"])
def test_a_reserve_that_does_not_fit_is_not_taken(fresh: Fresh, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """If the environment has changed or a standby rank has died, the restart starts other ranks, and nothing is left."""
    cluster = fresh(2, 1, spare=True)
    warm = wait_for_spare(cluster)
    if what == "environment":
        monkeypatch.setenv("MHNB_TEST_WORD", "new")
    else:
        os.kill(warm[0], signal.SIGKILL)
        assert wait_gone(warm) == []
    after = cluster.restart()
    try:
        assert not set(warm) & {rank.pid for rank in after.ranks}
        assert wait_gone(warm) == []
        told = after.run("import os\nos.environ.get('MHNB_TEST_WORD')")[1].text
        assert told == ("'new'" if what == "environment" else None)
    finally:
        after.stop()


def test_a_restart_that_is_given_up_while_the_reserve_comes_up(fresh: Fresh) -> None:
    """If a restart is interrupted while the standby ranks start, they are ended, and the next restart starts other ranks.

    Otherwise nothing would refer to them any more.
    """
    cluster = fresh(2, 1, spare=True)
    warm, spare = wait_for_spare(cluster), cluster.spare
    assert spare is not None

    def give_up() -> None:
        raise KeyboardInterrupt

    spare.start_thread.join = give_up  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        cluster.restart()
    assert wait_gone(warm) == []
    after = cluster.restart()
    try:
        assert after.run("1 + 1")[1].text == "2"
    finally:
        after.stop()


def test_spare_and_keep_do_not_go_together() -> None:
    """`--keep` and `--spare` exclude each other, because standby ranks that outlive the notebook are useless."""
    with pytest.raises(InvalidRequest, match="--keep and --spare"):
        manager.start(2, 1, name="both", keep=True, spare=True)
