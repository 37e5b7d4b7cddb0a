"""What was meant by a word that is none: a verb or a flag that is nearly one there is."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["add_meant_flag", "nearest"]

_UNKNOWN = "unrecognized arguments:"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Give the one of the known words that was most likely meant; None where none is near.

    >>> nearest("statsu", ["start", "status", "stop"])
    'status'
    """
    return next(iter(get_close_matches(word, known, 1)), None)


def add_meant_flag(told: str, flags: Iterable[str]) -> str:
    """Add to argparse's word about arguments that it does not know which flags were meant.

    >>> add_meant_flag("unrecognized arguments: --devcies 2", ["--devices", "--name"])
    'unrecognized arguments: --devcies 2 (did you mean --devices?)'
    """
    if not told.startswith(_UNKNOWN):
        return told
    # Without the dashes, which are alike in all of them.
    known = [flag[2:] for flag in flags if flag.startswith("--")]
    unknown = [word[2:].partition("=")[0] for word in told.removeprefix(_UNKNOWN).split() if word.startswith("--")]
    meant = dict.fromkeys(f"--{flag}" for word in unknown if (flag := nearest(word, known)) is not None)
    return f"{told} (did you mean {' '.join(meant)}?)" if meant else told
