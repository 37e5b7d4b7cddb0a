"""Description of `%mhjax` and `mhnb` commands, for help, manual and reference."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

Group: TypeAlias = Literal[
    "start and stop",
    "run cells",
    "run programs",
    "look",
    "values",
    "sharding",
    "get unstuck",
    "take away",
    "this machine and other hosts",
    "lessons",
    "help",
]
"""The groups of the help, in its order. A surface has those in which it has a command."""
_GROUPS: tuple[Group, ...] = get_args(Group)


NOTEBOOK_ONLY = (
    "accept",
    "attach",
    "auto",
    "check",
    "collectives",
    "debug",
    "detach",
    "eval",
    "history",
    "layout",
    "pip",
    "plan",
    "pull",
    "push",
    "show",
    "sync",
    "vars",
)
"""Commands of `%mhjax` that the shell does not have. The shell names them without an import of IPython."""


def add_nothing(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the notebook or of the shell."""

    name: str
    run: Callable[..., Any]
    """In the notebook it takes the session and the arguments; in the shell the arguments, and it returns the exit status."""
    summary: str
    """One sentence for the overview, and the beginning of the command's help."""
    group: Group
    add_arguments: Callable[[argparse.ArgumentParser], None] = add_nothing
    usage: str = ""
    """Its most common arguments, as a user types them in the notebook; empty if it has none."""
    aliases: tuple[str, ...] = ()
    """Older names, which still work and are not in the help."""
    is_hidden: bool = False
    """Whether it is not in the help either."""
    splits: Literal["shell", "names", "cells", "expression", "raw"] = "shell"
    """How its line in a notebook is split: as a shell does; keeping the quotes of expressions; with cells as `In [7]`; or not at all."""
    details: str = ""
    """Text below its arguments in its help, in lines as they are printed."""
    shell_details: str = ""
    """The same in the shell, if it differs."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of its parser in the shell."""


def order_by_group(commands: Iterable[Command]) -> dict[str, Command]:
    """Return commands by their names, in the order of the groups."""
    return {command.name: command for command in sorted(commands, key=lambda each: _GROUPS.index(each.group))}


def list_flags(parser: argparse.ArgumentParser) -> list[str]:
    """Return all spellings of the flags that a parser's help has."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]  # noqa: SLF001  # argparse has no public list
    return [flag for action in shown for flag in action.option_strings]
