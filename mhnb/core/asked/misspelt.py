"""Suggest the existing command or flag that an unknown word most likely meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["add_meant_flag", "nearest"]

_UNKNOWN = "unrecognized arguments:"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is closest to `word`; None if none is close.

    >>> nearest("statsu", ["start", "status", "stop"])
    'status'
    """
    return next(iter(get_close_matches(word, known, 1)), None)


def add_meant_flag(told: str, flags: Iterable[str]) -> str:
    """Add a suggestion to argparse's message about unknown arguments.

    >>> add_meant_flag("unrecognized arguments: --devcies 2", ["--devices", "--name"])
    'unrecognized arguments: --devcies 2 (did you mean --devices?)'
    """
    if not told.startswith(_UNKNOWN):
        return told
    # Compare without the dashes, because they are the same in all flags.
    known = [flag[2:] for flag in flags if flag.startswith("--")]
    unknown = [word[2:].partition("=")[0] for word in told.removeprefix(_UNKNOWN).split() if word.startswith("--")]
    meant = dict.fromkeys(f"--{flag}" for word in unknown if (flag := nearest(word, known)) is not None)
    return f"{told} (did you mean {' '.join(meant)}?)" if meant else told
