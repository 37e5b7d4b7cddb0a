"""The check that the debugger works on a cluster over machines, however its ranks were started."""

from __future__ import annotations

import threading

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.debugging import DebugRequest
from mhnb.core.output.results import CellResult
from tests.support.typed_lines import User
from tests.system.hosts.cluster import check_sum

__all__ = ["check_debugger"]

_CELL = """\
import socket, jax, jax.numpy as jnp
from jax.experimental import multihost_utils as m
own = jax.process_index()
if own == 1:
    breakpoint()
m.process_allgather(jnp.float32(own)).tolist()"""


class _OthersWait:
    """Types a line only when ranks 0 and 2 wait for rank 1 before the collective."""

    def __init__(self, line: str) -> None:
        self._line, self._seen = line, threading.Event()

    def look(self, snapshot: CellResult) -> None:
        """Take note of a result so far."""
        places = snapshot.where.places if snapshot.where is not None else ()
        if {rank for place in places if place.activity == "agreement" for rank in place.ranks} == {0, 2}:
            self._seen.set()

    def type(self) -> str:
        """Return the line when the ranks wait."""
        self._seen.wait()
        return self._line


def check_debugger(cluster: Cluster, user: User, capsys: pytest.CaptureFixture[str]) -> None:
    """Check on 3 ranks that rank 1 stops while the others wait, and that the cell goes on, or ends cleanly on all of them."""
    first = _OthersWait("p jax.process_index(), socket.gethostname()")
    user.types(first.type, "!own = 10", "c")
    result = cluster.run(_CELL, debug=DebugRequest(), on_snapshot=first.look).check()
    # What was typed changed rank 1 only, before the launch.
    assert [rank.text for rank in result] == ["[0.0, 10.0, 2.0]"] * 3
    assert user.prompts[1:] == ["rank 1 (stopped 1; waiting 0,2) > "] * 2
    assert capsys.readouterr().out.splitlines() == [
        "rank 1 stopped",
        f"> {result.name}, line 5",
        "-> breakpoint()",
        f"(1, '{cluster.ranks[1].hostname}')",
    ]

    leave = _OthersWait("q")
    user.types(leave.type)
    ended = cluster.run(_CELL, debug=DebugRequest(stop_ranks=(1,)), on_snapshot=leave.look)
    assert [rank.outcome for rank in ended] == ["interrupted"] * 3
    assert (ended.how, ended.state) == ("interrupted", "clean")
    check_sum(cluster)
