"""Parse command arguments, and suggest known words for unknown ones.

A command that takes an expression is split at blanks outside quotes and brackets; quotes are kept. The argparse types for
numeric flags raise errors that state what was expected.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from mhnb.errors import InvalidRequest

_OPEN, _CLOSE = "([{", ")]}"
_MAX_CANDIDATES = 5
"""Most known names that a message lists."""


def split_arguments(line: str) -> list[str]:
    """Split a line into words, each of which may be code.

    Raises:
        InvalidRequest: a quote or bracket is not closed.

    >>> split_arguments("params['a b'] --to P(None, 'x')")
    ["params['a b']", '--to', "P(None, 'x')"]
    """
    words, word, depth, quote = [], "", 0, ""
    for char in line:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char.isspace() and not depth:
            words.append(word)
            word = ""
            continue
        word += char
    if quote or depth:
        raise InvalidRequest(f"{line.strip()!r} has a {'quote' if quote else 'bracket'} that is not closed")
    return [word for word in [*words, word] if word]


def unquote(word: str) -> str:
    r"""Remove quotes around a flag's whole value, as a shell would.

    >>> unquote("\"P('x')\""), unquote("P('x')")
    ("P('x')", "P('x')")
    """
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word


# -- suggestions for unknown commands and flags


_UNKNOWN = "unrecognized arguments:"


def closest_match(word: str, known: Iterable[str], *, similarity: float = 0.6) -> str | None:
    """Return the closest known word; None if none is close.

    Args:
        similarity: of the closest words, at least; 1 for equal words. As of `difflib.get_close_matches`.

    >>> closest_match("statsu", ["start", "status", "stop"])
    'status'
    >>> closest_match("rank", ["break"]), closest_match("rank", ["break"], similarity=0.7)
    ('break', None)
    """
    return next(iter(get_close_matches(word, list(known), 1, similarity)), None)


def closest_matches(word: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return the known words that are close to `word`, the closest first.

    >>> closest_matches("stat", ["start", "status", "pull"])
    ['start', 'status']
    """
    return get_close_matches(word, list(known), limit)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the closest known word in parentheses; empty if none is close.

    >>> did_you_mean("statsu", ["start", "status"]), did_you_mean("xyz", ["start"])
    (' (did you mean status?)', '')
    """
    closest = closest_match(word, known)
    return f" (did you mean {closest}?)" if closest else ""


def format_unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Describe an unknown name, with a suggestion or with known names.

    >>> format_unknown("command", "strat", ["start", "stop"])
    "unknown command 'strat'. Did you mean 'start'?"
    >>> format_unknown("profile", "xyz", ["local", "ssh"])
    "unknown profile 'xyz'; expected local or ssh"
    >>> format_unknown("axis", "z", "abcdefg")
    "unknown axis 'z'; expected a, b, c, d, e, or another of 7"
    >>> format_unknown("cluster", "a", [])
    "unknown cluster 'a'; none exists"
    """
    names = list(dict.fromkeys(known))
    if closest := closest_match(name, names):
        return f"unknown {kind} {name!r}. Did you mean {closest!r}?"
    if not names:
        return f"unknown {kind} {name!r}; none exists"
    if len(names) > _MAX_CANDIDATES:
        expected = f"{', '.join(names[:_MAX_CANDIDATES])}, or another of {len(names)}"
    else:
        expected = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"unknown {kind} {name!r}; expected {expected}"


def suggest_flags(message: str, flags: Iterable[str]) -> str:
    """Add a suggestion to argparse's message about unknown arguments.

    >>> suggest_flags("unrecognized arguments: --devcies 2", ["--devices", "--name"])
    'unrecognized arguments: --devcies 2 (did you mean --devices?)'
    >>> suggest_flags("unrecognized arguments: -name=a devices 2 names", ["--devices", "--name"])
    'unrecognized arguments: -name=a devices 2 names (did you mean --name --devices?)'
    """
    if not message.startswith(_UNKNOWN):
        return message
    # Compare without the dashes, because they are the same in all flags.
    known = [flag[2:] for flag in flags if flag.startswith("--")]
    suggestions = dict.fromkeys(
        f"--{flag}"
        for word in message.removeprefix(_UNKNOWN).split()
        if (flag := _find_meant_flag(word.partition("=")[0], known)) is not None
    )
    return f"{message} (did you mean {' '.join(suggestions)}?)" if suggestions else message


def find_stray_code(line: str, message: str) -> str:
    """Return the code at the end of a line of flags.

    Args:
        line: the flags, as typed.
        message: argparse's about the line, with suggestions.

    Returns:
        An empty string if the line has no code.

    >>> find_stray_code("--quiet x = 1", "unrecognized arguments: x = 1")
    'x = 1'
    >>> find_stray_code("--out x x = x", "unrecognized arguments: x = x"), find_stray_code('""', "unrecognized arguments: ")
    ('x = x', '')
    >>> find_stray_code("--qiet", "unrecognized arguments: --qiet (did you mean --quiet?)")
    ''
    """
    unknown = message.removeprefix(_UNKNOWN).split()
    if not message.startswith(_UNKNOWN) or "(did you mean" in message or not unknown or unknown[0].startswith("-"):
        return ""
    # Up to the first bracket, because the message lacks the line's quotes.
    beginning = re.escape(unknown[0].partition("(")[0] or "(")
    ends = (line[found.end() :] for found in re.finditer(rf"(?:^|\s)(?={beginning})", line))
    # The same word may be before, as the value of a flag.
    return next((end for end in ends if len(end.split()) == len(unknown)), "")


def _find_meant_flag(word: str, known: Sequence[str]) -> str | None:
    if word.startswith("-"):
        return closest_match(word.lstrip("-"), known)
    # A word without dashes may be any argument, so only the exact name of a flag counts.
    return word if word in known else None


# -- suggestions for unknown magics


_MAGICS = {"mhjax": "mhjax", "mhnb": "mhjax", "local": "local"}
"""What users type, and the magic that they mean."""
_NO_MAGIC = re.compile(r"^(?:Line magic function|Cell magic) `(?P<percent>%%?)(?P<name>\w+)` not found")


def find_missing_magic(message: str) -> tuple[str, str] | None:
    """Parse IPython's message about an unknown magic; None for any other message.

    >>> find_missing_magic("Cell magic `%%mhajx` not found.")
    ('%%', 'mhajx')
    """
    found = _NO_MAGIC.match(message)
    return (found["percent"], found["name"]) if found else None


def find_meant_magic(name: str) -> str | None:
    """Return mhnb's magic closest to a name; None if none is close.

    >>> find_meant_magic("mhajx"), find_meant_magic("MHJAX"), find_meant_magic("mhnb"), find_meant_magic("timeit")
    ('mhjax', 'mhjax', 'mhjax', None)
    """
    closest = closest_match(name.lower(), _MAGICS)
    return None if closest is None else _MAGICS[closest]


# -- argparse types for numeric flags


def int_argument(text: str) -> int:
    """Parse a whole number.

    Raises:
        ArgumentTypeError: the text is not a whole number; argparse names the flag before this message.

    >>> int_argument("4")
    4
    """
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a whole number, for example 4; got {text!r}") from None


def seconds_argument(text: str) -> float:
    """Parse a duration.

    Raises:
        ArgumentTypeError: the text is not a number; argparse names the flag before this message.

    >>> seconds_argument("0.5")
    0.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ArgumentTypeError(f"expected seconds, for example 30 or 0.5; got {text!r}")
    return number


def is_positive_seconds(value: object) -> bool:
    """Return whether a value is a positive number of seconds.

    >>> [is_positive_seconds(value) for value in (2, 0, "2", float("nan"), True)]
    [True, False, False, False, False]
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value) and value > 0
