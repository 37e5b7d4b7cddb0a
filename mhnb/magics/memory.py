"""The command `%mhjax memory`: what the memory of the ranks' devices holds."""

from __future__ import annotations

import argparse

from mhnb.cluster import manager
from mhnb.commands.command import Command
from mhnb.core.arguments import int_argument
from mhnb.core.memory import DEFAULT_TOP, parse_top
from mhnb.magics.session import Session
from mhnb.view.live.screen import show_document
from mhnb.view.reports.memory import build_memory


def _memory(session: Session, args: argparse.Namespace) -> None:
    top = parse_top(args.top)
    show_document(build_memory(manager.latest().memory(ranks=args.ranks), top))


def _memory_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--top",
        type=int_argument,
        default=DEFAULT_TOP,
        metavar="N",
        help=f"how many arrays to show, the largest ones (default: {DEFAULT_TOP})",
    )
    parser.add_argument("--ranks", metavar="SPEC", help="ask these ranks only, such as 0,2-3")


COMMANDS = (
    Command(
        "memory",
        _memory,
        "Show what fills the memory of the devices: bytes in use, and the largest arrays by name.",
        "look",
        _memory_flags,
        "[--top N] [--ranks SPEC]",
    ),
)
"""The commands of this module."""
