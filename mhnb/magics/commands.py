"""The table of `%mhjax` commands: parsers, help texts and dispatch.

The help of `%mhjax`, the manual and the reference pages are all made of the table `COMMANDS`. None of it needs a shell.
"""

from __future__ import annotations

import re
import shlex
from argparse import SUPPRESS
from collections.abc import Iterator
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.commands.command import Command, Group, list_flags, order_by_group
from mhnb.core.arguments import closest_match, format_unknown, seconds_argument, split_arguments, suggest_flags, unquote
from mhnb.core.cell_name import join_cell_arguments
from mhnb.core.cell_request import GUARDS, guard_argument
from mhnb.errors import InvalidRequest, NotStarted, ShardingError
from mhnb.magics import data, debugging, files, inspection, lifecycle, reports, sharding
from mhnb.magics.session import Session
from mhnb.magics.settings import VIEWS
from mhnb.system.help_topics import list_topics, read_topic
from mhnb.view.document import Code, Document, InHtml, InText, Line, Table
from mhnb.view.live.screen import show_document

__all__ = [
    "COMMANDS",
    "GROUPS",
    "build_help",
    "cell_parser",
    "command_parser",
    "find_command",
    "find_help",
    "format_manual",
    "list_names",
    "run_command",
    "takes_code",
]

COMMANDS = order_by_group(
    command
    for module in (lifecycle, reports, inspection, debugging, data, sharding, files)
    for command in module.COMMANDS
)
"""Every command by its name, in the order of the help; aliases are not keys."""
GROUPS = tuple(dict.fromkeys(command.group for command in COMMANDS.values()))
"""The groups of commands, in the order of the help."""
_BY_ALIAS = {alias: command for command in COMMANDS.values() for alias in command.aliases}

_HELP_WORDS = ("help", "--help", "-h")


def find_command(name: str) -> Command | None:
    """Return the command with this name or alias, or None.

    >>> find_command("continue").name
    'accept'
    """
    return COMMANDS.get(name) or _BY_ALIAS.get(name)


def list_names() -> list[str]:
    """Return the sorted names of all commands in the help, and `help`."""
    return sorted([*(name for name, command in COMMANDS.items() if not command.is_hidden), "help"])


# -- parsers and help


def strip_ipython_markup(text: str) -> str:
    """Remove the markup that IPython adds to a help text."""
    # What follows in the line stays in its column.
    return re.sub(r"<([{\[][^>]*[}\]])>(  )?", r"\1\2\2", text.removeprefix("::")).strip()


class _MagicParser(MagicArgumentParser):
    def __init__(self, prog: str, description: str, *, add_help: bool = True) -> None:
        # IPython's help adds a % before the name.
        super().__init__(prog=prog, description=description, add_help=add_help)  # type: ignore[no-untyped-call]  # IPython has no types

    def format_help(self) -> str:
        return f"{strip_ipython_markup(super().format_help())}\n"


def command_parser(name: str) -> MagicArgumentParser | None:
    """Build a command's parser, by name or alias; None if unknown."""
    if (command := find_command(name)) is None:
        return None
    parser = _MagicParser(f"mhjax {name}", command.summary)
    # IPython would remove the indent of a text that begins in its first line.
    parser.epilog = f"\n{command.details}" if command.details else None
    command.add_arguments(parser)
    return parser


def cell_parser() -> MagicArgumentParser:
    """Build the parser of a `%%mhjax` line."""
    parser = _MagicParser(
        "%mhjax", "Run the cell on every rank, in the same order as every other cell.", add_help=False
    )
    _add_cell_flags(parser)
    return parser


def _add_cell_flags(parser: MagicArgumentParser) -> None:
    """Add the flags of `%%mhjax`."""
    parser.add_argument(
        "--ranks",
        metavar="SPEC",
        help="ranks that run the cell, such as 0,2-3, also as the first word: %%%%mhjax 0,2-3; "
        "a collective that needs other ranks is an error",
    )
    parser.add_argument(
        "--guard",
        type=guard_argument,
        choices=GUARDS,
        help="when launches are compared across ranks: before each one (lockstep), after the cell (parity), or off "
        "(default: as started)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds_argument,
        metavar="SECONDS",
        help="interrupt the cell after this time (default: c.Mhjax.timeout_s)",
    )
    parser.add_argument("--out", metavar="NAME", help="bind the CellResult to this name in the notebook")
    parser.add_argument("--view", choices=VIEWS, help="how to arrange the outputs (default: fold, or c.Mhjax.view)")
    parser.add_argument(
        "--debug",
        nargs="?",
        const="",
        metavar="RANKS",
        help="stop these ranks in the debugger, before the cell's first line (default: every rank of the cell)",
    )
    parser.add_argument(
        "--break",
        dest="breakpoints",
        action="append",
        default=[],
        metavar="LINE",
        help="stop in the debugger at this line, such as 4, or only if a condition holds: --break '4 if rank == 2'; "
        "the %%%%mhjax line is line 1, and the flag can be given several times",
    )
    parser.add_argument(
        "--trace",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="profile the cell on its ranks, and write one timeline of all of them (default: into the cluster's folder)",
    )
    parser.add_argument("--collectives", action="store_true", help="list the collectives that the cell launched")
    parser.add_argument("--quiet", action="store_true", help="show output only if the cell fails")
    parser.add_argument("--auto", action="store_true", help=SUPPRESS)  # auto mode adds this flag


def build_help() -> Document:
    """Build the help of `%mhjax`: every command with its sentence, by group."""
    first = "%mhjax COMMAND, or %%mhjax [flags] as the first line of a cell that runs on every rank."
    last = (
        "%mhjax help COMMAND shows the flags of a command; %mhjax help TOPIC explains an error, such as order-mismatch."
    )
    groups = {group: [(command.name, command.summary) for command in _list_group(group)] for group in GROUPS}
    groups["run cells"].insert(0, ("%%mhjax", "Run the cell on every rank; %%mhjax? lists its flags."))
    width = max(map(len, COMMANDS))
    lines, rows = [first, ""], []
    for group, commands in groups.items():
        lines += [group, *(f"  {name:{width}}  {summary}" for name, summary in commands), ""]
        rows += [("" if at else group, name, summary) for at, (name, summary) in enumerate(commands)]
    table = Table(("", "command", "what it does"), rows)
    return [InText([Code("\n".join([*lines, last]))]), InHtml([Line(first), table, Line(last, "quiet")])]


def _list_group(group: Group) -> Iterator[Command]:
    return (command for command in COMMANDS.values() if command.group == group and not command.is_hidden)


def format_manual() -> str:
    """Return the manual that `%%mhjax?` shows: cell flags and all commands."""
    lines = [
        "Drive many JAX hosts from this notebook.",
        "",
        "A cell that begins with %%mhjax runs on every rank.",
        "",
        strip_ipython_markup(cell_parser().format_help()),
    ]
    for group in GROUPS:
        lines += ["", f"{group}:"]
        for command in _list_group(group):
            lines += [f"  %mhjax {command.name} {command.usage}".rstrip(), f"      {command.summary}"]
    lines += ["", "%mhjax help COMMAND shows every flag of a command.", ""]
    return "\n".join(lines)


def find_help(name: str) -> str:
    """Return a command's help, or a help topic as plain text.

    Raises:
        InvalidRequest: nothing has that name, or the help topics do not come with this installation.
    """
    if (parser := command_parser(name)) is not None:
        return parser.format_help().rstrip()
    if (text := read_topic(name)) is not None:
        return text
    raise InvalidRequest(format_unknown("help topic", name, [*list_topics(), *list_names()]))


# -- dispatch


def takes_code(line: str) -> bool:
    """Return whether a command's argument is code, which must not be expanded.

    >>> takes_code("eval f'{x}'"), takes_code("start -n {n}")
    (True, False)
    """
    command = find_command(line.split(maxsplit=1)[0]) if line.strip() else None
    return command is not None and command.splits == "raw"


def _split_line(line: str) -> list[str]:
    name = line.split(maxsplit=1)[0] if line.split() else ""
    command = find_command(name)
    splits = "shell" if command is None else command.splits
    rest = line.strip().removeprefix(name).strip()
    if splits == "raw" and rest and not _is_own_flag(name, rest):
        # After `--` an argument may begin with a minus sign.
        return [name, "--", rest]
    try:
        if splits == "expression":
            return split_arguments(line)
        if splits == "cells":
            line = join_cell_arguments(line)
        return list(map(unquote, split_arguments(line))) if splits == "names" else shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%mhjax {line}: {error}") from error


def _is_own_flag(name: str, word: str) -> bool:
    parser = command_parser(name)
    return parser is not None and word in list_flags(parser)


def run_command(session: Session, line: str) -> Any:
    """Run one `%mhjax` line.

    Raises:
        UsageError: unknown command, unknown flag, or bad value.
    """
    words = _split_line(line)
    if not words or words[0] in _HELP_WORDS:
        try:
            show_document([Code(find_help(words[1]))] if len(words) > 1 else build_help())
        except InvalidRequest as error:
            raise UsageError(str(error)) from error
        return None
    name, *rest = ["version"] if words == ["--version"] else words
    command, parser = find_command(name), command_parser(name)
    if command is None or parser is None:
        raise UsageError(_describe_unknown(name))
    try:
        args = parser.parse_args(rest)
        # For a command that takes a call, because splitting removes the quotes from words.
        args.line = line.strip()[len(name) :].strip()
    except UsageError as error:
        message = suggest_flags(str(error), list_flags(parser))
        raise UsageError(f"%mhjax {name}: {message}\n  Help: %mhjax help {name}") from error
    except SystemExit:
        # argparse exits after --help, but a notebook must keep running.
        return None
    try:
        return command.run(session, args)
    except (InvalidRequest, NotStarted, ShardingError, UsageError) as error:
        raise _usage_error(error, name) from error
    except KeyboardInterrupt as error:
        message = f"KeyboardInterrupt: %mhjax {name} was interrupted{lifecycle.interrupted_note(command.name, args)}"
        # Hide the frames, as `MhnbError` does: the user pressed Ctrl-C, and mhnb's frames would not help.
        error._render_traceback_ = lambda: [message]  # type: ignore[attr-defined]
        raise


def _usage_error(error: Exception, name: str) -> UsageError:
    """Convert a command's error to a usage error with a help line."""
    help_line = error.help_line if isinstance(error, NotStarted | ShardingError) else ""
    return UsageError(f"{error}\n  Help: {help_line or f'%mhjax help {name}'}")


def _describe_unknown(name: str) -> str:
    """Return the message for an unknown command, with the closest one."""
    names = list_names()
    if name.startswith("-") and closest_match(name, names) is None:
        # A flag here is usually a flag of `%%mhjax`.
        return f"%mhjax {name}: flags belong to %%mhjax, or follow a command\n  Help: %mhjax help"
    return f"{format_unknown('command', name, names)}\n  Help: %mhjax help"
