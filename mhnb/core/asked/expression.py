"""Split the line of a command that takes an expression: at blanks outside quotes and brackets; quotes are kept."""

from __future__ import annotations

from mhnb.errors import InvalidRequest

__all__ = ["split_arguments", "unquote"]

_OPEN, _CLOSE = "([{", ")]}"


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
    r"""Remove quotes around a flag's whole value, as a shell would require them.

    >>> unquote("\"P('x')\""), unquote("P('x')")
    ("P('x')", "P('x')")
    """
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
