"""Registry of all `%mhjax` commands, and their dispatch."""

from __future__ import annotations

import shlex
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.core.arguments import closest_match, split_arguments, suggest_flags, unquote
from mhnb.core.cell_name import join_cell_arguments
from mhnb.errors import InvalidRequest, NotStarted, ShardingError
from mhnb.magics import data, files, lifecycle, sharding
from mhnb.magics.session import Command, Session, list_flags

_MODULES = (data, files, lifecycle, sharding)

COMMANDS: dict[str, Command] = dict(sorted(item for module in _MODULES for item in module.COMMANDS.items()))

_NAME_COMMANDS = frozenset({"check", "pull", "push"})
"""Commands whose arguments are names. An expression keeps its quotes, so that an error can quote it as typed."""

_CELL_COMMANDS = frozenset({"export", "panel", "restart"})
"""Commands that take cells, which a user may write as the notebook does: `In [7]`."""


def strip_ipython_markup(text: str) -> str:
    """Remove the markup that IPython adds to a help text for its own manual."""
    return text.removeprefix("::").replace("<{", "{").replace("}>", "}").strip()


class _CommandParser(MagicArgumentParser):
    def __init__(self, verb: str) -> None:
        # IPython's help adds a % before the name.
        super().__init__(prog=f"mhjax {verb}", add_help=True)  # type: ignore[no-untyped-call]  # IPython has no types

    def format_help(self) -> str:
        return f"{strip_ipython_markup(super().format_help())}\n"


def command_parser(name: str) -> MagicArgumentParser | None:
    """Build the parser of a command; return None if the command does not exist."""
    if name not in COMMANDS:
        return None
    parser = _CommandParser(name)
    COMMANDS[name][1](parser)
    return parser


def _split_line(line: str) -> list[str]:
    verb = line.split()[:1]
    try:
        if sharding.EXPRESSION_COMMANDS & set(verb):
            return split_arguments(line)
        if _CELL_COMMANDS & set(verb):
            line = join_cell_arguments(line)
        return list(map(unquote, split_arguments(line))) if _NAME_COMMANDS & set(verb) else shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%mhjax {line}: {error}") from error


def run_command(session: Session, line: str) -> Any:
    """Run one `%mhjax` line.

    Raises:
        UsageError: unknown command, unknown flag, or bad value.
    """
    words = _split_line(line)
    if not words:
        raise UsageError(f"%mhjax VERB, where VERB is one of {', '.join(sorted(COMMANDS))}; %%mhjax? is the manual")
    name, *rest = words
    if name in ("--help", "-h", "help"):
        print(
            f"%mhjax VERB, where VERB is one of {', '.join(sorted(COMMANDS))}; %mhjax VERB --help tells more, %%mhjax? is the manual"
        )
        return None
    if (parser := command_parser(name)) is None:
        closest = closest_match(name, COMMANDS)
        # A flag here is usually a flag of `%%mhjax`.
        suggestion = (
            f"did you mean {closest}? Else " if closest else "%%mhjax takes flags; " if name.startswith("-") else ""
        )
        raise UsageError(
            f"%mhjax {name}: there is no such verb; {suggestion}choose one of {', '.join(sorted(COMMANDS))}"
        )
    try:
        args = parser.parse_args(rest)
        # For a command that takes a call, because splitting removes the quotes from words.
        args.line = line.strip()[len(name) :].strip()
    except UsageError as error:
        message = suggest_flags(str(error), list_flags(parser))
        raise UsageError(f"%mhjax {name}: {message}; %mhjax {name} --help tells more") from error
    except SystemExit:
        # argparse exits after --help, but a notebook must keep running.
        return None
    try:
        return COMMANDS[name][0](session, args)
    except (InvalidRequest, NotStarted, ShardingError) as error:
        raise UsageError(str(error)) from error
    except KeyboardInterrupt as error:
        message = f"KeyboardInterrupt: %mhjax {name} was interrupted{lifecycle.interrupted_note(name, args)}"
        # Hide the frames, as `MhnbError` does: the user pressed Ctrl-C, and mhnb's frames would not help.
        error._render_traceback_ = lambda: [message]  # type: ignore[attr-defined]
        raise
