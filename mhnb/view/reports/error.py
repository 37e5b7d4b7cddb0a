"""The card of an error of mhnb, and its one-line summary.

A message is prose, then lines that begin with `Fix:`, `Or:` or `Help:`. It may have lines that are drawn, as a table is, between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from mhnb.core.ranks import pluralize
from mhnb.view.ansi import strip_ansi
from mhnb.view.document import Card, Code, Document, Fold, Line, Part, Span

_LABELLED = re.compile(r"\s*(Fix|Or|Help): +(.*)")
_TYPED_LINE = re.compile(r"%%?mhjax\b.*?(?=: )")
"""The line that a message is about, at its beginning."""
_COMMAND = re.compile(r"(?:%%?mhjax|mhnb|%?pip)(?=[ ?]|$).*?(?=$| \(|[,;:] | · )")
"""A command at the beginning of a step."""
_CODE_IN_PROSE = re.compile(r"`([^`]+)`|(%%mhjax\b(?: --[\w-]+)*|%mhjax\b(?: [a-z]+)?(?: --[\w-]+)*)")
_DRAWN = re.compile(r"\S {2,}\S|^ {4}|[─-╿▀-▟]")
"""Matches lines whose blanks matter."""
_MAX_LINES, _SHOWN_LINES = 24, 16
_MAX_SUMMARY_CHARS = 72


def build_error(name: str, text: str) -> Document:
    """Build the card of an error.

    Args:
        name: of its class.
        text: all of its text, which begins with the name.
    """
    message = strip_ansi(text).removeprefix(f"{name}: ")
    first, *lines = message.split("\n")
    parts: list[Part] = [Line(f"✗ {name}", "bad heading"), _build_prose(first, _TYPED_LINE)]
    for is_labelled, group in groupby(lines, key=lambda line: _LABELLED.match(line) is not None):
        below = list(group)
        parts += map(_build_step, below) if is_labelled else _build_body(below)
    return [Card("failed", parts, text)]


def summarize_error(message: str) -> str:
    r"""Return the first line of a message, cut if long.

    >>> summarize_error("no cluster is running\n  Fix: %mhjax start")
    'no cluster is running'
    """
    first = strip_ansi(message).strip().partition("\n")[0]
    if len(first) <= _MAX_SUMMARY_CHARS:
        return first.removesuffix(":")
    cut = first[: _MAX_SUMMARY_CHARS - 2]
    words = cut.rpartition(" ")[0]
    # A path may be longer than the line.
    return f"{words if len(words) > len(cut) // 2 else cut} …"


def _build_step(line: str) -> Line:
    """Build a line such as `Fix: %mhjax start`, with its label bold."""
    label, step = _LABELLED.fullmatch(line).groups()  # type: ignore[union-attr]  # the caller has matched it
    return Line("", beside=[Span(f"{label}:", gap=0, is_strong=True), *_split_code(step, _COMMAND, gap=1)])


def _build_prose(line: str, typed: re.Pattern[str] = _COMMAND) -> Line:
    indent = (len(line) - len(line.lstrip())) // 2
    return Line("", indent=indent, beside=list(_split_code(line.strip(), typed)))


def _split_code(text: str, leading: re.Pattern[str], *, gap: int = 0) -> Iterator[Span]:
    """Split a text into prose and code, which `leading` may match first."""
    start = 0
    if found := leading.match(text):
        yield Span(found[0], gap=gap, is_code=True)
        start, gap = found.end(), 0
    for code in _CODE_IN_PROSE.finditer(text, start):
        if code.start() > start:
            yield Span(text[start : code.start()], gap=gap)
            gap = 0
        yield Span(code[1] or code[2], gap=gap, is_code=True)
        start, gap = code.end(), 0
    if start < len(text):
        yield Span(text[start:], gap=gap)


def _build_body(lines: list[str]) -> list[Part]:
    """Build lines between the first one and the steps."""
    if len(lines) > _MAX_LINES or any(map(_DRAWN.search, lines)):
        return _build_drawn(lines)
    parts: list[Part] = []
    for at, line in enumerate(lines):
        # The line below `%%mhjax` is the code of a cell.
        is_code = line.startswith(("%mhjax", "%%mhjax")) or (at > 0 and lines[at - 1].startswith("%%mhjax"))
        parts.append(Code(line) if is_code else _build_prose(line))
    return parts


def _build_drawn(lines: list[str]) -> list[Part]:
    if len(lines) <= _MAX_LINES:
        return [Code("\n".join(lines))]
    rest = lines[_SHOWN_LINES:]
    return [
        Code("\n".join(lines[:_SHOWN_LINES])),
        Fold(f"{pluralize(len(rest), 'more line')}", [Code("\n".join(rest))]),
    ]
