"""`mhnb flight`: show what the flight recorders of a cluster hold, even of one that has ended."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mhnb.cli.ask import ask_notebook
from mhnb.cli.clusters import add_name_argument, unknown_cluster_error
from mhnb.core.ranks import parse_ranks
from mhnb.system.run_dir import find_clusters_named, has_live_notebook

_ANSWER_S = 60.0

DETAILS = """\
The recordings of the ranks on this machine are read where they are. Those on
other machines come from the process of the notebook, as long as it runs.
After a restart, the run before it has a name such as main.4711.1; the last
five runs that have ended are kept."""


def add_flight_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mhnb flight`."""
    add_name_argument(parser)
    parser.add_argument("--rank", metavar="R", help="ranks whose last events to print, for example 2 or 0,2-3")
    parser.add_argument("--json", metavar="FILE", help="write all recorded events of all ranks to this file")


def print_flight(args: argparse.Namespace) -> int:
    """Print how the recorded events compare, or the last events of some ranks."""
    from mhnb.cluster.flight import find_recorded_runs, has_all_recordings, read_run, write_report
    from mhnb.view.print_text import print_text
    from mhnb.view.reports.flight import build_flight, build_flights

    runs = find_recorded_runs(os.environ, args.name)
    if not runs:
        raise unknown_cluster_error(args.name)
    for record in find_clusters_named(os.environ, args.name):
        if record.run_dir == str(runs[0]) and has_live_notebook(record) and not has_all_recordings(runs[0]):
            answer = ask_notebook(record, "flight", _ANSWER_S)
            if answer is None or answer.outcome == "failed":
                why = "did not answer" if answer is None else f"answered: {answer.text}"
                print(f"mhnb flight {args.name}: the process of the notebook {why}", file=sys.stderr)
    report = read_run(runs[0])
    count = max(flight.rank for flight in report.flights) + 1
    if args.json is not None:
        print(write_report(report, Path(args.json).expanduser()))
    elif args.rank is not None:
        print(print_text(build_flights(report, parse_ranks(args.rank, count, argument="--rank"))))
    else:
        print(print_text(build_flight(report)))
    return 0
