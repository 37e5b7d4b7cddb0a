"""Ask the ranks what their memory holds. No array is read."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.cluster.requests import RankClient, check_ranks, read_values, request_all
from mhnb.core.memory import MemoryReport, RankMemory


def read_memory(client: RankClient, name: str, ranks: Sequence[int] | None = None) -> MemoryReport:
    """Return what the memory of the ranks holds.

    Args:
        client: the cluster.
        name: of the cluster.
        ranks: the ranks to ask; None for all.
    """
    answers = request_all(client, check_ranks(ranks, client.process_count), "memory", {})
    return MemoryReport(name, read_values("memory", answers, RankMemory))
