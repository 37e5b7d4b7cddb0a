"""Shorten long lines that differ in a few words to those words and the text near them.

The text left out is as in the majority's line, which its own block shows in full.
Each rank's lines stay complete in the verbatim output and in its log.
"""

from __future__ import annotations

from collections.abc import Iterator

from mhnb.core.output.differ import DiffRow, DiffSpan

__all__ = ["clip_unchanged", "keep_ends"]

_LONG_CHARS = 160
_CONTEXT_CHARS = 40
"""Characters kept on each side of a word that differs."""


def clip_unchanged(row: DiffRow) -> tuple[DiffSpan, ...]:
    """Return a line's spans. If the line is long, equal spans and the text of other ranks are shortened.

    >>> [span.here for span in clip_unchanged(DiffRow("changed", "", (DiffSpan("a " * 200), DiffSpan("x", "y"), DiffSpan(" b" * 200))))][1:]
    ['x', ' b b b b b b b b b b b b b b b b b b b …']
    """
    if max(len(row.here), len(row.there)) <= _LONG_CHARS:
        return row.spans
    if all(span.there is None for span in row.spans):
        # An equal line among others that differ.
        return (DiffSpan(keep_ends(row.here)),)
    return tuple(_clip_spans(row.spans))


def _clip_spans(spans: tuple[DiffSpan, ...]) -> Iterator[DiffSpan]:
    for at, span in enumerate(spans):
        if span.there is not None:
            yield DiffSpan(span.here, keep_ends(span.there))
            continue
        head = span.here[:_CONTEXT_CHARS] if at else ""
        tail = span.here[-_CONTEXT_CHARS:] if at < len(spans) - 1 else ""
        if len(head) + len(tail) + 5 >= len(span.here):
            yield span
        else:
            # Whole words, if there are any.
            head, tail = head.rpartition(" ")[0] or head, tail.partition(" ")[2] or tail
            yield DiffSpan(f"{head} … {tail}" if head and tail else f"{head} …" if head else f"… {tail}")


def keep_ends(text: str) -> str:
    """Keep the ends of a long text that is shown in full elsewhere.

    >>> len(keep_ends("x" * 1000)), keep_ends("short")
    (83, 'short')
    """
    return text if len(text) <= _LONG_CHARS else f"{text[:_CONTEXT_CHARS]} … {text[-_CONTEXT_CHARS:]}"
