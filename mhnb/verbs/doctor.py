"""`%mhjax doctor`: look at this machine, or at hosts, before a start."""

from __future__ import annotations

import argparse

from mhnb.frontend.notebook import Notebook
from mhnb.startup.flags import add_doctor_flags
from mhnb.startup.looking import look_as_asked
from mhnb.verbs.verb import Verb
from mhnb.view.boards.board import show_preflight

__all__ = ["VERBS"]


def _doctor(notebook: Notebook, args: argparse.Namespace) -> None:
    # A failure is shown, not raised: to find it was the question.
    show_preflight(look_as_asked(args))


VERBS: dict[str, Verb] = {"doctor": (_doctor, add_doctor_flags)}
