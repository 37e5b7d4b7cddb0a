"""The report under a cell that ran with `--collectives`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mhnb.core.output.results import CellResult
from mhnb.errors import MhnbError
from mhnb.exchange.collectives import ask_launched
from mhnb.view.boards.board import show_collectives

if TYPE_CHECKING:
    from mhnb.cluster import Cluster

__all__ = ["show_launched"]


def show_launched(cluster: Cluster, result: CellResult) -> None:
    """Show what a cell launched. What goes wrong with that is said, and leaves the cell as it is."""
    ranks = [rank.rank for rank in result if rank.outcome not in ("died", "killed", "refused")]
    if not ranks:
        # Nobody is left to ask; the cell's own error has said so.
        return
    try:
        show_collectives(ask_launched(cluster, result.seq, ranks, {rank.rank: rank.host for rank in cluster.ranks}))
    except MhnbError as error:
        print(f"mhjax · --collectives: {type(error).__name__}: {error}", file=sys.stderr)
