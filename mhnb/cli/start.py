"""`mhnb start --keep`: start a cluster for notebooks to attach to."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from mhnb.cli.run import QueueProgress, add_guard_option
from mhnb.cluster.flags import CLUSTER, GROUPS, add_cluster_start_flags, cluster_start_arguments, flag_group
from mhnb.core.arguments import seconds_argument

if TYPE_CHECKING:
    from mhnb.types import StartProgress

USAGE = "mhnb start --keep [N|NxD] [OPTIONS]"
DETAILS = """\
A cluster ends with the process that started it, unless it is started with --keep. So mhnb start needs --keep.
In a notebook on this machine, %mhjax attach NAME attaches to the cluster; mhnb stop NAME stops it."""


def add_start_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mhnb start`, which are those of `%mhjax start`."""
    for title in GROUPS:
        # In the order of the help of `%mhjax start`.
        flag_group(parser, title)
    add_cluster_start_flags(parser)
    cluster = flag_group(parser, CLUSTER)
    cluster.add_argument("--keep", action="store_true", help="let the ranks outlive this command (required)")
    cluster.add_argument("--persist", dest="keep", action="store_true", help=argparse.SUPPRESS)
    cluster.add_argument("--name", default="default", metavar="NAME", help="name of the cluster (default: default)")
    add_guard_option(cluster)
    cluster.add_argument(
        "--start-timeout",
        dest="start_timeout_s",
        type=seconds_argument,
        metavar="SECONDS",
        help="limit for the start (default: 120)",
    )


def start_kept(args: argparse.Namespace) -> int:
    """Start the cluster, print its summary, and detach from it."""
    if not args.keep:
        line = shlex.join(["mhnb", *sys.argv[1:2], "--keep", *sys.argv[2:]]) if args.command in sys.argv[1:2] else USAGE
        print(
            "mhnb start: without --keep the ranks would end together with this command"
            f"\n  Fix: {line}\n  Or: to run one script: mhnb run SCRIPT",
            file=sys.stderr,
        )
        return 2
    from mhnb.cluster import manager
    from mhnb.cluster.start_summary import summarize_start
    from mhnb.view.progress import StartDisplay

    with StartDisplay() as display:
        queue = QueueProgress("start")

        def show(progress: StartProgress) -> None:
            display.update(progress)
            if not sys.stdout.isatty():
                queue(progress)

        cluster = manager.start(**cluster_start_arguments(args), on_progress=show)
        display.finish(summarize_start(cluster))
    cluster.leave()
    print(f"  in a notebook: %mhjax attach {cluster.name}\n  to stop it: mhnb stop {cluster.name}")
    return 0
