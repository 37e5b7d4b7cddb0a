"""`%mhjax collectives f(args)`, and the report under a cell that ran with `--collectives`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from IPython.core.magic_arguments import MagicArgumentParser

from mhnb import starting
from mhnb.core.results import CellResult
from mhnb.errors import MhnbError
from mhnb.exchange.collectives import ask_collectives, ask_launched
from mhnb.view.board import show_collectives

if TYPE_CHECKING:
    from mhnb.cluster import Cluster
    from mhnb.notebook import Notebook

__all__ = ["collectives", "collectives_flags", "show_launched"]


def collectives(notebook: Notebook, args: argparse.Namespace) -> None:
    """Show the collectives of a call that is not made."""
    del notebook
    cluster = starting.current()
    call = args.line.removeprefix("--why").strip() if args.why else args.line
    show_collectives([ask_collectives(cluster, call, _hosts(cluster))], why=args.why)


def collectives_flags(parser: MagicArgumentParser) -> None:
    """Declare the arguments of `%mhjax collectives`."""
    parser.add_argument(
        "--why", action="store_true", help="say below each the operation, its line, and the shardings that are stated"
    )
    parser.add_argument(
        "call", nargs=argparse.REMAINDER, metavar="f(args)", help="compiled on every rank and not launched"
    )


def show_launched(cluster: Cluster, result: CellResult) -> None:
    """Show what a cell launched. What goes wrong with that is said, and leaves the cell as it is."""
    ranks = [rank.rank for rank in result if rank.outcome not in ("died", "killed", "refused")]
    if not ranks:
        # Nobody is left to ask; the cell's own error has said so.
        return
    try:
        show_collectives(ask_launched(cluster, result.seq, ranks, _hosts(cluster)))
    except MhnbError as error:
        print(f"mhjax · --collectives: {type(error).__name__}: {error}", file=sys.stderr)


def _hosts(cluster: Cluster) -> Mapping[int, str]:
    return {rank.rank: rank.host for rank in cluster.ranks}
