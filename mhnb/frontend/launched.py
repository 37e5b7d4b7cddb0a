"""The report below a cell that ran with `--collectives`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mhnb.core.output.results import CellResult
from mhnb.errors import MhnbError
from mhnb.exchange.collectives import request_launched
from mhnb.view.boards.board import show_collectives

if TYPE_CHECKING:
    from mhnb.cluster import Cluster

__all__ = ["show_launched_collectives"]


def show_launched_collectives(cluster: Cluster, result: CellResult) -> None:
    """Show the collectives that a cell launched. An error in the report is printed and does not fail the cell."""
    ranks = [rank.rank for rank in result if rank.outcome not in ("died", "killed", "refused")]
    if not ranks:
        # No rank can answer, and the cell's own error has already reported that.
        return
    try:
        show_collectives(request_launched(cluster, result.seq, ranks, {rank.rank: rank.host for rank in cluster.ranks}))
    except MhnbError as error:
        print(f"mhjax · --collectives: {type(error).__name__}: {error}", file=sys.stderr)
