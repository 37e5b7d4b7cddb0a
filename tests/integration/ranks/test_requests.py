"""Requests to real ranks end as cells do: they are answered, or interrupted, and the ranks live."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult
from mhnb.errors import CellInterrupted, ClusterError
from mhnb.system.waiting import wait_until

WAIT_S = 60.0
ENDLESS = """
import jax
class Endless:
    def __reduce__(self):
        while True: pass
def flatten(value):
    while True: pass
jax.tree_util.register_pytree_node(Endless, flatten, lambda *_: None)
endless = Endless()
"""


class RebuiltSlowly:
    """A value that takes forever on a rank."""

    def __reduce__(self) -> tuple[object, ...]:
        return time.sleep, (100_000,)


def press_ctrl_c(is_time: Callable[[], bool]) -> threading.Thread:
    """Press Ctrl-C in this process once it is time for it."""

    def press() -> None:
        assert wait_until(is_time, WAIT_S, 0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "request_of",
    [
        lambda cluster: cluster.vars(),
        lambda cluster: cluster.check("endless"),
        lambda cluster: cluster.pull("endless"),
        lambda cluster: cluster.memory(),
        lambda cluster: cluster.push(slow=RebuiltSlowly()),
    ],
    ids=["vars", "check", "pull", "memory", "push"],
)
def test_ctrl_c_ends_a_request(cluster: Cluster, request_of: Callable[[Cluster], object]) -> None:
    """Ctrl-C ends the caller's wait and the code of the value on every rank, and the next cell runs on the same processes."""
    pids = [rank.pid for rank in cluster.ranks]
    cluster.run(ENDLESS).check()
    press = press_ctrl_c(lambda: cluster._state_machine.has_requests)
    with pytest.raises(KeyboardInterrupt):
        request_of(cluster)
    press.join()
    assert cluster.run("'next'").check()[3].text == "'next'"
    assert [rank.pid for rank in cluster.ranks] == pids


def ask_for_variables(cluster: Cluster) -> tuple[threading.Thread, list[str]]:
    """Ask in another thread, and return once every rank is asked; the list gets the error."""
    errors: list[str] = []

    def ask() -> None:
        with pytest.raises(ClusterError) as caught:
            cluster.vars()
        errors.append(str(caught.value))

    asking = threading.Thread(target=ask)
    asking.start()
    # A cell that is submitted earlier does not wait for them.
    assert wait_until(lambda: len(cluster._event_loop._requests) == len(cluster.ranks), WAIT_S, 0.01)
    return asking, errors


def test_cell_behind_an_endless_request_is_told(cluster: Cluster) -> None:
    """The cell says for what it waits. Ctrl-C there withdraws it and ends the request, and no rank is killed."""
    cluster.run(ENDLESS).check()
    asking, errors = ask_for_variables(cluster)
    shown: list[str] = []

    def show(result: CellResult) -> None:
        shown.append(result.waiting)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(CellInterrupted, match="while the cell was queued"):
        cluster.run("1", on_snapshot=show)
    asking.join()
    assert shown[0].startswith("waiting for ranks 0-3 to answer 'vars'")
    assert "KeyboardInterrupt: the request was interrupted" in errors[0]
    assert cluster.run("'next'").check()[3].text == "'next'"


def test_interrupt_of_a_cell_that_awaits_ends_a_request_first(cluster: Cluster) -> None:
    """A rank handles a request while its cell awaits. Ctrl-C ends both, and no rank is killed."""
    cluster.run(ENDLESS).check()
    running = cluster.submit("import asyncio; await asyncio.sleep(1000)")
    asking, errors = ask_for_variables(cluster)
    cluster.interrupt()
    assert cluster.follow(running).how == "interrupted"
    asking.join()
    assert "KeyboardInterrupt: the request was interrupted" in errors[0]
    assert cluster.run("'next'").check()[3].text == "'next'"
