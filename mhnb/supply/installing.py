"""Run pip once in each environment that the ranks of a cluster run in, not once per rank."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mhnb.exchange.asks import await_reply, request_all
from mhnb.supply.syncing import one_rank_per_host

if TYPE_CHECKING:
    from mhnb.cluster import Cluster
    from mhnb.drive.roll import RankInfo

__all__ = ["PipRun", "run_pip"]


@dataclass(frozen=True, slots=True)
class PipRun:
    """Result of pip in one environment."""

    host: str
    hostname: str
    python: str
    """The interpreter of that environment."""
    exit_code: int
    """Exit code; 0 for success."""
    output: str


def run_pip(cluster: Cluster, arguments: Sequence[str]) -> tuple[PipRun, ...]:
    """Run pip on one rank of each host, and wait for all.

    Hosts run at once. Those that may share an environment run one after another, so that two pips never write to one
    environment: the second finds that there is nothing to do.

    Raises:
        ClusterError: a rank is lost, or has no pip.
    """
    chosen_ranks = one_rank_per_host(cluster)
    environments = request_all(cluster, [doer.rank for doer in chosen_ranks], "describe_environment", {})
    rank_groups: dict[tuple[tuple[str, object], ...], list[RankInfo]] = {}
    for doer in chosen_ranks:
        rank_groups.setdefault(tuple(sorted(environments[doer.rank].value.items())), []).append(doer)

    def run_sequentially(group: list[RankInfo]) -> list[PipRun]:
        return [_run(cluster, doer, environments[doer.rank].value["python"], arguments) for doer in group]

    with ThreadPoolExecutor(len(rank_groups)) as pool:
        runs = [run for group in pool.map(run_sequentially, rank_groups.values()) for run in group]
    return tuple(runs)


def _run(cluster: Cluster, rank_info: RankInfo, python: str, arguments: Sequence[str]) -> PipRun:
    reply = await_reply(rank_info.rank, "pip", cluster.ask(rank_info.rank, "pip", {"words": list(arguments)})).value
    return PipRun(rank_info.host, rank_info.hostname, python, reply["code"], reply["said"])
