"""Run pip once in each environment that the ranks of a cluster run in, not once per rank."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mhnb.exchange.asks import ask_all, settle
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
    code: int
    """Exit code; 0 for success."""
    said: str


def run_pip(cluster: Cluster, words: Sequence[str]) -> tuple[PipRun, ...]:
    """Run pip on one rank of each host, and wait for all.

    Hosts run at once. Those that may share an environment run one after another, so that two pips never write to one
    environment: the second finds that there is nothing to do.

    Raises:
        ClusterError: a rank is lost, or has no pip.
    """
    doers = one_rank_per_host(cluster)
    environments = ask_all(cluster, [doer.rank for doer in doers], "describe_environment", {})
    alike: dict[tuple[tuple[str, object], ...], list[RankInfo]] = {}
    for doer in doers:
        alike.setdefault(tuple(sorted(environments[doer.rank].value.items())), []).append(doer)

    def run_in_turn(group: list[RankInfo]) -> list[PipRun]:
        return [_run(cluster, doer, environments[doer.rank].value["python"], words) for doer in group]

    with ThreadPoolExecutor(len(alike)) as pool:
        runs = [run for group in pool.map(run_in_turn, alike.values()) for run in group]
    return tuple(runs)


def _run(cluster: Cluster, doer: RankInfo, python: str, words: Sequence[str]) -> PipRun:
    told = settle(doer.rank, "pip", cluster.ask(doer.rank, "pip", {"words": list(words)})).value
    return PipRun(doer.host, doer.hostname, python, told["code"], told["said"])
