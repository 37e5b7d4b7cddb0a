"""Tab completion of `%mhjax` and `%%mhjax` lines, based on the argument parsers that will parse the line.

It uses only the text before the cursor. The caller supplies the names that an argument accepts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator

from mhnb.verbs.table import COMMANDS, command_parser

__all__ = ["complete_line", "is_magic_line"]

NameProvider = Callable[[str], Iterable[str]]
"""Returns the names that a command or flag accepts: rank variables for `pull`, notebook names for `push`, or profiles."""


def is_magic_line(line: str, *, first: bool) -> bool:
    """Return whether a line is a `%mhjax` line, or a `%%mhjax` line that is the first of its cell, and has arguments."""
    word = line.split()[:1]
    return (word == ["%mhjax"] or (first and word == ["%%mhjax"])) and line.lstrip() != word[0]


def complete_line(line: str, cell_parser: argparse.ArgumentParser, names: NameProvider) -> tuple[list[str], str]:
    """Find the completions of a line.

    Args:
        line: the line up to the cursor, for which `is_magic_line` is true.
        cell_parser: the parser of `%%mhjax`.
        names: see `NameProvider`.

    Returns:
        The matching words, and the end of the line that each of them replaces.
    """
    *before, last = line.lstrip().split(" ")
    words = [word for word in before if word]
    command = "" if words[0] == "%%mhjax" else words[1] if len(words) > 1 else None
    if command is None:
        return _filter_by_prefix(last, COMMANDS), last
    parser = command_parser(command) if command else cell_parser
    if parser is None:
        return [], last
    flag, equals, value = last.partition("=")
    if equals:
        return _filter_by_prefix(value, _flag_values(_find_flag(parser, flag), names)), value
    flag_action = _find_flag(parser, words[-1])
    if flag_action is not None and flag_action.nargs != 0:
        return _filter_by_prefix(last, _flag_values(flag_action, names)), last
    return _filter_by_prefix(last, [*_positional_values(parser, command, names), *_unused_flags(parser, words)]), last


def _filter_by_prefix(prefix: str, words: Iterable[str]) -> list[str]:
    return sorted({word for word in words if word.startswith(prefix)}, key=lambda word: (word.startswith("-"), word))


def _find_flag(parser: argparse.ArgumentParser, flag: str) -> argparse.Action | None:
    return next((action for action in parser._actions if flag in action.option_strings), None)


def _choices(action: argparse.Action | None) -> list[str]:
    return [] if action is None or action.choices is None else [str(choice) for choice in action.choices]


def _flag_values(action: argparse.Action | None, names: NameProvider) -> Iterable[str]:
    if action is None:
        return []
    return _choices(action) or (name for flag in action.option_strings for name in names(flag))


def _unused_flags(parser: argparse.ArgumentParser, used: Iterable[str]) -> Iterator[str]:
    """Yield the unused flags, in the spelling that the help shows first."""
    for action in parser._actions:
        spellings = [flag for flag in action.option_strings if flag.startswith("--")] or action.option_strings
        if spellings and action.help != argparse.SUPPRESS and not set(action.option_strings) & set(used):
            yield spellings[0]


def _positional_values(parser: argparse.ArgumentParser, command: str, names: NameProvider) -> Iterator[str]:
    for action in parser._actions:
        if not action.option_strings:
            yield from _choices(action) or names(command)
