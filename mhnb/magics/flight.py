"""The commands of `%mhjax` about what the flight recorders hold: `flight`, and `stragglers` for the ranks that others wait for."""

from __future__ import annotations

import argparse
from pathlib import Path

from mhnb.cluster import manager
from mhnb.cluster.flight import write_report
from mhnb.commands.command import Command
from mhnb.core.arguments import unquote
from mhnb.core.ranks import parse_ranks
from mhnb.magics.session import Session
from mhnb.view.live.screen import show_document
from mhnb.view.reports.flight import build_flight, build_flights, build_stragglers


def _flight(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.latest()
    ranks = None if args.rank is None else parse_ranks(args.rank, cluster.process_count, argument="--rank")
    report = cluster.flight()
    if args.json is not None:
        print(f"mhjax · {write_report(report, Path(unquote(args.json)).expanduser())}")
    else:
        show_document(build_flight(report) if ranks is None else build_flights(report, ranks))


def _flight_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rank", metavar="R", help="ranks whose last events to show, for example 2 or 0,2-3")
    parser.add_argument("--json", metavar="FILE", help="write all recorded events of all ranks to this file")


def _stragglers(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.latest()
    lateness = cluster.flight().lateness if args.all else cluster.stragglers()
    if lateness is None:
        print("mhjax · no launch of several ranks under lockstep is recorded")
    else:
        show_document(build_stragglers(lateness))


def _stragglers_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all",
        action="store_true",
        help="all launches that the flight recorders hold (default: those of the last cell)",
    )


COMMANDS = (
    Command(
        "flight",
        _flight,
        "Show what each rank did last, and where the ranks first differed.",
        "look",
        _flight_flags,
        "[--rank R] [--json FILE]",
    ),
    Command(
        "stragglers",
        _stragglers,
        "Show how often each rank came last to a launch, and how long the others waited.",
        "look",
        _stragglers_flags,
        "[--all]",
    ),
)
"""The commands of this module."""
