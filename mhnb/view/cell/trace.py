"""Collapse the frames of a traceback that are not the user's.

Reads the list of strings that IPython creates, including colours.
Frames of JAX, mhnb and IPython are library frames; all others are the user's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from mhnb.values import RankError
from mhnb.view.ansi import strip_ansi
from mhnb.view.words import join_words

__all__ = [
    "TracePart",
    "collapse_traceback",
    "count_user_frames",
    "format_trace_text",
    "full_message",
    "has_extra_information",
    "is_frame",
    "trim_traceback",
]

_FRAME = re.compile(r"\s*(?:File (?P<path>.+?):\d+|Cell In\[)")
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_HIDDEN = re.compile(r"\s*\[\.\.\. skipping hidden (\d+) frames?\]")
_CHAINED = re.compile(
    r"direct cause of the following exception|During handling of the above exception|Exception Group Traceback"
)
_SEPARATOR = re.compile(r"-{20,}\s*$")
_MHNB_PATH = re.compile(r"[/\\]mhnb[/\\](?:cluster|core|launch|link|magics|rank|sharding|view)\b")
_LIBRARIES = (
    (re.compile(r"[/\\](?:site|dist)-packages[/\\](?:jax|jaxlib)[/\\]|[/\\]jax[/\\]_src[/\\]"), "jax"),
    (_MHNB_PATH, "mhnb"),
    (re.compile(r"[/\\](?:site|dist)-packages[/\\](?:IPython|ipykernel|ipyparallel)[/\\]"), "IPython"),
)


@dataclass(frozen=True, slots=True)
class TracePart:
    """A section of a traceback."""

    text: str
    label: str = ""
    """As `… 12 frames inside jax` if the section is collapsed; empty for the user's own frames."""


@dataclass(frozen=True, slots=True)
class _Item:
    text: str
    owner: str | None
    """The library that the frame belongs to; None for the user's frames and for text that is not a frame."""
    frames: int


def collapse_traceback(traceback: Iterable[str]) -> tuple[TracePart, ...]:
    r"""Collapse each run of library frames into one part with a label.

    >>> collapse_traceback(["File /v/site-packages/jax/_src/core.py:7, in f\n----> 7 raise", "TypeError: no"])[0].label
    '… 1 frame inside jax'
    """
    items = [_parse_item(text) for text in traceback if not _SEPARATOR.match(strip_ansi(text))]
    parts = []
    for is_library, run in groupby(items, key=lambda item: item.owner is not None):
        same = list(run)
        text = "\n".join(item.text.rstrip("\n") for item in same)
        parts.append(TracePart(text, _format_label(same) if is_library else ""))
    return tuple(parts)


def _parse_item(text: str) -> _Item:
    plain = strip_ansi(text)
    hidden = _HIDDEN.match(plain)
    if hidden:  # JAX marks its own frames as hidden, and mhnb does the same
        return _Item(text, "jax", int(hidden[1]))
    frame = _FRAME.match(plain)
    path = frame["path"] if frame else None
    owner = next((name for pattern, name in _LIBRARIES if path and pattern.search(path)), None)
    return _Item(text, owner, 1 if frame else 0)


def _format_label(items: list[_Item]) -> str:
    count = sum(item.frames for item in items)
    owners = list(dict.fromkeys(item.owner or "" for item in items))
    return f"… {count} {'frame' if count == 1 else 'frames'} inside {join_words(owners)}"


def is_frame(plain: str) -> bool:
    """Return whether a piece of a traceback, without colours, is a frame with its lines of code, not a title or a message."""
    return _FRAME.match(plain) is not None


def trim_traceback(error: RankError) -> tuple[str, ...]:
    """Remove what is already shown above the traceback.

    That is the title with the exception's name, and the message at the end with its notes.
    """
    kept = []
    for text in error.traceback[: len(error.traceback) - len(_trailing_notes(error))]:
        plain = strip_ansi(text).strip()
        title = plain.startswith(f"{error.ename} ") and plain.endswith("Traceback (most recent call last)")
        if not title and plain != _final_line(error):
            kept.append(text)
    return tuple(kept)


def full_message(error: RankError) -> str:
    """Return an error's message with the notes that were added to it (PEP 678), without the exception's name."""
    return "\n".join([strip_ansi(error.evalue), *_trailing_notes(error)])


def _final_line(error: RankError) -> str:
    return f"{error.ename}: {strip_ansi(error.evalue)}".strip().removesuffix(":")


def _trailing_notes(error: RankError) -> list[str]:
    """Return what follows the message at a traceback's end."""
    notes: list[str] = []
    for text in reversed(error.traceback):
        plain = strip_ansi(text).rstrip()
        if plain.strip() == _final_line(error):
            return notes[::-1]
        notes.append(plain)
    return []


def count_user_frames(traceback: Iterable[str]) -> int:
    """Return the number of the user's own frames; one means that the cell's line is enough."""
    items = [_parse_item(text) for text in traceback]
    return sum(item.frames for item in items if item.owner is None)


def has_extra_information(error: RankError) -> bool:
    """Return whether a traceback adds to the cell's line and the message.

    Other frames, a cause, the errors of a group and a caret do.
    """
    if error.line is None or error.ename in _SYNTAX or count_user_frames(error.traceback) > 1:
        return True
    return _CHAINED.search("\n".join(error.traceback)) is not None


def format_trace_text(traceback: Iterable[str], *, color: bool) -> str:
    """Format a traceback as text, with a label for each collapsed run of frames."""
    text = "\n".join(f"    {part.label}" if part.label else part.text for part in collapse_traceback(traceback))
    return text if color else strip_ansi(text)
