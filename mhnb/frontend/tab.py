"""Tab completion of `%mhjax` and `%%mhjax` lines, based on the argument parsers that will parse the line.

It uses only the text before the cursor. The caller supplies the names that an argument accepts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator

from mhnb.verbs.table import VERBS, verb_parser

__all__ = ["complete_line", "is_magic_line"]

Names = Callable[[str], Iterable[str]]
"""Returns the names that a command or flag accepts: rank variables for `pull`, notebook names for `push`, or profiles."""


def is_magic_line(line: str, *, first: bool) -> bool:
    """Return whether a line is a `%mhjax` line, or a `%%mhjax` line that is the first of its cell, and has arguments."""
    word = line.split()[:1]
    return (word == ["%mhjax"] or (first and word == ["%%mhjax"])) and line.lstrip() != word[0]


def complete_line(line: str, cell_parser: argparse.ArgumentParser, names: Names) -> tuple[list[str], str]:
    """Find the completions of a line.

    Args:
        line: the line up to the cursor, for which `is_magic_line` is true.
        cell_parser: the parser of `%%mhjax`.
        names: see `Names`.

    Returns:
        The matching words, and the end of the line that each of them replaces.
    """
    *before, last = line.lstrip().split(" ")
    words = [word for word in before if word]
    verb = "" if words[0] == "%%mhjax" else words[1] if len(words) > 1 else None
    if verb is None:
        return _starting(last, VERBS), last
    parser = verb_parser(verb) if verb else cell_parser
    if parser is None:
        return [], last
    flag, equals, value = last.partition("=")
    if equals:
        return _starting(value, _values(_find(parser, flag), names)), value
    taker = _find(parser, words[-1])
    if taker is not None and taker.nargs != 0:
        return _starting(last, _values(taker, names)), last
    return _starting(last, [*_positional(parser, verb, names), *_flags(parser, words)]), last


def _starting(start: str, words: Iterable[str]) -> list[str]:
    return sorted({word for word in words if word.startswith(start)}, key=lambda word: (word.startswith("-"), word))


def _find(parser: argparse.ArgumentParser, flag: str) -> argparse.Action | None:
    return next((action for action in parser._actions if flag in action.option_strings), None)


def _choices(action: argparse.Action | None) -> list[str]:
    return [] if action is None or action.choices is None else [str(choice) for choice in action.choices]


def _values(taker: argparse.Action | None, names: Names) -> Iterable[str]:
    if taker is None:
        return []
    return _choices(taker) or (name for flag in taker.option_strings for name in names(flag))


def _flags(parser: argparse.ArgumentParser, used: Iterable[str]) -> Iterator[str]:
    """Yield the unused flags, in the spelling that the help shows first."""
    for action in parser._actions:
        spellings = [flag for flag in action.option_strings if flag.startswith("--")] or action.option_strings
        if spellings and action.help != argparse.SUPPRESS and not set(action.option_strings) & set(used):
            yield spellings[0]


def _positional(parser: argparse.ArgumentParser, verb: str, names: Names) -> Iterator[str]:
    for action in parser._actions:
        if not action.option_strings:
            yield from _choices(action) or names(verb)
