"""Collect a rank's output by cell, and log all of it.

This module decides to which cell a piece of output belongs and how much of it is kept for the notebook: head and tail of the
text, and how much was dropped between. Events that are not sent yet wait in a bounded buffer, in order.
It does not know messages or sockets.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from os import fstat, write
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeAlias

from mhnb.core.messages import shorten_error, shorten_text
from mhnb.core.output.events import (
    ClearOutput,
    DisplayData,
    ErrorRaised,
    ExecuteResult,
    LibraryNoise,
    OutputEvent,
    OutputOmitted,
    Stream,
    StreamName,
    UpdateDisplayData,
)
from mhnb.core.output.outputs import HEAD_LIMIT, TAIL_LIMIT
from mhnb.rank.execution.streams import (
    CELL_NUMBER,
    NativeFile,
    RankStream,
    current_cell,
    flush_c_stdout,
    hook_subprocesses,
    line_buffer_c_stdout,
    propagate_to_threads,
    split_library_noise,
    weak_callback,
)
from mhnb.rank.host_setup import LogOffsets, Offsets

_CHUNK = 8 * 1024
_LIVE_CHARS = 16 * 1024
"""Characters of tail that each live take may add to what is sent: at 20 Hz about 320 KiB per second."""
_MAX_DISPLAY_CHARS = 64 * 1024 * 1024
"""Characters of display data in one cell, because a loop that draws endlessly must not fill the notebook."""
_MAX_DISPLAYS = 2000
"""Displays in one cell, because a browser cannot draw more in time."""
_MAX_FORMS, _MAX_MIME_CHARS = 64, 200
_MAX_METADATA_CHARS = 1024 * 1024
_Display: TypeAlias = DisplayData | UpdateDisplayData | ExecuteResult


class EventSource(Protocol):
    """Produces events of cells beside their output."""

    def collect(self, seq: int, *, has_ended: bool = False) -> None:
        """Read the events of a cell that are available now."""

    def take(self, seq: int) -> list[OutputEvent]:
        """Return the running cell's events since the last call."""

    def take_late(self, running: int) -> dict[int, list[OutputEvent]]:
        """Return ended cells' new events by number; `running` is 0 between cells."""


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
        """Create an empty buffer; `log_path` names the full log, if any."""
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
        self._updates: dict[str, UpdateDisplayData] = {}
        self._begin_chunk("stdout")

    def _begin_chunk(self, name: StreamName) -> None:
        self._name, self._pieces, self._size = name, [], 0  # type: StreamName, list[str], int

    def add_text(self, name: StreamName, text: str) -> None:
        """Add text of a stream."""
        if name != self._name or self._size > _CHUNK or self._clear_pending:
            self._before_output()
            self._begin_chunk(name)
        self._pieces.append(text)
        self._size += len(text)

    def add(self, event: OutputEvent) -> None:
        """Add any other event."""
        if isinstance(event, ClearOutput) and event.wait:
            self._clear_pending = True
            return
        if isinstance(event, _Display):
            event = self._bound_display(event)
        elif isinstance(event, ErrorRaised):
            event = shorten_error(event, self._log_path)
        self._before_output()
        if isinstance(event, ClearOutput):
            self._reset()
        elif isinstance(event, UpdateDisplayData):
            if self._coalesce(event):
                return
        elif isinstance(event, DisplayData) and event.display_id is not None:
            self._updates.pop(event.display_id, None)
        if not isinstance(event, _Display) or self._fits(event):
            self._append(event)

    def take(self, *, everything: bool = True) -> list[OutputEvent]:
        """Return new events, but leave a long tail unless `everything` is set."""
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
            self._ready.append(OutputOmitted("display", self._omitted_chars))
            self._omitted_chars = 0
        if everything and self._clear_pending:
            self._ready.append(ClearOutput(wait=True))
            self._clear_pending = False
        events, self._ready, self._updates = self._ready, [], {}
        return events

    def _before_output(self) -> None:
        if self._clear_pending:
            self._clear_pending = False
            self._reset()
            self._ready.append(ClearOutput(wait=False))
        else:
            self._end_chunk()

    def _coalesce(self, event: UpdateDisplayData) -> bool:
        """Replace the display's unsent update; return whether there was one."""
        earlier = self._updates.get(event.display_id)
        if earlier is None:
            self._updates[event.display_id] = event
            return False
        earlier.data, earlier.metadata = event.data, event.metadata
        return True

    def _bound_display(self, event: _Display) -> _Display:
        """Shorten text, mime types and id; drop large metadata and excess forms."""
        data = {shorten_text(mime, _MAX_MIME_CHARS): value for mime, value in list(event.data.items())[:_MAX_FORMS]}
        if isinstance(text := data.get("text/plain"), str):
            data["text/plain"] = shorten_text(text, self._head + self._tail_limit, self._log_path)
        metadata = event.metadata if _count_chars(event.metadata) <= _MAX_METADATA_CHARS else {}
        if isinstance(event, ExecuteResult):
            return ExecuteResult(data, metadata)
        if isinstance(event, UpdateDisplayData):
            return UpdateDisplayData(data, metadata, shorten_text(event.display_id, _MAX_MIME_CHARS))
        display_id = None if event.display_id is None else shorten_text(event.display_id, _MAX_MIME_CHARS)
        return DisplayData(data, metadata, display_id)

    def _fits(self, event: _Display) -> bool:
        size = sum(map(_count_chars, event.data.values()))
        self._displays += 1
        if self._displays <= _MAX_DISPLAYS and size <= self._display_left_chars:
            self._display_left_chars -= size
            return True
        self._omitted_chars += size
        return False

    def _end_chunk(self) -> None:
        """Move the current chunk to the head, its overflow to the tail."""
        if not self._pieces:
            return
        name, text = self._name, "".join(self._pieces)
        self._begin_chunk(name)
        if self._head_left_chars > 0:
            self._ready.append(Stream(name, text[: self._head_left_chars]))
            self._head_left_chars, text = self._head_left_chars - len(text), text[self._head_left_chars :]
        if text:
            self._tail.append(Stream(name, text))
            self._tail_size += len(text)
            self._shorten_tail()

    def _append(self, event: OutputEvent) -> None:
        (self._ready if self._head_left_chars > 0 else self._tail).append(event)

    def _shorten_tail(self) -> None:
        while self._tail_size > self._tail_limit:
            oldest = self._tail[0]
            if not isinstance(oldest, Stream):
                self._close_gap()
                self._ready.append(self._tail.popleft())
                continue
            name, text = oldest.name, oldest.text
            dropped = text[: self._tail_size - self._tail_limit]
            self._tail_size -= len(dropped)
            self._gap[name] = self._gap.get(name, 0) + len(dropped.encode("utf-8", "surrogatepass"))
            if len(dropped) == len(text):
                self._tail.popleft()
            else:
                self._tail[0] = Stream(name, text[len(dropped) :])

    def _close_gap(self) -> None:
        self._ready += [OutputOmitted(name, nbytes) for name, nbytes in self._gap.items()]
        self._gap = {}


def _count_chars(value: Any) -> int:
    """Return about how many characters a JSON value takes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_count_chars(key) + _count_chars(each) for key, each in value.items())
    return sum(map(_count_chars, value)) if isinstance(value, list | tuple) else 8


# -- collect a rank's output by cell


_LATE_CHARS = 64 * 1024
"""Characters of head, and of tail, that output after a cell's end may have between two polls."""
_MAX_UNFINISHED_PIECES = 256
_MAX_NOISE_CHARS = 16 * 1024
"""Characters of library noise that a cell passes on."""


_installed: list[Capture] = []
"""The capture of this process, if it is a rank."""


def find_installed() -> Capture | None:
    """Return this process's capture; None if it is not a rank."""
    return _installed[-1] if _installed else None


class Capture:
    """Captures the rank's output: Python's streams, displays, and descriptors 1 and 2.

    File descriptors 1 and 2 must append to `native_paths` already, or `install_native` must redirect them.
    """

    def __init__(self, log_path: Path, native_paths: tuple[Path, Path], offsets_path: Path) -> None:
        self._native_paths = native_paths
        # Reentrant, because a signal handler or a finaliser may print while its own thread prints.
        self._lock = threading.RLock()
        self._seq = self._last_seq = 0
        self._log_path = str(log_path)
        self._cell, self._noise_left_chars = self._make_buffer(), _MAX_NOISE_CHARS
        self._late_buffers: dict[int, EventBuffer] = {}
        self._log, self._offsets = _Log(log_path), LogOffsets(offsets_path)
        self._native: tuple[tuple[StreamName, NativeFile], ...] = (
            ("stdout", NativeFile(native_paths[0])),
            ("stderr", NativeFile(native_paths[1])),
        )
        self.stdout = RankStream("stdout", 1, self._write_stdout, unbuffered=False)
        self.stderr = RankStream("stderr", 2, self._write_stderr, unbuffered=True)
        self._has_subprocesses = self._is_forked = False
        self._are_streams_restored, self._replaced_note = False, ""
        self._undo_steps: list[Callable[[], None]] = []
        self._python_stdout: TextIO | None = None
        """The stream that Python itself has created for descriptor 1."""
        self.metrics: EventSource | None = None
        """The points that cells log; None until a cell logs one."""

    # -- replace the process's own streams

    def install_native(self) -> None:
        """Redirect file descriptors 1 and 2 to the native files."""
        for fd, path in zip((1, 2), self._native_paths, strict=True):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(file, fd)
            os.close(file)

    def install(self) -> None:
        """Replace `sys.stdout` and `sys.stderr`; earlier native output is only logged."""
        before = sys.stdout, sys.stderr
        for stream in before:
            stream.flush()
        _installed.append(self)
        self._python_stdout = sys.__stdout__
        sys.stdout, sys.stderr = self.stdout, self.stderr
        self._undo_steps = [partial(setattr, sys, "stdout", before[0]), partial(setattr, sys, "stderr", before[1])]
        self._undo_steps.append(hook_subprocesses(self._note_subprocess))
        propagate_to_threads()
        line_buffer_c_stdout()
        os.register_at_fork(
            before=weak_callback(self._note_subprocess), after_in_child=weak_callback(self._adapt_to_fork)
        )
        self.record_offsets()

    def uninstall(self) -> None:
        """Restore the streams and close the files; for tests."""
        self.stdout.flush_to_capture()
        if self in _installed:
            _installed.remove(self)
        for undo in self._undo_steps:
            undo()
        for _, file in self._native:
            file.close()
        self._log.close()
        self._offsets.close()

    # -- output

    def publish(self, event: OutputEvent) -> None:
        """Record a display, a result, an error or a similar event."""
        if self._is_forked:
            self.stdout.write(_format_event(event))
            return
        self.stdout.flush_to_capture()
        with self._lock:
            self._collect_native()
            if (buffer := self._buffer(current_cell())) is not None:
                if (text := _find_log_text(event)) is not None:
                    self._log.write("stderr", f"{text}\n".encode("utf-8", "backslashreplace"))
                buffer.add(event)

    def _make_buffer(self) -> EventBuffer:
        return EventBuffer(log_path=self._log_path)

    def write_to_log(self, text: str) -> None:
        """Write to the log only: mhnb's internal errors are not cell output."""
        with self._lock:
            self._log.write("mhnb", text.encode())

    def poll(self) -> None:
        """Read output that bypassed Python."""
        with self._lock:
            self._collect_native()

    # -- per cell

    def record_offsets(self) -> None:
        """Record the file sizes: a dead rank's last output begins after them."""
        self.stdout.flush_to_capture()
        with self._lock:
            self._write_offsets()

    def begin(self, seq: int) -> None:
        """Begin a cell: output belongs to it from now on."""
        self.stdout.flush_to_capture()
        with self._lock:
            self._write_offsets()
            CELL_NUMBER.set(seq)
            self._seq = self._last_seq = seq
            self._cell, self._noise_left_chars = self._make_buffer(), _MAX_NOISE_CHARS
        self._are_streams_restored, self._replaced_note = False, ""

    def take(self) -> list[OutputEvent]:
        """Return the running cell's events since the last call."""
        self.stdout.flush_to_capture()
        metrics = self._collect_metrics()
        with self._lock:
            return self._cell.take(everything=False) + metrics

    def end(self) -> list[OutputEvent]:
        """End the cell and return its remaining events, C-level output included."""
        self.stdout.flush_to_capture()
        metrics = self._collect_metrics(has_ended=True)
        self.restore_streams()
        self._flush_descriptor()
        flush_c_stdout()
        with self._lock:
            self._collect_native()
            self._log.finish_lines()
            self._seq, self._has_subprocesses = 0, False
            for note in filter(None, (self._replaced_note, self._log.take_error_note())):
                self._cell.add_text("stderr", note)
            return self._cell.take() + metrics

    def take_late(self) -> dict[int, list[OutputEvent]]:
        """Return what cells printed and logged after their end, by cell number."""
        # Not with the lock: the values of arrays are read.
        metrics = {} if self.metrics is None else self.metrics.take_late(self._seq)
        with self._lock:
            late, self._late_buffers = self._late_buffers, {}
            found = {seq: events for seq, buffer in late.items() if (events := buffer.take())}
        for seq, events in metrics.items():
            found.setdefault(seq, []).extend(events)
        return found

    def find_cell(self) -> int:
        """Return the calling code's cell number; 0 before the first cell."""
        return current_cell() or self._last_seq

    def release_metrics(self) -> None:
        """Read the values that the cell has logged, and release their arrays.

        To be called when its launches have finished, and before the guard looks at what the cell still refers to.
        """
        if self.metrics is not None:
            self.metrics.collect(self._seq, has_ended=True)

    # -- internal

    def _collect_metrics(self, *, has_ended: bool = False) -> list[OutputEvent]:
        if self.metrics is None:
            return []
        # Not with the lock: the values of arrays are read.
        self.metrics.collect(self._seq, has_ended=has_ended)
        return self.metrics.take(self._seq)

    def restore_streams(self) -> None:
        """Restore `sys.stdout` and `sys.stderr` once per cell, unless replacements forward to them.

        Note other replacements. Called where an interrupt can end it: a cell's stream is flushed by its own code.
        """
        if self._are_streams_restored:
            return
        self._are_streams_restored = True
        replaced = []
        for name, ours in (("stdout", self.stdout), ("stderr", self.stderr)):
            found = getattr(sys, name, None)
            setattr(sys, name, ours)
            if found is ours:
                continue
            if self._forwards_output(found):
                setattr(sys, name, found)
            else:
                replaced.append(f"sys.{name}")
        if replaced:
            names = " and ".join(replaced)
            self._replaced_note = f"mhnb: this cell replaced {names}; the next cell uses the notebook's stream again\n"

    def _forwards_output(self, stream: Any) -> bool:
        """Return whether a cell's stream forwards to ours, after flushing it."""
        try:
            if not any(each.is_wrapped_by(stream) for each in (self.stdout, self.stderr)):
                return False
            stream.flush()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a closed stream, or an object with behaviour of its own
            self._log.write("mhnb", f"mhnb: a stream of this cell raised {type(error).__name__}\n".encode())
            return False
        self.stdout.flush_to_capture()
        return True

    def _flush_descriptor(self) -> None:
        """Flush Python's original stdout, unless a cell has closed it."""
        first = self._python_stdout
        if first is None or first.closed:
            return
        try:
            first.flush()
        except OSError as error:
            self._log.write("mhnb", f"mhnb: sys.__stdout__ cannot be written: {error}\n".encode())

    def _write_offsets(self) -> None:
        self._collect_native()
        self._offsets.write(Offsets(self._log.nbytes, *(file.offset for _, file in self._native)))

    def _write_stdout(self, data: bytes, text: str) -> None:
        # Called once per line. It is flat because 100,000 lines are not unusual.
        with self._lock:
            if self._has_subprocesses and self._log.at_line_start("stdout"):
                self._collect_native()
            self._log.write("stdout", data)
            seq = CELL_NUMBER.get()
            buffer = self._cell if seq and seq == self._seq else self._buffer(seq or current_cell())
            if buffer is not None:
                buffer.add_text("stdout", text)

    def _write_stderr(self, data: bytes, text: str) -> None:
        # An unfinished line of stdout was printed before this.
        self.stdout.flush_to_capture()
        with self._lock:
            if self._has_subprocesses and self._log.at_line_start("stderr"):
                self._collect_native()
            self._log.write("stderr", data)
            if (buffer := self._buffer(current_cell())) is not None:
                buffer.add_text("stderr", text)

    def _buffer(self, seq: int) -> EventBuffer | None:
        """Return the buffer for a cell's output; None before the first cell."""
        seq = seq or self._last_seq
        if seq == self._seq:
            return self._cell if seq else None
        if seq not in self._late_buffers:
            self._late_buffers[seq] = EventBuffer(_LATE_CHARS, _LATE_CHARS, log_path=self._log_path)
        return self._late_buffers[seq]

    def _collect_native(self) -> None:
        for name, file in self._native:
            if text := file.read_new():
                # Under its own name, so that it does not end up inside an unfinished line of Python's.
                self._log.write(f"native {name}", text.encode())
                if (buffer := self._buffer(0)) is not None:
                    shown, noise = split_library_noise(text)
                    if shown:
                        buffer.add_text(name, shown)
                    self._add_noise(buffer, noise)

    def _add_noise(self, buffer: EventBuffer, noise: str) -> None:
        # More noise helps no user, and the log has all of it.
        if kept := noise[: self._noise_left_chars]:
            self._noise_left_chars -= len(kept)
            buffer.add(LibraryNoise(kept))

    def _note_subprocess(self) -> None:
        """From now on, read native output before each line, to keep order."""
        self._has_subprocesses = True

    def _adapt_to_fork(self) -> None:
        """Adapt to a forked child, which must not write to the notebook.

        The thread that held the lock does not exist there.
        """
        self._lock = threading.RLock()
        self._is_forked = True
        self.stdout.adapt_to_fork()
        self.stderr.adapt_to_fork()


class _Log:
    """The log file; a killed rank loses at most an unfinished line."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._unfinished: defaultdict[str, list[bytes]] = defaultdict(list)
        self._lost_nbytes, self._error, self._is_reported = 0, "", False

    def write(self, name: str, data: bytes) -> None:
        if self._unfinished[name] or data[-1:] != b"\n":
            data = self._keep_unfinished(self._unfinished[name], data)
        try:
            while data and (count := write(self._fd, data)) < len(data):
                data = data[count:]
        except OSError as error:
            # For example, the disk is full. The code that prints must not fail because of that; the notebook still gets
            # the output.
            self._lost_nbytes += len(data)
            self._error = self._error or str(error)
            return
        if data and self._lost_nbytes:
            lost, self._lost_nbytes, self._error, self._is_reported = self._lost_nbytes, 0, "", False
            self.write(name, f"[mhnb: {lost} bytes before this could not be written]\n".encode())

    def take_error_note(self) -> str:
        """Return a note, once per failure, if the log cannot be written."""
        if not self._error or self._is_reported:
            return ""
        self._is_reported = True
        return f"mhnb: this rank's log cannot be written ({self._error}); its output is shown here but not saved\n"

    def _keep_unfinished(self, pieces: list[bytes], data: bytes) -> bytes:
        """Return whole lines to write, or an unfinished one of many pieces."""
        pieces.append(data)
        if b"\n" not in data and len(pieces) < _MAX_UNFINISHED_PIECES:
            return b""
        whole, newline, rest = b"".join(pieces).rpartition(b"\n")
        pieces[:] = [rest] if newline and rest else []
        return whole + newline or rest

    @property
    def nbytes(self) -> int:
        return fstat(self._fd).st_size

    def at_line_start(self, name: str) -> bool:
        return not self._unfinished[name]

    def finish_lines(self) -> None:
        for name, pieces in self._unfinished.items():
            if pieces:
                self.write(name, b"\n")

    def close(self) -> None:
        os.close(self._fd)


def _find_log_text(event: OutputEvent) -> str | None:
    """Return an event's text if the notebook may not show all.

    Of many ranks' errors the notebook's text shows only the first ones.
    """
    if isinstance(event, ErrorRaised):
        return _format_event(event)
    if not isinstance(event, _Display):
        return None
    text = event.data.get("text/plain")
    return text if isinstance(text, str) and len(text) > HEAD_LIMIT + TAIL_LIMIT else None


def _format_event(event: OutputEvent) -> str:
    if isinstance(event, _Display):
        return str(event.data.get("text/plain", "")) + "\n"
    return "\n".join(event.traceback) + "\n" if isinstance(event, ErrorRaised) else ""
