"""The parser of `mhnb` commands, and exit statuses."""

from __future__ import annotations

import argparse
from typing import NoReturn

from mhnb.commands.command import list_flags
from mhnb.core.arguments import suggest_flags

TIMEOUT_STATUS = 124
"""Exit status after a limit of time, as that of the shell command `timeout`."""
INTERRUPTED_STATUS = 130
"""128 plus the number of SIGINT: the exit status that shells expect after Ctrl-C."""


class CommandParser(argparse.ArgumentParser):
    """Parser of a command, whose errors look like mhnb's other messages."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with status 2."""
        name = self.prog.removeprefix("mhnb").strip()
        # Of a subcommand such as `profile new`, the help of the command.
        topic = " ".join(["mhnb help", *name.split()[:1]])
        fault, *fixes = message.splitlines()
        self.exit(
            2, "\n".join([f"{self.prog}: {suggest_flags(fault, list_flags(self))}", *fixes, f"  Help: {topic}"]) + "\n"
        )
