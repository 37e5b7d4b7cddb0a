"""`mhnb start --keep`: start a cluster from a shell, and leave it running for a notebook that attaches to it."""

from __future__ import annotations

import argparse
import ast
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mhnb.cli.run import QueueProgress, add_guard_option
from mhnb.cluster.flags import CLUSTER, GROUPS, INITIALIZE, SHAPE, add_start_flags, flag_group, start_arguments
from mhnb.core.arguments import seconds_argument
from mhnb.core.cluster_spec import INITIALIZE_ARGUMENTS
from mhnb.core.shorthand import merge_values, shape_argument
from mhnb.types import DeviceRef

if TYPE_CHECKING:
    from mhnb.cluster.cluster import Cluster
    from mhnb.types import StartProgress
    from mhnb.view.tables.start import StartSummary

USAGE = "mhnb start --keep [N|NxD] [OPTIONS]"
DETAILS = """\
A cluster ends with the process that started it, unless it is started with --keep. So mhnb start needs --keep.
In a notebook on this machine, %mhjax attach NAME attaches to the cluster; mhnb stop NAME stops it."""


def add_start_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mhnb start`, which are those of `%mhjax start`."""
    for title in GROUPS:
        # In the order of the help of `%mhjax start`.
        flag_group(parser, title)
    flag_group(parser, SHAPE).add_argument(
        "shape", nargs="?", type=shape_argument, metavar="N|NxD", help="ranks, or ranks x devices per rank: 4, or 4x2"
    )
    cluster = flag_group(parser, CLUSTER)
    cluster.add_argument(
        "--keep", "--persist", action="store_true", help="let the ranks outlive this command (required)"
    )
    cluster.add_argument("--name", default="default", metavar="NAME", help="name of the cluster (default: default)")
    add_guard_option(cluster)
    cluster.add_argument("--no-init", action="store_true", help="leave jax.distributed.initialize() to a cell")
    cluster.add_argument(
        "--start-timeout", type=seconds_argument, metavar="SECONDS", help="limit for the start (default: 120)"
    )
    add_start_flags(parser)
    initialize = flag_group(parser, INITIALIZE)
    for name in INITIALIZE_ARGUMENTS:
        initialize.add_argument(
            f"--{name.replace('_', '-')}", dest=f"initialize_{name}", metavar="VALUE", help=f"its argument {name}"
        )


def start_kept(args: argparse.Namespace) -> int:
    """Start the cluster, print its summary, and detach from it."""
    if not args.keep:
        line = shlex.join(["mhnb", *sys.argv[1:2], "--keep", *sys.argv[2:]]) if args.verb in sys.argv[1:2] else USAGE
        print(
            "mhnb start: without --keep the ranks would end together with this command"
            f"\n  Fix: {line}\n  Or: to run one script: mhnb run SCRIPT",
            file=sys.stderr,
        )
        return 2
    from mhnb.cluster import manager
    from mhnb.view.tables.show import StartDisplay

    with StartDisplay() as display:
        queue = QueueProgress("start")

        def show(progress: StartProgress) -> None:
            display.update(progress)
            if not sys.stdout.isatty():
                queue(progress)

        cluster = manager.start(**_read_arguments(args), on_progress=show)
        display.finish(_summarize(cluster))
    cluster.leave()
    print(f"  in a notebook: %mhjax attach {cluster.name}\n  to stop it: mhnb stop {cluster.name}")
    return 0


def _read_arguments(args: argparse.Namespace) -> dict[str, Any]:
    if args.shape is not None:
        typed = "x".join(str(number) for number in args.shape if number is not None)
        args.n = merge_values(args.shape.ranks, args.n, names=(f"start {typed}", f"-n {args.n}"))
        args.devices = merge_values(
            args.shape.devices, args.devices, names=(f"start {typed}", f"--devices {args.devices}")
        )
    initialize = {
        name: _parse_literal(value)
        for name in INITIALIZE_ARGUMENTS
        if (value := getattr(args, f"initialize_{name}")) is not None
    }
    arguments = {
        "name": args.name,
        "keep": True,
        "init": not args.no_init,
        "initialize": initialize,
        "guard": args.guard,
    }
    if args.start_timeout is not None:
        arguments["start_timeout_s"] = args.start_timeout
    return arguments | start_arguments(args)


def _parse_literal(text: str) -> Any:
    """Parse a value as a Python literal such as 60 or [0, 1]; otherwise return the text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _summarize(cluster: Cluster) -> StartSummary:
    from mhnb.view.tables.start import StartSummary

    ranks = cluster.ranks
    if not cluster.shape.init:
        # JAX is not initialised and does not know its devices yet, so show the requested number.
        requested = range(cluster.shape.devices or 0)
        ranks = tuple(replace(r, devices=tuple(DeviceRef(r.rank, ordinal) for ordinal in requested)) for r in ranks)
    return StartSummary(
        ranks,
        cluster.started_in_s,
        cluster.jax_version,
        cluster.guard,
        location="on this machine" if cluster.shape.is_local else f"by {cluster.shape.kind or cluster.shape.profile}",
        log_dir=str(cluster.log_dir),
        notes=cluster.notes,
        preflight_s=cluster.preflight_s,
    )
