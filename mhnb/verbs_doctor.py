"""`%mhjax doctor`: look at this machine, or at hosts, before a start."""

from __future__ import annotations

import argparse

from mhnb.looking import look_as_asked
from mhnb.notebook import Notebook
from mhnb.place_flags import add_doctor_flags
from mhnb.view.board import show_preflight

__all__ = ["doctor_flags", "run_doctor"]

doctor_flags = add_doctor_flags


def run_doctor(notebook: Notebook, args: argparse.Namespace) -> None:
    """Show what was found. A failure is shown, not raised: to find it was the question."""
    show_preflight(look_as_asked(args))
