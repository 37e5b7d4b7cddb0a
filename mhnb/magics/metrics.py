"""The command `%mhjax metrics`: what the cells have logged with `mhnb.log`, as charts, as a file and as a table."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from mhnb.cluster import manager
from mhnb.cluster.metrics import MetricTable, write_csv
from mhnb.commands.command import Command
from mhnb.core.arguments import unquote
from mhnb.core.cell_name import parse_cell_argument
from mhnb.magics.session import Session, uses_result
from mhnb.view.live.screen import show_document
from mhnb.view.reports.metrics import build_metrics


def _metrics(session: Session, args: argparse.Namespace) -> Any:
    table = manager.latest().metrics
    if args.cell is not None:
        cell = parse_cell_argument(args.cell)
        if cell is None:
            raise UsageError(f"%mhjax metrics --cell {args.cell!r}: expected a cell, such as In[7] or 7")
        table = MetricTable(table.metrics.select_cell(cell))
    if args.names:
        table = MetricTable(table.metrics.select_names(args.names))
    is_used = uses_result(session.shell.user_ns)
    if args.csv is not None:
        print(f"mhjax · {write_csv(table, Path(unquote(args.csv)).expanduser())}")
    elif not is_used:
        show_document(build_metrics(table.metrics, each=bool(args.names)))
    if not is_used:
        return None
    return table.to_dataframe() if find_spec("pandas") is not None else table


def _metrics_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="metrics to show, with each rank (default: all)")
    parser.add_argument("--cell", metavar="CELL", help="only those of this cell, such as In[7] or 7")
    parser.add_argument("--csv", metavar="FILE", help="write all points to this file instead")


COMMANDS = (
    Command(
        "metrics",
        _metrics,
        "Show the metrics that cells have logged, or write them to a file.",
        "look",
        _metrics_flags,
        "[NAME ...] [--cell CELL] [--csv FILE]",
    ),
)
"""The commands of this module."""
