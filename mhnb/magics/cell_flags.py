"""The flags of a `%%mhjax` line, without a shell: the reference page is made of the same parser."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser

from mhnb.core.arguments import seconds_argument
from mhnb.core.cell_request import GUARDS
from mhnb.magics.settings import VIEWS


def add_cell_flags(parser: ArgumentParser) -> None:
    """Add the flags of `%%mhjax`."""
    parser.add_argument(
        "--ranks",
        metavar="SPEC",
        help="ranks that run the cell, such as 0,2-3, also as the first word: %%%%mhjax 0,2-3; "
        "a collective that needs other ranks is an error",
    )
    parser.add_argument(
        "--guard",
        choices=GUARDS,
        help="when launches are compared across ranks: before each one (lockstep), after the cell (parity), or off "
        "(default: as started)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds_argument,
        metavar="SECONDS",
        help="interrupt the cell after this time (default: c.Mhjax.timeout_s)",
    )
    parser.add_argument("--out", metavar="NAME", help="bind the CellResult to this name in the notebook")
    parser.add_argument("--view", choices=VIEWS, help="how to arrange the outputs (default: fold, or c.Mhjax.view)")
    parser.add_argument("--collectives", action="store_true", help="list the collectives that the cell launched")
    parser.add_argument("--quiet", action="store_true", help="show output only if the cell fails")
    parser.add_argument("--auto", action="store_true", help=SUPPRESS)  # auto mode adds this flag
