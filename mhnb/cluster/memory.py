"""Ask the ranks what their memory holds. No array is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhnb.cluster.requests import RankClient, check_ranks, read_values, request_all
from mhnb.core.memory import MemoryReport, RankMemory
from mhnb.core.typed_json import convert, to_json_types
from mhnb.errors import ClusterError


def read_memory(client: RankClient, name: str, ranks: Sequence[int] | None = None) -> MemoryReport:
    """Return what the memory of the ranks holds.

    Args:
        client: the cluster.
        name: of the cluster.
        ranks: the ranks to ask; None for all.
    """
    answers = request_all(client, check_ranks(ranks, client.process_count), "memory", {})
    return MemoryReport(name, read_values("memory", answers, RankMemory))


def pack_report(report: MemoryReport) -> dict[str, Any]:
    """Return a report as values that a shell receives, and reads with `unpack_report`."""
    return {"name": report.name, "ranks": {str(rank): to_json_types(memory) for rank, memory in report.ranks.items()}}


def unpack_report(values: Mapping[str, Any]) -> MemoryReport:
    """Read the values of a report.

    Raises:
        ClusterError: they are of another form.
    """
    try:
        ranks = convert(values["ranks"], dict[str, RankMemory])
        return MemoryReport(str(values["name"]), {int(rank): memory for rank, memory in ranks.items()})
    except (KeyError, ValueError) as error:
        raise ClusterError(
            f"the notebook sent an unexpected answer to 'memory': {error!s:.200}; its version of mhnb may differ\n"
            "  Fix: install the same mhnb in both environments"
        ) from error
