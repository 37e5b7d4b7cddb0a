"""What a verb of `%mhjax` is: a function over the notebook and the parsed line, and one that declares its flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias

from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.frontend.notebook import Notebook

__all__ = ["Verb", "list_flags", "no_flags"]

Verb: TypeAlias = tuple[Callable[[Notebook, argparse.Namespace], Any], Callable[[MagicArgumentParser], None]]


def no_flags(parser: MagicArgumentParser) -> None:
    """Declare nothing: the verb stands alone."""


def list_flags(parser: argparse.ArgumentParser) -> list[str]:
    """List every spelling of every flag that a parser knows."""
    return [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001  # argparse shows them nowhere else
