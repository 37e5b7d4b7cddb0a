"""`%mhjax doctor`: run the preflight checks on this machine, or on hosts, before a start."""

from __future__ import annotations

import argparse

from mhnb.frontend.notebook import Notebook
from mhnb.startup.flags import add_doctor_flags
from mhnb.startup.looking import look_as_asked
from mhnb.verbs.verb import Verb
from mhnb.view.boards.board import show_preflight

__all__ = ["VERBS"]


def _doctor(notebook: Notebook, args: argparse.Namespace) -> None:
    # A failed check is shown and does not raise, because finding it is the purpose of the command.
    show_preflight(look_as_asked(args))


VERBS: dict[str, Verb] = {"doctor": (_doctor, add_doctor_flags)}
