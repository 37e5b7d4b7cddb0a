"""Bounded buffer of output events that are not sent yet: head and tail of the text, and how much was dropped between.

Events stay in order. The buffer does not know which code wrote the output, nor when it is sent.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from mhnb.core.output.terminal import HEAD_LIMIT, TAIL_LIMIT
from mhnb.core.wire.protocol import OutputEvent, shorten_error, shorten_text

__all__ = ["EventBuffer"]

_CHUNK = 8 * 1024
_LIVE_CHARS = 16 * 1024
"""Characters of tail that each live take may add to what is sent: at 20 Hz about 320 KiB per second."""
_MAX_DISPLAY_CHARS = 64 * 1024 * 1024
"""Characters of display data in one cell, because a loop that draws endlessly must not fill the notebook."""
_MAX_DISPLAYS = 2000
"""Displays in one cell, because a browser cannot draw more in time."""
_MAX_FORMS, _MAX_MIME_CHARS = 64, 200
_MAX_METADATA_CHARS = 1024 * 1024
_TEXT_STREAMS = ("stdout", "stderr")


class EventBuffer:
    """The events of one cell. Not thread-safe: its owner holds a lock.

    Text fills the head first. Later text passes through the tail, which drops its oldest text.
    """

    __slots__ = (
        "_allowance",
        "_clear_pending",
        "_display_left_chars",
        "_displays",
        "_gap",
        "_head",
        "_head_left_chars",
        "_log_path",
        "_name",
        "_omitted_chars",
        "_pieces",
        "_ready",
        "_size",
        "_tail",
        "_tail_limit",
        "_tail_size",
        "_updates",
    )

    def __init__(self, head: int = HEAD_LIMIT, tail: int = TAIL_LIMIT, *, log_path: str = "") -> None:
        """Create an empty buffer. `log_path` is the file that has all text; empty string if no file has it."""
        self._log_path = log_path
        self._head, self._tail_limit = head, tail
        self._allowance = 0
        self._clear_pending = False
        self._reset()

    def _reset(self) -> None:
        self._display_left_chars = _MAX_DISPLAY_CHARS
        self._displays = self._omitted_chars = 0
        self._head_left_chars = self._head
        self._ready: list[OutputEvent] = []
        self._tail: deque[OutputEvent] = deque()
        self._tail_size = 0
        self._gap: dict[str, int] = {}
        """Bytes dropped since the last event in `_ready`, per stream."""
        self._updates: dict[str, OutputEvent] = {}
        self._begin_chunk("stdout")

    def _begin_chunk(self, name: str) -> None:
        self._name, self._pieces, self._size = name, [], 0  # type: str, list[str], int

    def add_text(self, name: str, text: str) -> None:
        """Add text of a stream."""
        if name != self._name or self._size > _CHUNK or self._clear_pending:
            self._before_output()
            self._begin_chunk(name)
        self._pieces.append(text)
        self._size += len(text)

    def add(self, event: OutputEvent) -> None:
        """Add any other event."""
        if event[0] == "clear" and event[1]:
            self._clear_pending = True
            return
        if event[0] in ("display", "update", "result"):
            event = self._bound_display(event)
        elif event[0] == "error":
            event = shorten_error(event, self._log_path)
        self._before_output()
        if event[0] == "clear":
            self._reset()
        elif event[0] == "update":
            if self._coalesce(event):
                return
        elif event[0] == "display":
            self._updates.pop(event[3], None)
        if self._fits(event):
            self._append(event)

    def take(self, *, everything: bool = True) -> list[OutputEvent]:
        """Return the events that were not returned before. A live take leaves a long tail for a later one."""
        self._end_chunk()
        if everything:
            self._allowance = self._tail_limit
        self._allowance = min(self._allowance + _LIVE_CHARS, self._tail_limit)
        if self._tail_size <= self._allowance:
            self._allowance -= self._tail_size
            self._close_gap()
            self._ready += self._tail
            self._tail, self._tail_size = deque(), 0
        if self._omitted_chars:
            self._ready.append(["omitted", "display", self._omitted_chars])
            self._omitted_chars = 0
        if everything and self._clear_pending:
            self._ready.append(["clear", True])
            self._clear_pending = False
        events, self._ready, self._updates = self._ready, [], {}
        return events

    def _before_output(self) -> None:
        if self._clear_pending:
            self._clear_pending = False
            self._reset()
            self._ready.append(["clear", False])
        else:
            self._end_chunk()

    def _coalesce(self, event: OutputEvent) -> bool:
        """Replace an update of the same display that was not sent yet. Return whether there was one."""
        earlier = self._updates.get(event[3])
        if earlier is None:
            self._updates[event[3]] = event
            return False
        earlier[1:3] = event[1:3]
        return True

    def _bound_display(self, event: OutputEvent) -> OutputEvent:
        """Shorten mime types and the text form. Larger forms count against the limit for displays."""
        data = {shorten_text(mime, _MAX_MIME_CHARS): value for mime, value in list(event[1].items())[:_MAX_FORMS]}
        if isinstance(text := data.get("text/plain"), str):
            data["text/plain"] = shorten_text(text, self._head + self._tail_limit, self._log_path)
        metadata = event[2] if _count_chars(event[2]) <= _MAX_METADATA_CHARS else {}
        display_id = [shorten_text(str(each), _MAX_MIME_CHARS) if each is not None else None for each in event[3:]]
        return [event[0], data, metadata, *display_id]

    def _fits(self, event: OutputEvent) -> bool:
        if event[0] not in ("display", "update", "result"):
            return True
        size = sum(map(_count_chars, event[1].values()))
        self._displays += 1
        if self._displays <= _MAX_DISPLAYS and size <= self._display_left_chars:
            self._display_left_chars -= size
            return True
        self._omitted_chars += size
        return False

    def _end_chunk(self) -> None:
        """Move the current chunk to the head, and what does not fit there to the tail."""
        if not self._pieces:
            return
        name, text = self._name, "".join(self._pieces)
        self._begin_chunk(name)
        if self._head_left_chars > 0:
            self._ready.append([name, text[: self._head_left_chars]])
            self._head_left_chars, text = self._head_left_chars - len(text), text[self._head_left_chars :]
        if text:
            self._tail.append([name, text])
            self._tail_size += len(text)
            self._shorten_tail()

    def _append(self, event: OutputEvent) -> None:
        (self._ready if self._head_left_chars > 0 else self._tail).append(event)

    def _shorten_tail(self) -> None:
        while self._tail_size > self._tail_limit:
            oldest = self._tail[0]
            if oldest[0] not in _TEXT_STREAMS:
                self._close_gap()
                self._ready.append(self._tail.popleft())
                continue
            name, text = oldest
            dropped = text[: self._tail_size - self._tail_limit]
            self._tail_size -= len(dropped)
            self._gap[name] = self._gap.get(name, 0) + len(dropped.encode("utf-8", "surrogatepass"))
            if len(dropped) == len(text):
                self._tail.popleft()
            else:
                self._tail[0] = [name, text[len(dropped) :]]

    def _close_gap(self) -> None:
        self._ready += [["omitted", name, nbytes] for name, nbytes in self._gap.items()]
        self._gap = {}


def _count_chars(value: Any) -> int:
    """Return about how many characters a JSON value takes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_count_chars(key) + _count_chars(each) for key, each in value.items())
    return sum(map(_count_chars, value)) if isinstance(value, list | tuple) else 8
