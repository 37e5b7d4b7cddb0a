"""The command that starts a cluster: `%mhjax start`."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.core.asked.numerals import seconds
from mhnb.core.asked.shape import INITIALIZE_ARGUMENTS
from mhnb.drive.roll import StartReport
from mhnb.frontend.boards import gather_snapshot, gather_summary
from mhnb.startup import starting
from mhnb.startup.asking import take_shape
from mhnb.startup.flags import add_place_flags, place_options
from mhnb.verbs.outputs import panel_start_flags
from mhnb.verbs.verb import Verb
from mhnb.view.boards import board

if TYPE_CHECKING:
    from mhnb.frontend.notebook import Notebook

__all__ = ["VERBS", "add_start_flags", "shown"]


def add_start_flags(parser: MagicArgumentParser) -> None:
    """Add the flags of `%mhjax start`."""
    add_place_flags(parser)
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
        "--start-timeout", type=seconds, default=120.0, metavar="SECONDS", help="limit for the whole start (120)"
    )
    panel_start_flags(parser)
    for name in INITIALIZE_ARGUMENTS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, f"--{name}", metavar="VALUE", help="an argument of jax.distributed.initialize")


def _start(notebook: Notebook, args: argparse.Namespace) -> None:
    if args.panel is not None:
        # Without the flag the setting stays, so running a `%mhjax start` cell again changes nothing.
        notebook.keep_panels = args.panel == "keep"
    initialize = {name: _literal(value) for name in INITIALIZE_ARGUMENTS if (value := getattr(args, name)) is not None}
    options = place_options(args) | {"init": not args.no_init, "initialize": initialize}
    # Flags that were not typed are left out, so they are not compared with the options of a running cluster.
    options |= {name: value for name in ("guard", "keep", "spare") if (value := getattr(args, name))}
    rest = dict(options)
    own = [rest.pop(name, None) for name in ("hosts", "devices", "ranks_per_host")]
    shape = take_shape(own[0], own[1], own[2], rest)
    if (running := starting.find_running(args.name, shape, rest)) is not None:
        starting.use(running)
        name = f"{running.name}: " if len(starting.all_clusters()) > 1 else ""
        print(f"mhjax · {name}{shape.describe()} run already ({running.state}); going on")
        return
    with board.StartBoard() as progress:
        cluster = starting.start(
            **options,
            name=args.name,
            on_progress=shown(progress),
            start_timeout_s=args.start_timeout,
        )
        progress.finish(gather_summary(cluster))


def shown(progress: board.StartBoard) -> Callable[[StartReport], None]:
    """Return a callback that shows the reports of a start on a display."""
    return lambda report: progress.update(gather_snapshot(report))


def _literal(text: str) -> Any:
    """Parse a flag's value as a Python literal such as 60 or [0, 1]; otherwise return the text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


VERBS: dict[str, Verb] = {"start": (_start, add_start_flags)}
