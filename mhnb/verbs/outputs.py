"""The command for outputs: `%mhjax panel`."""

from __future__ import annotations

import argparse

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.frontend.notebook import Session
from mhnb.verbs.verb import Command

__all__ = ["COMMANDS", "add_panel_start_flags"]


def _panel(session: Session, args: argparse.Namespace) -> None:
    """Open the panel for the last result or an earlier one; `off` replaces it by the stored output.

    Raises:
        UsageError: there is no result yet, or the cell does not exist.
    """
    if args.what == "off":
        if not session.close_panel():
            raise UsageError("%mhjax panel off: no panel is open; %mhjax panel opens one")
        return
    if args.what is not None and not args.what.isdecimal():
        raise UsageError(
            f"%mhjax panel {args.what!r}: give the number of a cell, which the tip of its first line tells, or off"
        )
    seq = None if args.what is None else int(args.what)
    if not session.open_panel(seq, view=args.view):
        reason = (
            "no cell has run on the ranks yet"
            if seq is None
            else f"cell {seq} is not among the last {session.max_results}"
        )
        raise UsageError(f"%mhjax panel: {reason}; run a %%mhjax cell and ask again")


def _panel_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="SEQ|off",
        help="the number of an earlier cell, which the tip of its first line tells; off closes the panel",
    )
    parser.add_argument("--view", choices=("fold", "tabs", "grid"), default="fold", help="how it is laid out first")


def add_panel_start_flags(parser: MagicArgumentParser) -> None:
    """Add the panel flag of `%mhjax start`."""
    parser.add_argument(
        "--panel",
        choices=("keep", "close"),
        help="keep: leave each cell's widget in place beside what is stored, while the kernel lives; close: no more",
    )


COMMANDS: dict[str, Command] = {"panel": (_panel, _panel_flags)}
