"""Bytes: compared with values computed by hand, and with a count of every part sent between devices."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.sharding.hlo_collectives import HloCollective
from mhnb.sharding.hlo_text import HloShape
from mhnb.sharding.report import Traffic, crosses_hosts, measure_traffic
from tests.unit.sharding.texts import CPU, read

FOUR_HOSTS = (0, 0, 1, 1, 2, 2, 3, 3)
"""Eight devices, two per host: data (4) crosses hosts, model (2) stays inside."""


def collective(op: str, nbytes: int, groups: tuple[tuple[int, ...], ...]) -> HloCollective:
    """Return a collective of the given size."""
    return HloCollective(op, "made_up", (HloShape("u8", (nbytes,)),), (), groups)


def permute(nbytes: int, *pairs: tuple[int, int]) -> HloCollective:
    """Return a collective-permute along the given pairs."""
    return HloCollective("collective-permute", "made_up", (HloShape("u8", (nbytes,)),), (), (), pairs)


EXPECTED = {
    # 32 KiB summed over four hosts: three quarters are for the others; a ring sends 2 x 3/4.
    "LOOKS' all-reduce": (collective("all-reduce", 32768, ((0, 2, 4, 6), (1, 3, 5, 7))), (32768, 24576, 49152, 49152)),
    # Each device sends its half of f32[64,64] to its neighbour on the host.
    "LOOKS' all-gather": (collective("all-gather", 8192, ((0, 1), (2, 3), (4, 5), (6, 7))), (8192, 0, 8192, 0)),
    # All of it goes to three devices on other hosts; it leaves once, and a ring passes on three pieces.
    "gather over hosts": (collective("all-gather", 1000, ((0, 2, 4, 6),)), (1000, 1000, 3000, 3000)),
    "scatter over hosts": (collective("reduce-scatter", 1000, ((0, 2, 4, 6),)), (1000, 750, 750, 750)),
    "experts over hosts": (collective("all-to-all", 1000, ((0, 2, 4, 6),)), (1000, 750, 750, 750)),
    # Eight devices, two per host: six of eight parts are for other hosts.
    "sum over all": (collective("all-reduce", 800, (tuple(range(8)),)), (800, 600, 1400, 1400)),
    "experts over all": (collective("all-to-all", 800, (tuple(range(8)),)), (800, 600, 700, 600)),
    "broadcast": (collective("collective-broadcast", 800, ((0, 2, 4, 6),)), (800, 800, 800, 800)),
    "alone": (collective("all-reduce", 800, tuple((one,) for one in range(8))), (0, 0, 0, 0)),
    "a stage to the next": (permute(100, (0, 2), (2, 4), (4, 6)), (100, 100, 100, 100)),
    "inside a host": (permute(100, (0, 1), (1, 0)), (100, 0, 100, 0)),
    "to itself": (permute(100, (0, 0)), (0, 0, 0, 0)),
    "uneven groups": (collective("reduce-scatter", 600, ((0, 1), (2, 3, 4))), (600, 400, 400, 400)),
}


@pytest.mark.parametrize(("moved", "bytes_"), EXPECTED.values(), ids=EXPECTED.keys())
def test_traffic_matches_hand_computed_values(moved: HloCollective, bytes_: tuple[int, ...]) -> None:
    """The payload, its part for other hosts, the bytes a ring sends, and those across hosts equal the computed ones."""
    assert measure_traffic(moved, FOUR_HOSTS) == Traffic(*bytes_)
    assert crosses_hosts(moved, FOUR_HOSTS) == bool(bytes_[1])


@pytest.mark.parametrize("size", [2, 3, 4, 8, 64, 4096])
def test_ring_traffic_by_group_size(size: int) -> None:
    """With one device per host an all-reduce sends 2(n-1)/n of its bytes, which approaches twice."""
    found = measure_traffic(collective("all-reduce", 4096 * 3, (tuple(range(size)),)), range(size))
    assert found.ring_nbytes == found.ring_nbytes_across_hosts == Fraction(2 * (size - 1), size) * 4096 * 3
    assert found.nbytes_across_hosts == Fraction(size - 1, size) * 4096 * 3


@pytest.mark.parametrize("kind", CPU)
def test_recorded_programs(kind: str) -> None:
    """In both versions' texts data parallel crosses hosts and tensor parallel does not."""
    (gradients,) = read("data_parallel", kind)
    assert measure_traffic(gradients, FOUR_HOSTS).nbytes_across_hosts == 3 * 4 * (64 + 128 * 64) // 4
    (result,) = read("tensor_parallel", kind)
    assert measure_traffic(result, FOUR_HOSTS) == Traffic(8192, 0, 8192, 0)
    (stage,) = read("pipeline", kind)
    assert measure_traffic(stage, FOUR_HOSTS) == Traffic(2048, 2048, 2048, 2048)
    there, back = read("expert_parallel", kind)
    assert measure_traffic(there, FOUR_HOSTS) == measure_traffic(back, FOUR_HOSTS) == Traffic(2048, 1536, 1536, 1536)


PARTS = 2520
"""Divisible by every group size below 11, so that nothing is rounded."""

groups = st.integers(1, 10).flatmap(lambda size: st.permutations(range(12)).map(lambda order: tuple(order[:size])))
hosts = st.lists(st.integers(0, 3), min_size=12, max_size=12)


def parts(op: str, group: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Return every part that a device contributes: its source, its index, its bytes and its target."""
    size = len(group)
    if op == "all-gather":
        return [(source, 0, PARTS, target) for source in group for target in group]
    return [(source, index, PARTS // size, target) for source in group for index, target in enumerate(group)]


@pytest.mark.parametrize("op", ["all-reduce", "reduce-scatter", "all-to-all", "all-gather"])
@given(group=groups, where=hosts)
def test_bytes_across_hosts_count_parts_that_leave(op: str, group: tuple[int, ...], where: list[int]) -> None:
    """Bytes across hosts are the busiest device's parts that some device of another host needs, each counted once."""
    leaving: dict[int, dict[int, int]] = {}
    for source, index, nbytes, target in parts(op, group):
        if where[source] != where[target]:
            leaving.setdefault(source, {})[index] = nbytes
    expected = max((sum(found.values()) for found in leaving.values()), default=0)
    found = measure_traffic(collective(op, PARTS, (group,)), where)
    assert found.nbytes_across_hosts == expected
    assert found.nbytes_across_hosts <= found.nbytes


@pytest.mark.parametrize("op", ["all-reduce", "reduce-scatter", "all-gather"])
@given(group=groups, where=hosts)
def test_simulated_ring_sends_the_same_bytes(op: str, group: tuple[int, ...], where: list[int]) -> None:
    """In a simulated ring the busiest device sends as much as the formula says."""
    size = len(group)
    piece = PARTS if op == "all-gather" else PARTS // size
    sent, across = [0] * size, [0] * size
    steps = (size - 1) * (2 if op == "all-reduce" else 1)
    for _ in range(steps):
        for position in range(size):
            sent[position] += piece
            if where[group[position]] != where[group[(position + 1) % size]]:
                across[position] += piece
    found = measure_traffic(collective(op, PARTS, (group,)), where)
    assert found.ring_nbytes == max(sent)
    assert found.ring_nbytes_across_hosts == max(across)


@given(group=groups, where=hosts)
def test_one_host_crosses_nothing(group: tuple[int, ...], where: list[int]) -> None:
    """With all devices on one host nothing crosses, and renaming hosts changes nothing."""
    moved = collective("all-reduce", PARTS, (group,))
    assert measure_traffic(moved, [0] * 12).nbytes_across_hosts == 0
    assert measure_traffic(moved, where) == measure_traffic(moved, [f"host{host}" for host in where])
