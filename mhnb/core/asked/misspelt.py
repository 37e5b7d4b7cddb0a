"""Suggest the existing command or flag that an unknown word most likely meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["closest_match", "suggest_flags"]

_UNKNOWN = "unrecognized arguments:"


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is closest to `word`; None if none is close.

    >>> closest_match("statsu", ["start", "status", "stop"])
    'status'
    """
    return next(iter(get_close_matches(word, known, 1)), None)


def suggest_flags(message: str, flags: Iterable[str]) -> str:
    """Add a suggestion to argparse's message about unknown arguments.

    >>> suggest_flags("unrecognized arguments: --devcies 2", ["--devices", "--name"])
    'unrecognized arguments: --devcies 2 (did you mean --devices?)'
    """
    if not message.startswith(_UNKNOWN):
        return message
    # Compare without the dashes, because they are the same in all flags.
    known = [flag[2:] for flag in flags if flag.startswith("--")]
    unknown = [word[2:].partition("=")[0] for word in message.removeprefix(_UNKNOWN).split() if word.startswith("--")]
    suggestions = dict.fromkeys(f"--{flag}" for word in unknown if (flag := closest_match(word, known)) is not None)
    return f"{message} (did you mean {' '.join(suggestions)}?)" if suggestions else message
