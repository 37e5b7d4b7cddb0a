"""The type of a `%mhjax` command: a function of the notebook session and the parsed line, and one that adds its flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias

from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.frontend.notebook import Session

__all__ = ["Command", "list_flags", "no_flags"]

Command: TypeAlias = tuple[Callable[[Session, argparse.Namespace], Any], Callable[[MagicArgumentParser], None]]


def no_flags(parser: MagicArgumentParser) -> None:
    """Add no flags: the command takes no arguments."""


def list_flags(parser: argparse.ArgumentParser) -> list[str]:
    """Return all spellings of all flags of a parser."""
    return [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001  # argparse has no public list
