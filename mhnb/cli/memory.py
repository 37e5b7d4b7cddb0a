"""`mhnb memory`: show what fills the memory of a cluster's devices. The process of its notebook asks the ranks."""

from __future__ import annotations

import argparse
import json
import sys

from mhnb.cli.ask import ask_notebook, describe_silence
from mhnb.cli.clusters import add_json_option, add_name_argument, find_cluster
from mhnb.cluster.attach import has_owner
from mhnb.core.arguments import int_argument
from mhnb.core.memory import DEFAULT_TOP, parse_top, report_values
from mhnb.errors import ClusterError
from mhnb.system.run_dir import has_live_notebook

_ANSWER_S = 60.0

DETAILS = """\
Ranks answer between cells only: while a cell runs, the command says so.
With --json, it prints all arrays that the ranks report."""


def add_memory_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mhnb memory`."""
    add_name_argument(parser)
    parser.add_argument(
        "--top",
        type=int_argument,
        default=DEFAULT_TOP,
        metavar="N",
        help=f"how many arrays to print, the largest ones (default: {DEFAULT_TOP})",
    )
    add_json_option(parser)


def print_memory(args: argparse.Namespace) -> int:
    """Print what the memory of a cluster holds."""
    from mhnb.cluster.memory import unpack_report
    from mhnb.view.print_text import print_text
    from mhnb.view.reports.memory import build_memory

    top = parse_top(args.top)
    record = find_cluster(args.name)
    if not (has_live_notebook(record) and has_owner(record)):
        raise ClusterError(
            f"no notebook is attached to cluster {record.name!r}, and only its notebook can ask the ranks\n"
            f"  Fix: %mhjax attach {record.full_name}, then %mhjax memory"
        )
    answer = ask_notebook(record, "memory", _ANSWER_S)
    if answer is None or answer.outcome == "failed":
        why = describe_silence(record, _ANSWER_S) if answer is None else answer.text
        print(f"mhnb memory {args.name}: {why}", file=sys.stderr)
        return 1
    report = unpack_report(answer.values)
    print(json.dumps(report_values(report), indent=2) if args.json else print_text(build_memory(report, top)))
    return 0
