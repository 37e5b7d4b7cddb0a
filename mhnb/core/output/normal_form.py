"""The normal form of a rank's text and of its outputs.

This module decides which differences between ranks have no meaning: memory addresses, random ids of HTML elements, the order of a
set, and the order of the fields that gRPC adds to an error. Numbers and random names, which readers may need, are the template's.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mhnb.types import Output

_IGNORED_KEYS = ("execution_count", "transient")
_MARKUP = re.compile(r"<(style|script)\b.*?(?:</\1>|\Z)|<[a-zA-Z][^<>]*>", re.DOTALL)
"""Markup, which readers do not see; a script that is not closed ends with the text."""
_ID = re.compile(r"""\sid=["']?([\w-]+)""")
_ID_REFERENCE = re.compile(r"""(?<=\s)((?:id|for|headers|href|aria-\w+)=["']?#?)([\w-]+)""")
"""Matches where a tag names an element: itself or another one."""
_WORD = re.compile(r"[\w-]+")
_PANDAS_ID = re.compile(r"T_[0-9a-f]{5}")
"""Ids by pandas, which styles a table with rules for its id."""
_HEX = re.compile(r"[0-9a-f]{8,}")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")


def normalize_output(output: Output) -> str:
    """Return an output as text that is equal for equal content.

    >>> normalize_output({"output_type": "stream", "name": "stdout", "text": "<f at 0x7f0123456789>"})
    '{"name": "stdout", "output_type": "stream", "text": "<f at 0x…>"}'
    """
    content = {key: value for key, value in output.items() if key not in _IGNORED_KEYS}
    data = content.get("data")
    if isinstance(data, dict) and isinstance(html := data.get("text/html"), str):
        content["data"] = {**data, "text/html": _replace_random_ids(html)}
    return remove_addresses(json.dumps(content, sort_keys=True, default=str))


def _replace_random_ids(html: str) -> str:
    """Number the random ids in HTML, which differ by rank without meaning.

    They are replaced only where they are names of elements: the same word in visible text stays.
    """
    found = (word for tag in _MARKUP.finditer(html) for word in _ID.findall(tag[0]))
    # No text contains this character, so a number in the text is not mistaken for one of these.
    numbers = {word: f"\0{at}" for at, word in enumerate(dict.fromkeys(filter(_is_random, found)))}
    if not numbers:
        return html

    def rename(markup: re.Match[str]) -> str:
        if markup[1]:
            return _WORD.sub(lambda word: numbers.get(word[0], word[0]), markup[0])
        return _ID_REFERENCE.sub(lambda name: name[1] + numbers.get(name[2], name[2]), markup[0])

    return _MARKUP.sub(rename, html)


def _is_random(word: str) -> bool:
    run = _HEX.search(word)
    return _PANDAS_ID.match(word) is not None or (run is not None and not run[0].isalpha() and not word.isdecimal())


def remove_addresses(text: str) -> str:
    """Remove the memory addresses of objects.

    >>> remove_addresses("<f at 0x7f0123456789>")
    '<f at 0x…>'
    """
    return _ADDRESS.sub(" at 0x…", text)


RANDOM_NAME = (
    r"(?<![A-Za-z0-9])(?:0x[0-9a-f]{6,}|(?<=/)tmp[a-z0-9_]{8}(?!_)"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|(?!\d+e?\d*(?![0-9a-f]))(?=[a-f]*\d)[0-9a-f]{8,})(?![A-Za-z0-9])"
)
"""A memory address, a name by Python's `tempfile`, a UUID, or at least eight hexadecimal digits that are not a number."""


# -- the order of a set


ORDER_MARK = "‹order differs by rank›"
"""Is shown behind a set that some ranks wrote in another order."""

_OPEN = re.compile(r"\{")
# A quote that is not closed ends with its line, so no part of a line is scanned again from the next quote.
_TOKEN = re.compile(r"""[{}()\[\]:<>]|,\s+|'(?:[^'\\\n]|\\.)*+'?|"(?:[^"\\\n]|\\.)*+"?""")
_CLOSING = {"{": "}", "(": ")", "[": "]"}
_NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?")
_GRPC_FIELD = re.compile(r"[a-z_]+:\S")
_MAX_DEPTH = 50
"""Sets that contain each other are read at most this deep, because each one's normal form contains that of the inner ones."""


@dataclass(frozen=True, slots=True)
class _FoundSet:
    """A set in a text, or the fields of a gRPC error."""

    start: int
    end: int
    normal: str
    """It with its members in alphabetical order."""


@dataclass(slots=True)
class _Bracket:
    """A bracket that is open."""

    kind: str
    start: int
    first_inside: int
    """The number of sets before it."""
    commas: list[tuple[int, int]] = field(default_factory=list)
    angles: int = 0
    """`<` without their `>` in its last member: a colon inside `<Color.RED: 1>` is not behind a key."""
    has_colon: bool = False


def normalize_text(text: str) -> str:
    """Return a text without differences that have no meaning.

    >>> normalize_text("on {'b', 'a'} <f at 0x7f0123456789>")
    "on {'a', 'b'} <f at 0x…>"
    """
    return remove_addresses(normalize_sets(text))


def align_texts(texts: Sequence[str]) -> list[str]:
    """Write sets in one order, and remove addresses if they differ.

    Args:
        texts: those of ranks whose texts are equal, except for the order of sets, addresses and numbers.

    >>> align_texts(["on {'b', 'a'}", "on {'a', 'b'}"])
    ["on {'b', 'a'} ‹order differs by rank›", "on {'b', 'a'} ‹order differs by rank›"]
    """
    return align_sets(align_addresses(texts))


def align_addresses(texts: Sequence[str]) -> list[str]:
    """Remove the addresses from all texts if they differ in one.

    >>> align_addresses(["<f at 0x7f0123456789>", "<f at 0x7f0123456780>"])
    ['<f at 0x…>', '<f at 0x…>']
    """
    differ = len({tuple(_ADDRESS.findall(text)) for text in texts}) > 1
    return [remove_addresses(text) if differ else text for text in texts]


def align_sets(texts: Sequence[str]) -> list[str]:
    """Write the sets in the order that the first text has there.

    A set is marked if the texts have several orders of it there. Equal sets at other positions do not count: a text may
    have one set in two orders.
    """
    if len(set(texts)) <= 1:
        return list(texts)
    written: dict[tuple[int, str], dict[str, None]] = {}
    found_by_text = [_find_sets(text) for text in texts]
    for text, found in zip(texts, found_by_text, strict=True):
        for at, one in enumerate(found):
            written.setdefault((at, one.normal), {})[text[one.start : one.end]] = None

    def align(at: int, one: _FoundSet) -> str:
        first, *others = written[at, one.normal]
        return f"{first} {ORDER_MARK}" if others else first

    return [_replace_sets(text, found, align) for text, found in zip(texts, found_by_text, strict=True)]


def normalize_sets(text: str) -> str:
    """Write the members of sets in alphabetical order.

    >>> normalize_sets("on {'b', 'a'}")
    "on {'a', 'b'}"
    """
    return _replace_sets(text, _find_sets(text), lambda _, one: one.normal)


def _replace_sets(text: str, found: Sequence[_FoundSet], replace: Callable[[int, _FoundSet], str]) -> str:
    parts, end = [], 0
    for at, one in enumerate(found):
        parts += [text[end : one.start], replace(at, one)]
        end = one.end
    return "".join([*parts, text[end:]])


def _find_sets(text: str) -> list[_FoundSet]:
    """Return the outermost sets of a text, in order."""
    opened: list[_Bracket] = []
    found: list[_FoundSet] = []
    at = 0
    # Outside of brackets, a quote may be an apostrophe.
    while (token := (_TOKEN if opened else _OPEN).search(text, at)) is not None:
        at, kind = token.end(), token[0]
        if kind in _CLOSING and len(opened) < _MAX_DEPTH:
            opened.append(_Bracket(kind, token.start(), len(found)))
        elif kind == ":":
            opened[-1].has_colon |= opened[-1].angles <= 0
        elif kind in ("<", ">"):
            opened[-1].angles += 1 if kind == "<" else -1
        elif kind[0] == ",":
            opened[-1].commas.append(token.span())
            opened[-1].angles = 0
        elif kind == _CLOSING[opened[-1].kind]:
            bracket = opened.pop()
            if bracket.kind == "{" and bracket.commas:
                found[bracket.first_inside :] = _close(bracket, text, at, found[bracket.first_inside :])
        elif kind[0] not in "'\"":
            # These brackets are not those of a value, or too many.
            opened.clear()
    return found


def _close(bracket: _Bracket, text: str, end: int, inside: list[_FoundSet]) -> list[_FoundSet]:
    """Return the set that a brace is, otherwise the sets inside it."""
    edges = [bracket.start + 1, *(edge for comma in bracket.commas for edge in comma), end - 1]
    members, rest = [], deque(inside)
    for begin, stop in zip(edges[::2], edges[1::2], strict=True):
        parts, done = [], begin
        while rest and rest[0].start < stop:
            one = rest.popleft()
            parts += [text[done : one.start], one.normal]
            done = one.end
        members.append(remove_addresses("".join([*parts, text[done:stop]]).strip()))
    if not (_are_grpc_fields(members) if bracket.has_colon else _are_members(members)):
        return inside
    return [_FoundSet(bracket.start, end, f"{{{', '.join(sorted(members))}}}")]


def _are_members(members: Sequence[str]) -> bool:
    # Python has the same order of numbers in every process, so numbers in another order are no set: they may be a pair.
    return all(members) and not all(map(_NUMBER.fullmatch, members))


def _are_grpc_fields(members: Sequence[str]) -> bool:
    """Check for the form of `{grpc_status:6, grpc_message:"no such key"}`."""
    return all(map(_GRPC_FIELD.match, members)) and any(member.startswith("grpc_") for member in members)
