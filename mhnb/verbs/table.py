"""Registry of all `%mhjax` commands, and their dispatch."""

from __future__ import annotations

import shlex
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.core.asked.expression import split_expression, unquote
from mhnb.core.asked.misspelt import add_meant_flag, nearest
from mhnb.errors import InvalidRequest, NotStarted, ShardingError
from mhnb.frontend.notebook import Notebook
from mhnb.verbs import collectives, doctor, export, hosts, layout, life, outputs, start, transfer
from mhnb.verbs.verb import Verb, list_flags

__all__ = ["VERBS", "plain_help", "run_verb", "verb_parser"]

_ROOMS = (collectives, doctor, export, hosts, layout, life, outputs, start, transfer)

VERBS: dict[str, Verb] = dict(sorted(item for room in _ROOMS for item in room.VERBS.items()))

_TAKE_NAMES = frozenset({"check", "pull", "push"})
"""Commands whose arguments are names. An expression keeps its quotes, so that an error can quote it as typed."""


def plain_help(text: str) -> str:
    """Remove the markup that IPython adds to a help text for its own manual."""
    return text.removeprefix("::").replace("<{", "{").replace("}>", "}").strip()


class _VerbParser(MagicArgumentParser):
    def __init__(self, verb: str) -> None:
        # IPython's help adds a % before the name.
        super().__init__(prog=f"mhjax {verb}", add_help=True)  # type: ignore[no-untyped-call]  # IPython has no types

    def format_help(self) -> str:
        return f"{plain_help(super().format_help())}\n"


def verb_parser(name: str) -> MagicArgumentParser | None:
    """Build the parser of a command; return None if the command does not exist."""
    if name not in VERBS:
        return None
    parser = _VerbParser(name)
    VERBS[name][1](parser)
    return parser


def _split(line: str) -> list[str]:
    verb = line.split()[:1]
    try:
        if layout.EXPRESSION_VERBS & set(verb):
            return split_expression(line)
        return list(map(unquote, split_expression(line))) if _TAKE_NAMES & set(verb) else shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%mhjax {line}: {error}") from error


def run_verb(notebook: Notebook, line: str) -> Any:
    """Run one `%mhjax` line.

    Raises:
        UsageError: unknown command, unknown flag, or bad value.
    """
    words = _split(line)
    if not words:
        raise UsageError(f"%mhjax VERB, where VERB is one of {', '.join(sorted(VERBS))}; %%mhjax? is the manual")
    name, *rest = words
    if name in ("--help", "-h", "help"):
        print(
            f"%mhjax VERB, where VERB is one of {', '.join(sorted(VERBS))}; %mhjax VERB --help tells more, %%mhjax? is the manual"
        )
        return None
    if (parser := verb_parser(name)) is None:
        near = nearest(name, VERBS)
        # A flag here is usually a flag of `%%mhjax`.
        meant = f"did you mean {near}? Else " if near else "%%mhjax takes flags; " if name.startswith("-") else ""
        raise UsageError(f"%mhjax {name}: there is no such verb; {meant}choose one of {', '.join(sorted(VERBS))}")
    try:
        args = parser.parse_args(rest)
        # For a command that takes a call, because splitting removes the quotes from words.
        args.line = line.strip()[len(name) :].strip()
    except UsageError as error:
        told = add_meant_flag(str(error), list_flags(parser))
        raise UsageError(f"%mhjax {name}: {told}; %mhjax {name} --help tells more") from error
    except SystemExit:
        # argparse exits after --help, but a notebook must keep running.
        return None
    try:
        return VERBS[name][0](notebook, args)
    except (InvalidRequest, NotStarted, ShardingError) as error:
        raise UsageError(str(error)) from error
    except KeyboardInterrupt as error:
        told = f"KeyboardInterrupt: %mhjax {name} was interrupted{life.say_broken_off(name, args)}"
        # Hide the frames, as `MhnbError` does: the user pressed Ctrl-C, and mhnb's frames would not help.
        error._render_traceback_ = lambda: [told]  # type: ignore[attr-defined]
        raise
