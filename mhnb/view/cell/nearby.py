"""Shorten long lines that differ in a few words to those words and the text near them.

The text left out is as in the majority's line, which its own block shows in full.
Each rank's lines stay complete in the verbatim output and in its log.
"""

from __future__ import annotations

from collections.abc import Iterator

from mhnb.core.output.differ import Row, Span

__all__ = ["near_changes", "shorten"]

_LONG = 160
_NEAR = 40
"""Characters kept on each side of a word that differs."""


def near_changes(row: Row) -> tuple[Span, ...]:
    """Return a line's spans. If the line is long, equal spans and the text of other ranks are shortened.

    >>> [span.here for span in near_changes(Row("changed", "", (Span("a " * 200), Span("x", "y"), Span(" b" * 200))))][1:]
    ['x', ' b b b b b b b b b b b b b b b b b b b …']
    """
    if max(len(row.here), len(row.there)) <= _LONG:
        return row.spans
    if all(span.there is None for span in row.spans):
        # An equal line among others that differ.
        return (Span(shorten(row.here)),)
    return tuple(_cut(row.spans))


def _cut(spans: tuple[Span, ...]) -> Iterator[Span]:
    for at, span in enumerate(spans):
        if span.there is not None:
            yield Span(span.here, shorten(span.there))
            continue
        head = span.here[:_NEAR] if at else ""
        tail = span.here[-_NEAR:] if at < len(spans) - 1 else ""
        if len(head) + len(tail) + 5 >= len(span.here):
            yield span
        else:
            # Whole words, if there are any.
            head, tail = head.rpartition(" ")[0] or head, tail.partition(" ")[2] or tail
            yield Span(f"{head} … {tail}" if head and tail else f"{head} …" if head else f"… {tail}")


def shorten(text: str) -> str:
    """Keep the ends of a long text that is shown in full elsewhere.

    >>> len(shorten("x" * 1000)), shorten("short")
    (83, 'short')
    """
    return text if len(text) <= _LONG else f"{text[:_NEAR]} … {text[-_NEAR:]}"
