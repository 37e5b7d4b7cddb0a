"""Facts that a rank reports after its start."""

from __future__ import annotations

from mhnb.cluster.status import describe_ranks
from mhnb.core.messages import CellEnded
from mhnb.types import DeviceRef
from tests.unit.core.state.test_machine import Driver, ended


def test_devices_initialised_by_a_cell_are_known_at_its_end() -> None:
    """A cell that initialises JAX itself reports the rank's devices with its final reply; later cells change nothing."""
    driver = Driver().ready()
    assert [info.devices for info in describe_ranks(driver.machine)] == [(), ()]
    driver.submit()
    driver(*(_ended_with_devices(rank) for rank in range(2)))
    driver.submit(2)
    driver(ended(0, seq=2), ended(1, seq=2))
    wanted = [tuple(DeviceRef(rank, ordinal) for ordinal in range(2)) for rank in range(2)]
    assert [info.devices for info in describe_ranks(driver.machine)] == wanted


def _ended_with_devices(rank: int) -> CellEnded:
    facts = {"devices": [[rank, ordinal, "cpu"] for ordinal in range(2)]}
    return CellEnded(rank, 1, "ok", [], 0.1, facts=facts)
