"""Limits for the texts that a rank sends: a longer text is shortened before it is sent, and states how much is missing."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from mhnb.core.wire.protocol import CellEnded, Message, OutputEvent, OutputProduced, RankReply, RunCell

__all__ = ["MAX_LINES_CHARS", "MAX_NAME_CHARS", "MAX_TEXT_CHARS", "shorten_error", "shorten_message", "shorten_text"]

MAX_NAME_CHARS = 1000
"""For the name of a class, a function, a program or a code location."""
MAX_TEXT_CHARS = 64 * 1024
"""For a message."""
MAX_LINES_CHARS = 256 * 1024
"""For all lines of a traceback together."""


def shorten_text(text: str, limit: int, full_text_file: str = "") -> str:
    """Keep the beginning and the end of a text longer than `limit`, and state how much is left out.

    Args:
        full_text_file: the file that has the whole text; empty if there is none.

    >>> shorten_text("abcdef", 4, "rank0.log")
    'ab[... 2 characters left out; rank0.log has them ...]ef'
    """
    if len(text) <= limit:
        return text
    has = f"; {full_text_file} has them" if full_text_file else ""
    return (
        f"{text[: limit // 2]}[... {len(text) - limit:,} characters left out{has} ...]{text[len(text) - limit // 2 :]}"
    )


def shorten_error(event: OutputEvent, full_text_file: str = "") -> OutputEvent:
    """Shorten every text of an error event; return the same event if none is too long.

    >>> len(shorten_error(["error", "E" * 10**6, "no", [], None, None, 0.0, []])[1]) < 2000
    True
    """
    kind, ename, evalue, lines, line, code, at_s, site = event
    if sum(map(len, lines)) > MAX_LINES_CHARS:
        each = max(MAX_NAME_CHARS, MAX_LINES_CHARS // min(len(lines), 16))
        lines = [shorten_text(text, each, full_text_file) for text in lines]
        lines = _keep_ends(lines)
    bounded = [
        kind,
        shorten_text(ename, MAX_NAME_CHARS, full_text_file),
        shorten_text(evalue, MAX_TEXT_CHARS, full_text_file),
        lines,
    ]
    bounded += [
        line,
        None if code is None else shorten_text(code, MAX_NAME_CHARS),
        at_s,
        _shorten_value(site, MAX_NAME_CHARS),
    ]
    return event if bounded == event else bounded


def _keep_ends(lines: list[str]) -> list[str]:
    """Leave out the middle lines if all lines together are too long."""
    ends: tuple[list[str], list[str]] = ([], [])
    remaining = MAX_LINES_CHARS
    for index in range(len(lines)):
        side = index % 2
        text = lines[index // 2] if side == 0 else lines[-1 - index // 2]
        if len(text) > remaining:
            left_out = len(lines) - len(ends[0]) - len(ends[1])
            return [*ends[0], f"[... {left_out:,} lines left out ...]", *reversed(ends[1])]
        remaining -= len(text)
        ends[side].append(text)
    return lines


def shorten_message(message: Message) -> Message:
    """Shorten the names and messages of a rank that are too long. Output has limits of its own, and data has none.

    >>> from mhnb.core.wire.protocol import CellRefused
    >>> len(shorten_message(CellRefused(0, 1, "x" * 10**6)).reason) < 70_000
    True
    """
    if isinstance(message, OutputProduced | RunCell) or (isinstance(message, RankReply) and message.ok):
        return message
    limit = MAX_NAME_CHARS if isinstance(message, CellEnded) else MAX_TEXT_CHARS
    changed = {}
    for part in fields(message):
        value = getattr(message, part.name)
        if part.name in ("events", "payload"):
            continue
        if (bounded := _shorten_value(value, MAX_TEXT_CHARS if part.name == "notes" else limit)) != value:
            changed[part.name] = bounded
    return replace(message, **changed) if changed else message


def _shorten_value(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return shorten_text(value, limit)
    if isinstance(value, list | tuple):
        return [_shorten_value(each, limit) for each in value]
    if isinstance(value, dict):
        return {_shorten_value(key, limit): _shorten_value(each, limit) for key, each in value.items()}
    return value
