"""`mhnb help`: the overview of the commands, and help for one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from mhnb.commands.command import Command
from mhnb.core.arguments import format_unknown
from mhnb.errors import InvalidRequest, MhnbError, name_topic

_WIDTH = 13
"""Columns for the name of a command in the overview."""


def format_overview(commands: Iterable[Command]) -> str:
    """Format the overview of all commands, which are sorted by group."""
    lines = ["usage: mhnb COMMAND [OPTIONS]", "", "One notebook, many JAX hosts."]
    for group, members in groupby(commands, key=lambda command: command.group):
        lines += [
            "",
            group,
            *(f"  {command.name:<{_WIDTH}}{command.summary}" for command in members if not command.is_hidden),
        ]
    lines += [
        "",
        "mhnb help COMMAND    explains a command and its options",
        "mhnb help TOPIC      explains an error or a note, for example: mhnb help order-mismatch",
        "In a notebook: %load_ext mhnb, then %mhjax help",
    ]
    return "\n".join(lines) + "\n"


def add_help_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument of `mhnb help`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a command, or the topic that an error names")


def print_help(
    name: str | None,
    parser: argparse.ArgumentParser,
    commands: Mapping[str, argparse.ArgumentParser],
    known: Sequence[str],
) -> int:
    """Print the overview, a command's help or a topic; return the status."""
    from mhnb.system.help_topics import list_topics, read_topic

    if name is None:
        parser.print_help()
    elif name in commands:
        commands[name].print_help()
    elif (text := read_topic(name)) is not None:
        print(text)
    else:
        unknown = format_unknown("help topic", name, [*known, *list_topics()])
        print(f"mhnb help: {unknown}\n  Help: mhnb help", file=sys.stderr)
        return 2
    return 0


def find_topic(error: Exception, command: str) -> str:
    """Return the help topic for a command's error, or an empty string.

    >>> find_topic(MhnbError("no cluster"), "stop"), find_topic(InvalidRequest("bad"), "stop")
    ('mhnb-error', 'stop')
    """
    if isinstance(error, InvalidRequest):
        return command
    return name_topic(type(error).__name__) if isinstance(error, MhnbError) and error.has_help else ""
