"""Diff two texts by line, and by word within a line.

The rows and the other text contain the whole text; a test checks this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

_WORD = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\w+|\s+|[^\w\s]")
_MAX_WORK = 250_000
"""Lines of one text times lines of the other, without equal ends: beyond this, lines are paired by position."""
_MAX_WORDS = 400
_SIMILAR = 0.4

Line: TypeAlias = tuple[str, str]
"""The channel (stdout, stderr, value, ...) and the text."""


@dataclass(frozen=True, slots=True)
class DiffSpan:
    """A part of a line; `there` is None if both are equal."""

    here: str
    there: str | None = None


@dataclass(frozen=True, slots=True)
class DiffRow:
    """The difference for a line, or for `count` equal lines."""

    kind: Literal["same", "changed", "added", "missing"]
    channel: str = ""
    spans: tuple[DiffSpan, ...] = ()
    """The parts of a changed, added or missing line."""
    count: int = 1
    start: int = 0
    """Index of the other text's first line in a run of equal lines."""

    @property
    def here(self) -> str:
        """The line in this text."""
        return "".join(span.here for span in self.spans)

    @property
    def there(self) -> str:
        """The line in the other text."""
        return "".join(span.here if span.there is None else span.there for span in self.spans)


def compare_lines(here: Sequence[Line], there: Sequence[Line]) -> tuple[DiffRow, ...]:
    """Return how `here` differs from `there`.

    >>> [row.kind for row in compare_lines([("o", "a"), ("o", "loss 1")], [("o", "a"), ("o", "loss 2")])]
    ['same', 'changed']
    """
    rows: list[DiffRow] = []
    for kind, h0, h1, t0, t1 in _opcodes(here, there):
        if kind == "equal":
            rows.append(DiffRow("same", count=t1 - t0, start=t0))
        else:
            rows += _pair_lines(here[h0:h1], there[t0:t1])
    return tuple(rows)


def apply_rows(rows: Sequence[DiffRow], there: Sequence[Line]) -> list[Line]:
    """Rebuild the text that `compare_lines` compared.

    >>> apply_rows(compare_lines([("o", "x 1")], [("o", "x 2")]), [("o", "x 2")])
    [('o', 'x 1')]
    """
    lines: list[Line] = []
    for row in rows:
        if row.kind == "same":
            lines += there[row.start : row.start + row.count]
        elif row.kind != "missing":
            lines.append((row.channel, row.here))
    return lines


def compare_words(here: str, there: str) -> tuple[DiffSpan, ...]:
    """Return which words of a line differ.

    >>> compare_words("loss 0.7", "loss 0.3")
    (DiffSpan(here='loss ', there=None), DiffSpan(here='0.7', there='0.3'))
    """
    ours, theirs = _WORD.findall(here), _WORD.findall(there)
    head, tail = _equal_ends(ours, theirs)
    h1, t1 = len(ours) - tail, len(theirs) - tail
    # Most long lines differ in one position, so only the part between the equal ends is compared.
    ends = [DiffSpan("".join(ours[:head]))] if head else [], [DiffSpan("".join(ours[h1:]))] if tail else []
    return (*ends[0], *_diff_words(ours[head:h1], theirs[head:t1]), *ends[1])


def _diff_words(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[DiffSpan]:
    if max(len(ours), len(theirs)) > _MAX_WORDS:
        yield DiffSpan("".join(ours), "".join(theirs))
        return
    for kind, h0, h1, t0, t1 in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        text = "".join(ours[h0:h1])
        yield DiffSpan(text) if kind == "equal" else DiffSpan(text, "".join(theirs[t0:t1]))


def _equal_ends(here: Sequence[object], there: Sequence[object]) -> tuple[int, int]:
    """Return how many items are equal at each end, without overlap."""
    shorter = min(len(here), len(there))
    head = next((i for i in range(shorter) if here[i] != there[i]), shorter)
    return head, next((i for i in range(shorter - head) if here[-1 - i] != there[-1 - i]), shorter - head)


_Opcode: TypeAlias = tuple[str, int, int, int, int]


def _opcodes(here: Sequence[Line], there: Sequence[Line]) -> Iterator[_Opcode]:
    """Yield difflib's opcodes; equal ends are split off first for speed."""
    head, tail = _equal_ends(here, there)
    h1, t1 = len(here) - tail, len(there) - tail
    if head:
        yield "equal", 0, head, 0, head
    if (h1 - head) * (t1 - head) > _MAX_WORK or head in (h1, t1):
        if h1 > head or t1 > head:
            yield "replace", head, h1, head, t1
    else:
        matcher = SequenceMatcher(None, here[head:h1], there[head:t1], autojunk=False)
        for kind, a0, a1, b0, b1 in matcher.get_opcodes():
            yield kind, a0 + head, a1 + head, b0 + head, b1 + head
    if tail:
        yield "equal", h1, len(here), t1, len(there)


def _pair_lines(here: Sequence[Line], there: Sequence[Line]) -> Iterator[DiffRow]:
    """Pair lines by position if similar; otherwise yield missing and added lines."""
    for ours, theirs in zip(here, there, strict=False):
        spans = compare_words(ours[1], theirs[1])
        if ours == theirs:
            yield DiffRow("changed", ours[0], (DiffSpan(ours[1]),))
        elif ours[0] == theirs[0] and _are_similar(spans):
            yield DiffRow("changed", ours[0], spans)
        else:
            yield from (_missing(theirs), _added(ours))
    both = min(len(here), len(there))
    yield from map(_added, here[both:])
    yield from map(_missing, there[both:])


def _are_similar(spans: Sequence[DiffSpan]) -> bool:
    """Check whether enough characters, or enough words, are the same."""
    for size in (len, lambda text: len(text.split())):
        equal = sum(size(span.here) for span in spans if span.there is None)
        here = sum(size(span.here) for span in spans)
        there = sum(size(span.here if span.there is None else span.there) for span in spans)
        if equal and equal >= _SIMILAR * max(here, there):
            return True
    return False


def _added(line: Line) -> DiffRow:
    return DiffRow("added", line[0], (DiffSpan(line[1]),))


def _missing(line: Line) -> DiffRow:
    return DiffRow("missing", line[0], (DiffSpan("", line[1]),))
