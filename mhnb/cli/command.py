"""What a command of `mhnb` consists of, and the parser that reports usage errors in the form of mhnb's other messages."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from mhnb.core.arguments import suggest_flags

TIMEOUT_STATUS = 124
"""Exit status after a limit of time, as that of the shell command `timeout`."""
INTERRUPTED_STATUS = 130
"""128 plus the number of SIGINT: the exit status that shells expect after Ctrl-C."""


def _add_nothing(parser: argparse.ArgumentParser) -> None:
    """Add no argument."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    summary: str
    """One sentence for the overview, and the beginning of the command's help."""
    run: Callable[[argparse.Namespace], int]
    """Runs the command and returns the exit status."""
    add_arguments: Callable[[argparse.ArgumentParser], None] = _add_nothing
    details: str = ""
    """More sentences, for the command's own help."""
    aliases: tuple[str, ...] = ()
    """Further names, which the overview does not show."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of its parser."""


class CommandParser(argparse.ArgumentParser):
    """Parser of a command. A usage error has no usage; it is one line, then the fix if there is one, then the command's help."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with status 2."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        name = self.prog.removeprefix("mhnb").strip()
        # Of a subcommand such as `profile new`, the help of the command.
        topic = " ".join(["mhnb help", *name.split()[:1]])
        fault, *fixes = message.splitlines()
        self.exit(2, "\n".join([f"{self.prog}: {suggest_flags(fault, flags)}", *fixes, f"  Help: {topic}"]) + "\n")
