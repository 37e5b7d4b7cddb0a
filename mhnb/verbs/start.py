"""The command that starts a cluster: `%mhjax start`."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.core.asked.expression import seconds_argument
from mhnb.core.asked.shape import INITIALIZE_ARGUMENTS
from mhnb.drive.roll import StartProgress
from mhnb.frontend.boards import snapshot_from_report, summary_from_cluster
from mhnb.startup import starting
from mhnb.startup.asking import resolve_spec
from mhnb.startup.flags import add_start_flags, start_arguments
from mhnb.verbs.outputs import add_panel_start_flags
from mhnb.verbs.verb import Command
from mhnb.view.boards import board

if TYPE_CHECKING:
    from mhnb.frontend.notebook import Session

__all__ = ["COMMANDS", "add_start_command_flags", "progress_callback"]


def add_start_command_flags(parser: MagicArgumentParser) -> None:
    """Add the flags of `%mhjax start`."""
    add_start_flags(parser)
    parser.add_argument("--name", default="default", help="the cluster's name")
    parser.add_argument("--no-init", action="store_true", help="leave jax.distributed.initialize() to a cell")
    parser.add_argument(
        "--keep", action="store_true", help="let the ranks outlive this notebook; mhnb stop NAME ends them"
    )
    parser.add_argument(
        "--spare",
        action="store_true",
        help="keep as many ranks again warm in reserve, so that a restart takes a moment",
    )
    parser.add_argument("--guard", choices=("lockstep", "parity", "off"), help="how launches are compared (lockstep)")
    parser.add_argument(
        "--start-timeout",
        type=seconds_argument,
        default=120.0,
        metavar="SECONDS",
        help="limit for the whole start (120)",
    )
    add_panel_start_flags(parser)
    for name in INITIALIZE_ARGUMENTS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, f"--{name}", metavar="VALUE", help="an argument of jax.distributed.initialize")


def _start(session: Session, args: argparse.Namespace) -> None:
    if args.panel is not None:
        # Without the flag the setting stays, so running a `%mhjax start` cell again changes nothing.
        session.has_persistent_panels = args.panel == "keep"
    initialize = {
        name: _parse_literal(value) for name in INITIALIZE_ARGUMENTS if (value := getattr(args, name)) is not None
    }
    options = start_arguments(args) | {"init": not args.no_init, "initialize": initialize}
    # Flags that were not typed are left out, so they are not compared with the options of a running cluster.
    options |= {name: value for name in ("guard", "keep", "spare") if (value := getattr(args, name))}
    remaining_options = dict(options)
    spec_arguments = [remaining_options.pop(name, None) for name in ("hosts", "devices", "ranks_per_host")]
    shape = resolve_spec(spec_arguments[0], spec_arguments[1], spec_arguments[2], remaining_options)
    if (running := starting.find_running(args.name, shape, remaining_options)) is not None:
        starting.make_current(running)
        name = f"{running.name}: " if len(starting.all_clusters()) > 1 else ""
        print(f"mhjax · {name}{shape.describe()} run already ({running.state}); going on")
        return
    with board.StartDisplay() as progress:
        cluster = starting.start(
            **options,
            name=args.name,
            on_progress=progress_callback(progress),
            start_timeout_s=args.start_timeout,
        )
        progress.finish(summary_from_cluster(cluster))


def progress_callback(progress: board.StartDisplay) -> Callable[[StartProgress], None]:
    """Return a callback that shows the reports of a start on a display."""
    return lambda report: progress.update(snapshot_from_report(report))


def _parse_literal(text: str) -> Any:
    """Parse a flag's value as a Python literal such as 60 or [0, 1]; otherwise return the text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


COMMANDS: dict[str, Command] = {"start": (_start, add_start_command_flags)}
