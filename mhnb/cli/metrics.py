"""`mhnb metrics`: show or write what the cells of a cluster have logged, which the process of its notebook has."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mhnb.cli.ask import ask_notebook, describe_silence
from mhnb.cli.clusters import add_name_argument, find_cluster
from mhnb.errors import ClusterError, InvalidRequest

_ANSWER_S = 60.0

DETAILS = """\
The points are in the process of the notebook, which must be running. A line of
the file has one point: generation, cell, rank, step, name, value."""


def add_metrics_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mhnb metrics`."""
    add_name_argument(parser)
    parser.add_argument("--csv", metavar="FILE", help="write all points to this file")


def print_metrics(args: argparse.Namespace) -> int:
    """Print a line for each metric, or write all points.

    Raises:
        ClusterError: the notebook could not report them.
        InvalidRequest: the file cannot be written.
    """
    record = find_cluster(args.name)
    answer = ask_notebook(record, "metrics", _ANSWER_S)
    if answer is None:
        print(f"mhnb metrics {args.name}: {describe_silence(record, _ANSWER_S)}", file=sys.stderr)
        return 1
    if answer.outcome == "failed":
        raise ClusterError(f"the notebook of cluster {record.name!r} could not report its metrics: {answer.text}")
    if args.csv is None:
        print(answer.text)
        return 0
    target = Path(args.csv).expanduser()
    try:
        target.write_text(answer.values["csv"], encoding="utf-8", newline="")
    except OSError as error:
        raise InvalidRequest(
            f"--csv {args.csv}: {error.strerror or error}; expected a file that can be written"
        ) from error
    print(f"wrote {target}: {answer.values['summary']}")
    return 0
