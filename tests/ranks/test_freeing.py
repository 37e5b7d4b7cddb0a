"""A rank that sits in a collective where no signal reaches it: the interrupt frees it, and its variables are still there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mhnb.cluster import Cluster
from mhnb.core import ladder
from mhnb.errors import CellTimeout, NotClean
from tests.ranks.test_lockstep import SETUP

Fresh = Callable[..., Cluster]

STUCK = {
    "one device, inline": (1, "if rank == 0: y = float(add(x))"),
    "two devices, the queue full": (2, "if rank == 0:\n    for _ in range(5): y = add(x)\n    float(y)"),
    "all but one": (1, "if rank != 1: y = float(add(x))\nelse: time.sleep(1000)"),
}


@pytest.mark.other_python
@pytest.mark.parametrize(("devices", "code"), STUCK.values(), ids=STUCK.keys())
def test_a_rank_stuck_in_a_collective_is_freed_and_keeps_its_variables(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch, devices: int, code: str
) -> None:
    """Tainted, not dead; what is there can be pulled; a collective after `accept` raises on every rank, and never hangs."""
    # What is shown is that they come free, not how fast a loaded machine writes their tracebacks.
    monkeypatch.setattr(ladder, "INTERRUPT_KILL_S", 60.0)
    cluster = fresh(4, devices)
    cluster.run(f"{SETUP}\nkept = 41 + rank").check()
    before = [rank.pid for rank in cluster.ranks]
    result = cluster.run(code, guard="off", timeout_s=3)
    assert result.state == "tainted", result.notes
    assert "sat in a collective that no signal ends" in cluster.reason
    assert {rank.outcome for rank in result} <= {"ok", "error", "interrupted"}
    with pytest.raises(CellTimeout):
        result.check()
    with pytest.raises(NotClean, match="restart --replay"):
        cluster.run("1")
    cluster.accept()
    assert [rank.pid for rank in cluster.ranks] == before
    assert cluster.pull("kept", each=True) == [41, 42, 43, 44]
    after = cluster.run("float(add(x))", guard="off", timeout_s=60)
    assert [rank.outcome for rank in after] == ["error"] * 4
    assert all(rank.error is not None and "Gloo" in rank.error.evalue for rank in after)
    assert after.state == "tainted"
    again = cluster.restart(replay=True)
    assert {rank.text for rank in again.run("float(add(x)), kept - rank")} == {"(28.0, 41)"}
    again.stop()
