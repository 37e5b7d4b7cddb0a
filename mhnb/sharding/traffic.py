"""Bytes that a collective moves: what a device contributes, the part of it for another host, and what ring algorithms send.

Definitions, for the busiest device and one run of the collective:

* bytes/device: the payload, which is all that the device contributes (its operands). Zero if it is alone in its group.
* across hosts: the part of the payload that is for a device of another host, each byte counted once however many such
  devices need it. In a group of n with m on the device's own host: (n - m)/n if the payload is split into n parts (all-reduce,
  reduce-scatter, all-to-all), all of it if every device receives all of it (all-gather, collective-broadcast).
* sent in rings: what a bandwidth-optimal ring sends: all-reduce 2(n-1)/n, reduce-scatter and all-to-all (n-1)/n of the
  payload, all-gather (n-1) times the payload, broadcast and permute the payload. Sources: Patarasuk and Yuan, "Bandwidth
  optimal all-reduce algorithms for clusters of workstations" (2009), and `doc/PERFORMANCE.md` of nccl-tests.
  Of it across hosts: all of it if the next device of the ring is on another host (all-to-all: if the partner is).

The payload does not depend on the algorithm. XLA may choose another algorithm than rings, and does not report its choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mhnb.sharding.hlo import HloCollective
from mhnb.sharding.hlo_groups import Groups

__all__ = ["Traffic", "crosses_hosts", "measure_traffic"]

_SPLIT_OPS = ("all-reduce", "all-to-all", "ragged-all-to-all", "reduce-scatter")
_PAIRED = ("collective-permute", "send")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes per run, on the busiest device."""

    nbytes: int = 0
    """What it contributes."""
    nbytes_across_hosts: int = 0
    """The part of it that is for another host."""
    ring_nbytes: int = 0
    """What it sends in a ring algorithm."""
    ring_nbytes_across_hosts: int = 0
    """The part of that whose next device is on another host."""

    def maximum(self, other: Traffic) -> Traffic:
        """Return the larger of each."""
        return Traffic(
            max(self.nbytes, other.nbytes),
            max(self.nbytes_across_hosts, other.nbytes_across_hosts),
            max(self.ring_nbytes, other.ring_nbytes),
            max(self.ring_nbytes_across_hosts, other.ring_nbytes_across_hosts),
        )


def measure_traffic(collective: HloCollective, hosts: Sequence[Hashable]) -> Traffic:
    """Compute the bytes of one run of a collective.

    Args:
        collective: from `parse_collectives`.
        hosts: the host of each position of the device assignment.

    >>> from mhnb.sharding.hlo import HloShape
    >>> reduce = HloCollective("all-reduce", "r", (HloShape("f32", (128, 64)),), (), groups=((0, 1, 2, 3),))
    >>> measure_traffic(reduce, "abcd")
    Traffic(nbytes=32768, nbytes_across_hosts=24576, ring_nbytes=49152, ring_nbytes_across_hosts=49152)
    """
    total = Traffic()
    if collective.op in _PAIRED:
        for source, target in collective.pairs:
            if source != target:
                across = collective.nbytes if hosts[source] != hosts[target] else 0
                total = total.maximum(Traffic(collective.nbytes, across, collective.nbytes, across))
        return total
    # Groups spread over hosts in the same way move the same bytes, so only a few of many thousands are computed.
    for size, same, leaves in _group_stats(collective.groups, tuple(hosts)):
        total = total.maximum(_measure_group(collective, size, same, is_cross_host=leaves))
    return total


@lru_cache(maxsize=1024)
def _group_stats(groups: Groups, hosts: tuple[Hashable, ...]) -> frozenset[tuple[int, int, bool]]:
    return frozenset(_group_stat(group, hosts) for group in groups if len(group) > 1)


def _group_stat(group: Sequence[int], hosts: Sequence[Hashable]) -> tuple[int, int, bool]:
    """Return the size, the members on the host that has the fewest of them, and whether the ring crosses hosts."""
    group_hosts = [hosts[position] for position in group]
    return len(group), min(Counter(group_hosts).values()), len(set(group_hosts)) > 1


def _measure_group(collective: HloCollective, size: int, same: int, *, is_cross_host: bool) -> Traffic:
    payload, op = collective.nbytes, collective.op
    cut = _ceil(payload * (size - same), size) if is_cross_host else 0
    if op in _SPLIT_OPS:
        sent = _ceil(payload * (size - 1) * (2 if op == "all-reduce" else 1), size)
        ring_across = cut if op.endswith("all-to-all") else sent
        return Traffic(payload, cut, sent, ring_across if is_cross_host else 0)
    sent = payload * (size - 1) if op == "all-gather" else payload
    return Traffic(payload, payload if is_cross_host else 0, sent, sent if is_cross_host else 0)


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def crosses_hosts(collective: HloCollective, hosts: Sequence[Hashable]) -> bool:
    """Return whether any of its bytes crosses hosts.

    >>> crosses_hosts(HloCollective("all-gather", "g", (), (), groups=((0, 1), (2, 3))), "aabb")
    False
    """
    if collective.op in _PAIRED:
        return any(hosts[source] != hosts[target] for source, target in collective.pairs)
    return any(leaves for _, _, leaves in _group_stats(collective.groups, tuple(hosts)))
