"""`%mhjax collectives f(args)`: list the collectives that the compiler puts into a program, without running it."""

from __future__ import annotations

import argparse

from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.exchange.collectives import request_collectives
from mhnb.frontend.notebook import Session
from mhnb.startup import starting
from mhnb.verbs.verb import Command
from mhnb.view.boards.board import show_collectives

__all__ = ["COMMANDS"]


def _collectives(session: Session, args: argparse.Namespace) -> None:
    cluster = starting.current()
    call, why = args.line.removeprefix("--why").strip() if args.why else args.line, args.why
    if call.endswith(" --why"):
        # After the call, `--why` is also valid Python (two minus signs), so it arrives as part of the call.
        call, why = call.removesuffix("--why").strip(), True
    hosts = {rank.rank: rank.host for rank in cluster.ranks}
    show_collectives([request_collectives(cluster, call, hosts)], why=why)


def _collectives_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument(
        "--why", action="store_true", help="say below each the operation, its line, and the shardings that are stated"
    )
    parser.add_argument(
        "call", nargs=argparse.REMAINDER, metavar="f(args)", help="compiled on every rank and not launched"
    )


COMMANDS: dict[str, Command] = {"collectives": (_collectives, _collectives_flags)}
