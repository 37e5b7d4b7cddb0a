"""`%mhjax doctor`: run the preflight checks on this machine, or on hosts, before a start."""

from __future__ import annotations

import argparse

from mhnb.frontend.notebook import Session
from mhnb.startup.flags import add_doctor_flags
from mhnb.startup.preflight import run_doctor
from mhnb.verbs.verb import Command
from mhnb.view.boards.board import show_preflight

__all__ = ["COMMANDS"]


def _doctor(session: Session, args: argparse.Namespace) -> None:
    # A failed check is shown and does not raise, because finding it is the purpose of the command.
    show_preflight(run_doctor(args))


COMMANDS: dict[str, Command] = {"doctor": (_doctor, add_doctor_flags)}
