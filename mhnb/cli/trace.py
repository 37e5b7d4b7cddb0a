"""`mhnb trace`: show where the time of traced cells went, also of a cluster that has ended."""

from __future__ import annotations

import argparse
import os
import shutil
from functools import partial

from mhnb.cli.clusters import add_name_argument, unknown_cluster_error
from mhnb.core.cell_name import find_cell, parse_cell_argument
from mhnb.core.trace import TraceReport
from mhnb.errors import InvalidRequest

DETAILS = """\
A cell that begins with %%mhjax --trace is traced. Traces in folders that were
named there are not listed here; their summaries are beside the timelines."""


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mhnb trace`."""
    add_name_argument(parser)
    parser.add_argument("cell", nargs="?", metavar="CELL", help="as In[7] or 7 (default: the last traced cell)")


def print_trace(args: argparse.Namespace) -> int:
    """Print where the time of a traced cell went, and how to look at its timeline."""
    from mhnb.cluster.flight import find_recorded_runs
    from mhnb.system.trace import read_summaries, write_page
    from mhnb.view.print_text import print_text
    from mhnb.view.reports.trace import build_trace, format_open_text, format_trace_page

    runs = find_recorded_runs(os.environ, args.name)
    if not runs:
        raise unknown_cluster_error(args.name)
    reports = next(filter(None, map(read_summaries, runs)), [])
    if not reports:
        raise InvalidRequest(
            f"mhnb trace {args.name}: no cell of it was traced\n  Fix: %%mhjax --trace, as the first line of a cell"
        )
    report = _choose(args.name, args.cell, reports)
    print(print_text(build_trace(report, is_shell=True)))
    page = write_page(report.path, partial(format_trace_page, report))
    print(format_open_text(report, str(page), has_xprof=shutil.which("xprof") is not None))
    if others := [other.cell_name for other in reports if other is not report]:
        print(f"other traced cells: {', '.join(others)}")
    return 0


def _choose(name: str, cell: str | None, reports: list[TraceReport]) -> TraceReport:
    """Return the last trace of a cell, or of all cells.

    Raises:
        InvalidRequest: no trace is of that cell.
    """
    if cell is None:
        return reports[-1]
    argument = parse_cell_argument(cell)
    known = ", ".join(report.cell_name for report in reports)
    if argument is None:
        raise InvalidRequest(f"mhnb trace {name} {cell!r}: expected a cell, such as In[7] or 7. Traced: {known}")
    seq = find_cell(argument, {report.seq: report.execution_count for report in reports})
    if seq is None:
        raise InvalidRequest(f"mhnb trace {name} {cell}: that cell was not traced. Traced: {known}")
    return next(report for report in reversed(reports) if report.seq == seq)
