"""The commands that move variables between the notebook and the ranks, or inspect them: `pull`, `push`, `vars` and `check`."""

from __future__ import annotations

import argparse
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.core.ranks import describe_ranks, parse_ranks
from mhnb.exchange.asks import check_names
from mhnb.frontend.boards import variable_rows
from mhnb.frontend.callers import uses_result
from mhnb.frontend.notebook import Session
from mhnb.sharding.layout import format_nbytes
from mhnb.startup import starting
from mhnb.verbs.verb import Command, no_flags
from mhnb.view.boards import board

__all__ = ["COMMANDS"]


def _pull(session: Session, args: argparse.Namespace) -> Any:
    cluster = starting.current()
    values = cluster.pull(*args.names, ranks=args.ranks, each=args.each)
    bound = dict(zip(args.names, (values,) if len(args.names) == 1 else values, strict=True))
    session.shell.user_ns.update(bound)
    for name, value in bound.items():
        print(f"{name} · {_describe_value(value)}")
    # Return the values for `x = %mhjax pull x`. A command on its own returns None, because IPython would show the value
    # and keep hundreds of megabytes in Out.
    return values if uses_result(session.shell.user_ns) else None


def _describe_value(value: Any) -> str:
    if all(hasattr(value, name) for name in ("shape", "dtype", "nbytes")):
        return f"{value.dtype}{list(value.shape)}, {format_nbytes(value.nbytes)}"
    return type(value).__name__


def _pull_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="a variable of the ranks")
    parser.add_argument("--ranks", metavar="SPEC", help="take it from these ranks")
    parser.add_argument("--each", action="store_true", help="a list with each rank's own value")


def _push(session: Session, args: argparse.Namespace) -> None:
    names = check_names(args.names, "push")
    missing = [name for name in names if name not in session.shell.user_ns]
    if missing:
        raise UsageError(f"%mhjax push: this notebook has no {', '.join(missing)}; define it in a plain cell first")
    values = {name: session.shell.user_ns[name] for name in names}
    cluster = starting.current()
    cluster.push(ranks=args.ranks, **values)
    count = cluster.process_count
    ranks_text = describe_ranks(range(count) if args.ranks is None else parse_ranks(args.ranks, count))
    for name, value in values.items():
        print(f"{name} · {_describe_value(value)} · on {ranks_text}")


def _push_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="a variable of this notebook")
    parser.add_argument("--ranks", metavar="SPEC", help="bind it on these ranks only")


def _vars(session: Session, args: argparse.Namespace) -> None:
    board.show_vars(variable_rows(starting.current().vars()))


def _check(session: Session, args: argparse.Namespace) -> None:
    board.show_check(starting.current().check(*args.names))


def _check_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="a variable of the ranks")


COMMANDS: dict[str, Command] = {
    "check": (_check, _check_flags),
    "pull": (_pull, _pull_flags),
    "push": (_push, _push_flags),
    "vars": (_vars, no_flags),
}
