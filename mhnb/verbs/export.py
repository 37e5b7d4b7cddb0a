"""`%mhjax export FILE.py`: write the cells so far as one script that runs without mhnb."""

from __future__ import annotations

import argparse
from pathlib import Path

from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.errors import InvalidRequest
from mhnb.frontend.notebook import Session
from mhnb.keep.exporting import export_cluster, parse_without
from mhnb.startup import starting
from mhnb.verbs.verb import Command

__all__ = ["COMMANDS"]


def _export(session: Session, args: argparse.Namespace) -> None:
    path = Path(args.file)
    if path.suffix != ".py":
        raise InvalidRequest(f"export {args.file}: give the name of a Python file, such as train.py")
    without = parse_without(args.without)
    print(*export_cluster(starting.current(), path, sbatch=args.sbatch, without=without), sep="\n")


def _export_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("file", help="the script to write, such as train.py")
    parser.add_argument("--sbatch", action="store_true", help="write a batch script for Slurm beside it, train.sbatch")
    parser.add_argument("--without", metavar="SEQ,NAME,...", help="leave out these cells, and these pushed names")


COMMANDS: dict[str, Command] = {"export": (_export, _export_flags)}
