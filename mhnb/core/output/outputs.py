"""Accumulate one rank's output events of one cell into the outputs that a notebook stores.

This module decides what is merged, overwritten and cleared, and what is left out when a cell produces too much output.
Where the events come from, and how the outputs are displayed, is handled elsewhere.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeAlias

from mhnb.core.output.figures import describe_figure, find_figure_type
from mhnb.core.output.terminal import TerminalText
from mhnb.core.wire.protocol import OutputEvent
from mhnb.values import Output

__all__ = ["ForeignUpdate", "GAP_LINE", "HEAD_LIMIT", "OutputAccumulator", "TAIL_LIMIT", "accumulate_events"]

HEAD_LIMIT = 512 * 1024
"""Characters kept from the start of a cell's text."""
TAIL_LIMIT = 512 * 1024
"""Characters kept from its end."""
_CHUNK = 32 * 1024
"""A stream is split into chunks of about this many characters, so that the middle can be dropped."""
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_FIGURE_REASON = "told as text: only a notebook's front end draws this form; fig.show('png') makes an image of it"

_WIDGET_REASON = "a widget made on a rank lives there, out of the browser's reach: this is its text form"

GAP_LINE = re.compile(r"\[\.\.\. ((?:at least )?[\d,]+) bytes of (stdout|stderr) left out; .* \.\.\.\]")
"""Matches the line that replaces text which only the log has: how much, of which stream."""

ForeignUpdate: TypeAlias = tuple[str, dict[str, Any], dict[str, Any]]
"""An update of a display that this cell did not make: display id, data, metadata."""


class _Stream:
    """A part of one stream."""

    __slots__ = ("name", "text")

    def __init__(self, name: str, text: TerminalText | None = None) -> None:
        self.name = name
        self.text = text or TerminalText()


def _make_stream(name: str, text: str) -> _Stream:
    stream = _Stream(name)
    stream.text.add(text)
    return stream


class _Bundle:
    """A display, a result or an error."""

    __slots__ = ("output",)

    def __init__(self, output: Output) -> None:
        self.output = output


class _Gap:
    """Text that was left out at this point: bytes by stream."""

    __slots__ = ("nbytes",)

    def __init__(self) -> None:
        self.nbytes: dict[str, int] = {}


_Item: TypeAlias = _Stream | _Bundle | _Gap


class OutputAccumulator:
    """Accumulates a cell's events and returns its outputs at any time; memory for text is bounded."""

    def __init__(self, *, execution_count: int | None = None) -> None:
        self._execution_count = execution_count
        self._head: list[_Item] = []
        self._tail: deque[_Item] = deque()
        self._head_room, self._tail_size = HEAD_LIMIT, 0
        self._current: _Stream | None = None
        """The stream that the next text may continue; not yet counted in `_head_room` or `_tail_size`."""
        self._displays: dict[str, list[_Bundle]] = {}
        self._clear_pending = False
        self._foreign_updates: dict[str, ForeignUpdate] = {}
        self.omitted_nbytes = 0
        """Bytes of output that were left out, on the rank or here."""
        self.noise = ""
        """Log lines by C++ libraries, which are not output of the user's code."""

    def add(self, events: Iterable[OutputEvent]) -> None:
        """Add events, in the order in which the rank produced them."""
        for event in events:
            kind = event[0]
            if kind in ("stdout", "stderr"):
                self._add_text(kind, event[1])
            elif kind == "update":
                self._add_update(*event[1:])
            elif kind == "clear":
                self._clear(wait=event[1])
            elif kind == "noise":
                self.noise += event[1]
            elif kind == "omitted":
                self._add_gap(event[1], event[2])
            else:
                self._add_bundle(event)

    def finish(self) -> None:
        """Finish at the cell's end: if text is left out, the kept part is cut as if no more text came."""
        if self._head_room <= 0:
            self._seal()

    def outputs(self) -> tuple[Output, ...]:
        """Return the outputs so far in nbformat 4."""
        pending: list[_PendingOutput] = []
        items = [*self._head, *self._tail, *([self._current] if self._current else [])]
        for item in items:
            if isinstance(item, _Bundle):
                pending.append(item.output)
            elif isinstance(item, _Stream):
                _append_text(pending, item.name, item.text.read())
            else:
                for name, nbytes in item.nbytes.items():
                    _append_text(pending, *_format_gap(name, nbytes))
        return tuple(_to_output(one) for one in pending)

    def update_display(self, display_id: str, data: dict[str, Any], metadata: dict[str, Any]) -> bool:
        """Replace the displays with that id; return whether this cell has any."""
        for bundle in self._displays.get(display_id, ()):
            bundle.output = {**bundle.output, "data": _clean_data(data), "metadata": _as_metadata(metadata)}
        return display_id in self._displays

    def take_foreign_updates(self) -> list[ForeignUpdate]:
        """Return, once, the updates of displays that other cells made; the latest of each id."""
        updates = list(self._foreign_updates.values())
        self._foreign_updates = {}
        return updates

    def _add_text(self, name: str, text: str) -> None:
        self._before_output()
        if self._current is None or self._current.name != name:
            self._seal()
            self._current = _Stream(name)
        self._current.text.add(text)
        if len(self._current.text) > _CHUNK:
            self._split_current()

    def _add_update(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str) -> None:
        if not self.update_display(display_id, data, metadata):
            self._foreign_updates.pop(display_id, None)
            self._foreign_updates[display_id] = (display_id, data, metadata)

    def _add_gap(self, name: str, nbytes: int) -> None:
        self._before_output()
        self._seal()
        self.omitted_nbytes += nbytes
        gap = _Gap()
        gap.nbytes[name] = nbytes
        self._append(gap)

    def _add_bundle(self, event: OutputEvent) -> None:
        self._before_output()
        self._seal()
        bundle = _Bundle(_make_output(event, self._execution_count))
        if event[0] == "display" and event[3] is not None:
            self._displays.setdefault(event[3], []).append(bundle)
        self._append(bundle)

    def _clear(self, *, wait: bool) -> None:
        self._clear_pending = wait
        if not wait:
            self._head, self._tail, self._current = [], deque(), None
            self._head_room, self._tail_size = HEAD_LIMIT, 0
            self._displays, self.omitted_nbytes = {}, 0

    def _before_output(self) -> None:
        if self._clear_pending:
            self._clear(wait=False)

    def _split_current(self) -> None:
        """Seal the finished lines and continue with the unfinished line, which may still be overwritten."""
        assert self._current is not None
        name, rest = self._current.name, self._current.text.split()
        self._seal()
        self._current = _Stream(name, rest)
        if len(rest) > _CHUNK:
            self._seal()

    def _seal(self) -> None:
        """Append the current stream to head or tail; drop the oldest of the tail while it is too long."""
        stream, self._current = self._current, None
        if stream is None or not len(stream.text):
            return
        room = self._head_room
        if 0 < room < len(stream.text):
            # Cut at an exact character, here as on the rank, so that equal text is kept equally, however it was split
            # into events.
            text = stream.text.read()
            self._store_stream(_make_stream(stream.name, text[:room]))
            stream = _make_stream(stream.name, text[room:])
        self._store_stream(stream)

    def _store_stream(self, stream: _Stream) -> None:
        self._append(stream)
        if self._tail:
            self._tail_size += len(stream.text)
            self._trim_tail()
        else:
            self._head_room -= len(stream.text)

    def _append(self, item: _Item) -> None:
        (self._head if self._head_room > 0 else self._tail).append(item)

    def _trim_tail(self) -> None:
        while self._tail_size > TAIL_LIMIT:
            oldest = self._tail.popleft()
            if isinstance(oldest, _Bundle):
                self._head.append(oldest)
            elif isinstance(oldest, _Gap):
                self._widen_gap(oldest.nbytes)
            else:
                text, excess = oldest.text.read(), self._tail_size - TAIL_LIMIT
                self._tail_size -= len(oldest.text)
                nbytes = len(text[:excess].encode("utf-8", "surrogatepass"))
                self.omitted_nbytes += nbytes
                self._widen_gap({oldest.name: nbytes})
                if rest := text[excess:]:
                    self._tail.appendleft(_make_stream(oldest.name, rest))
                    self._tail_size += len(rest)
        while self._tail and isinstance(gap := self._tail[0], _Gap):
            self._tail.popleft()
            self._widen_gap(gap.nbytes)

    def _widen_gap(self, more: dict[str, int]) -> None:
        if not self._head or not isinstance(self._head[-1], _Gap):
            self._head.append(_Gap())
        gap = self._head[-1]
        assert isinstance(gap, _Gap)
        for name, nbytes in more.items():
            gap.nbytes[name] = gap.nbytes.get(name, 0) + nbytes


def accumulate_events(events: Iterable[OutputEvent], *, execution_count: int | None = None) -> tuple[Output, ...]:
    """Accumulate a whole cell's events at once.

    >>> accumulate_events([["stdout", "a"], ["stdout", "b"]])
    ({'output_type': 'stream', 'name': 'stdout', 'text': 'ab'},)
    """
    accumulator = OutputAccumulator(execution_count=execution_count)
    accumulator.add(events)
    return accumulator.outputs()


_PendingOutput: TypeAlias = Output | tuple[str, list[str]]
"""An output, or the pieces of a stream, which are joined only once because a snapshot is taken ten times per second."""


def _append_text(pending: list[_PendingOutput], name: str, text: str) -> None:
    if not text:
        return
    if pending and isinstance(pending[-1], tuple) and pending[-1][0] == name:
        pending[-1][1].append(text)
    else:
        pending.append((name, [text]))


def _to_output(pending: _PendingOutput) -> Output:
    if isinstance(pending, tuple):
        return {"output_type": "stream", "name": pending[0], "text": "".join(pending[1])}
    return pending


def _format_gap(name: str, nbytes: int) -> tuple[str, str]:
    if name in ("stdout", "stderr"):
        return name, f"\n[... {nbytes:,} bytes of {name} left out; the rank's log file has them ...]\n"
    return "stderr", f"\n[... {nbytes:,} bytes of displays left out ...]\n"


def _make_output(event: OutputEvent, execution_count: int | None) -> Output:
    if event[0] == "error":
        return {"output_type": "error", "ename": event[1], "evalue": event[2], "traceback": list(event[3])}
    output: Output = {"output_type": "display_data", "data": _clean_data(event[1]), "metadata": _as_metadata(event[2])}
    if event[0] == "result":
        output |= {"output_type": "execute_result", "execution_count": execution_count}
    return output


def _clean_data(data: dict[str, Any]) -> dict[str, Any]:
    """Remove a widget's view, because its model is on the rank, where a front end cannot find it."""
    data = {mime: value if _is_stored(mime, value) else _as_text(value) for mime, value in data.items()}
    if _WIDGET_VIEW in data:
        rest = {mime: value for mime, value in data.items() if mime != _WIDGET_VIEW}
        return _with_reason(rest, "a widget", _WIDGET_REASON)
    if (figure_type := find_figure_type(data)) is not None:
        return _with_reason(data, describe_figure(figure_type, data[figure_type]), _FIGURE_REASON)
    return data


def _is_stored(mime: str, value: Any) -> bool:
    """Check whether a notebook can store a value under its MIME type: JSON of any kind, and text for all other types."""
    return isinstance(value, str) or mime.endswith("json")


def _as_text(value: Any) -> str:
    is_lines = isinstance(value, list) and all(isinstance(line, str) for line in value)
    return "".join(value) if is_lines else str(value)


def _as_metadata(metadata: Any) -> dict[str, Any]:
    return metadata if isinstance(metadata, dict) else {}


def _with_reason(data: dict[str, Any], what: str, why: str) -> dict[str, Any]:
    text = data.get("text/plain", what)
    return {**data, "text/plain": f"{text if isinstance(text, str) else ''.join(text)}\n({why})"}
