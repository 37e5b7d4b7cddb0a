"""Accumulate a rank's output events into notebook outputs, as a terminal would.

This module decides what is merged, overwritten and cleared, and what is left out when a cell produces too much output.
Where the events come from, and how the outputs are displayed, is handled elsewhere.

The emulated terminal is as wide as the text needs and `_ROWS` lines high: lines that have scrolled off the top can no longer change.
Only a line that is overwritten is laid out in cells. Every other line stays unchanged, so that the cost is linear and small.
Colours (SGR sequences) stay with the characters they coloured; sequences that neither move nor colour are dropped.

It does not use `pyte`: its screen has a fixed width, it processes one character at a time, and it does not keep colour sequences
unchanged.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeAlias

from mhnb.core.output.events import (
    ClearOutput,
    DisplayData,
    ErrorRaised,
    ExecuteResult,
    LibraryNoise,
    OutputEvent,
    OutputOmitted,
    Stream,
    UpdateDisplayData,
)
from mhnb.core.output.rich import describe_figure, find_figure_type
from mhnb.types import Output

_ROWS = 100
"""The height of the terminal: a cursor that moves up stops at its top."""
_MAX_REACHABLE_CHARS = 16 * 1024
"""Most characters of the lines above the last that the cursor can return to."""
_PIECE_CHARS, _SMALL_PIECE_CHARS = 64 * 1024, 1024
"""Most characters of finished lines in one piece, and the size up to which pieces are joined."""
_WIDTH = 1000
"""Moving the cursor reaches no column beyond this; text may be longer."""

_MOVE = re.compile(r"[\r\b]|\x1b(?!\[[0-9;:]*m)")
"""Matches what an unchanged line must not contain: every sequence except colours."""
_TOKEN = re.compile(
    r"[^\x00-\x1f\x7f]+"
    r"|\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b[PX^_\]][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*(?P<escape>[0-~])"
    r"|[\x00-\x1f\x7f]"
)
_PARTIAL = re.compile(r"(?:\r|\x1b(?:\[[0-?]*[ -/]*|[PX^_\]][^\x07\x1b]*\x1b?|[ -/]*))\Z")
"""A sequence, or half a line end, at the end of a piece that continues in the next one."""
_PARTIAL_LIMIT = 4096
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_RESET = re.compile(r"\x1b\[0*(?:m|;)")
_EITHER_COLOUR = r"[0-79]|8[;:]5[;:]\d+|8[;:]2[;:]\d+[;:]\d+[;:]\d+"
_COLOUR_CODES = tuple(
    re.compile(rf"\x1b\[(?:{digit}(?:{_EITHER_COLOUR})|{bright}[0-7])m") for digit, bright in ((3, 9), (4, 10))
)
"""Sequences that set only the foreground, or only the background: each replaces the one before."""
_PEN_LIMIT = 16
"""Most colour sequences in force at once; the oldest are dropped."""

_Cell: TypeAlias = tuple[str, str]
"""The colours in force and the character written there."""
_ERASED: _Cell = ("", "")
"""A cell that is shown as a blank, or not at all at the end of a line."""
_OVERWRITTEN: _Cell = ("", " ")
"""A cell that was overwritten with a space without colours."""
_SECOND_HALF = "\0"
"""The second cell of a wide character."""


class TerminalText:
    r"""Text added piece by piece, and read as a terminal shows it.

    >>> text = TerminalText()
    >>> text.add("10 %\r20 %\nab\bc"); text.read()
    '20 %\nac'
    >>> text.add("\x1b[A\rX"); text.read()
    'X0 %\nac'
    """

    __slots__ = ("_finished", "_open", "_open_length", "_partial", "_screen")

    def __init__(self, pen: str = "") -> None:
        self._finished = _Finished(pen)
        self._open: list[str] = []
        """The unfinished last line, unchanged; empty if it is in `_screen`."""
        self._open_length = 0
        self._partial = ""
        self._screen: _Screen | None = None

    def __len__(self) -> int:
        return self._finished.length + (self._open_length if self._screen is None else len(self._screen))

    def add(self, text: str) -> None:
        r"""Add more text; `\r\n` is one line end."""
        if self._partial:
            text, self._partial = self._partial + text, ""
        if ("\x1b" in text or text.endswith("\r")) and (
            found := _PARTIAL.search(text, max(0, len(text) - _PARTIAL_LIMIT))
        ) is not None:
            text, self._partial = text[: found.start()], found[0]
        if "\r\n" in text:
            text = text.replace("\r\n", "\n")
        while text:
            text = self._add_plain(text) if self._screen is None else self._add_moving(self._screen, text)

    def split(self) -> TerminalText:
        """Move lines that can still change to a new text; return it.

        The text that stays here ends with a line end.
        """
        rest = TerminalText()
        height = 1 if self._screen is None else self._screen.height
        rest._finished = self._finished.split_off(_ROWS - height)
        rest._open, rest._open_length, rest._screen = self._open, self._open_length, self._screen
        rest._partial, self._partial = self._partial, ""
        self._open, self._open_length, self._screen = [], 0, None
        return rest

    def read(self) -> str:
        """Return what a terminal would show now."""
        last = "".join(self._open) if self._screen is None else self._screen.read()
        return self._finished.read() + last

    def _add_plain(self, text: str) -> str:
        """Add lines before the first cursor movement; return the rest."""
        found = _MOVE.search(text) if _may_move(text) else None
        end = len(text) if found is None else text.rfind("\n", 0, found.start()) + 1
        head, newline, last = text[:end].rpartition("\n")
        if newline:
            self._finished.append("".join((*self._open, head, "\n")))
            self._open, self._open_length = [], 0
        if last:
            self._open.append(last)
            self._open_length += len(last)
        if found is None:
            return ""
        self._screen = _Screen("".join(self._open), self._finished.pen)
        self._open, self._open_length = [], 0
        return text[end:]

    def _add_moving(self, screen: _Screen, text: str) -> str:
        """Draw text until the last line ends; return the rest."""
        at = screen.draw(text, self._finished)
        if at is None:
            return ""
        self._finished.append(screen.read() + "\n")
        self._screen = None
        return text[at:]


class _Finished:
    """The text above the screen, whose last lines the cursor can reach."""

    __slots__ = ("_pieces", "count", "length", "pen", "saved")

    def __init__(self, pen: str) -> None:
        self._pieces: list[tuple[str, str]] = []
        """Whole lines, each piece with the colours in force before it, so that taking back a line costs no more than its piece."""
        self.pen = pen
        """The colours in force after the last line."""
        self.length = 0
        self.count = 0
        """Number of lines, including those that were split off."""
        self.saved: tuple[int, int, str] | None = None
        """A saved cursor: the number of its line, its column, and the colours."""

    def append(self, text: str) -> None:
        """Add whole lines."""
        self.length += len(text)
        self.count += text.count("\n")
        start = 0
        while start < len(text):
            end = max(text.rfind("\n", start, start + _PIECE_CHARS), text.find("\n", start)) + 1
            self._add(text[start:end])
            start = end

    def _add(self, text: str) -> None:
        last, pen = self._pieces[-1] if self._pieces else ("", self.pen)
        if len(last) + len(text) <= _SMALL_PIECE_CHARS and self._pieces:
            self._pieces[-1] = last + text, pen
        else:
            self._pieces.append((text, self.pen))
        self.pen = _pen_after(self.pen, text)

    def read(self) -> str:
        """Return all of it."""
        return "".join(text for text, _ in self._pieces)

    def take_back(self, count: int, length: int) -> list[_Row]:
        """Remove and return the last lines, within `count` lines and `length` characters."""
        rows: list[_Row] = []
        text, pen = self._take_text(count, length)
        for line in text.split("\n")[:-1]:
            rows.append(_Row(line, pen))
            pen = rows[-1].end
        self.count -= len(rows)
        return rows

    def split_off(self, count: int) -> _Finished:
        """Move the last `count` reachable lines to a new object; return it."""
        total = self.count
        text, pen = self._take_text(count, _MAX_REACHABLE_CHARS)
        rest = _Finished(pen)
        rest.append(text)
        rest.count, rest.saved = total, self.saved
        return rest

    def _take_text(self, count: int, length: int) -> tuple[str, str]:
        """Remove the last lines; return them and the colours before them."""
        taken: list[str] = []
        pen, chars, lines = self.pen, 0, 0
        while self._pieces and chars <= length and lines < count:
            text, pen = self._pieces.pop()
            taken.append(text)
            chars, lines = chars + len(text), lines + text.count("\n")
        text = "".join(reversed(taken))
        at = _find_last_lines(text, count, length)
        self.length -= len(text) - at
        self.pen = pen
        if at:
            self._add(text[:at])
        return text[at:], self.pen


def _find_last_lines(text: str, count: int, length: int) -> int:
    """Return where the last `count` lines begin, within `length` characters."""
    at = len(text)
    for _ in range(count):
        before = text.rfind("\n", 0, max(0, at - 1)) + 1
        if at == 0 or len(text) - before > length:
            break
        at = before
    return at


class _Row:
    """A screen line: unchanged text until it is overwritten, then cells."""

    __slots__ = ("_text", "cells", "end", "start")

    def __init__(self, text: str, start: str) -> None:
        self._text: str | None = text
        self.cells: list[_Cell] = []
        self.start = start
        """The colours in force before the unchanged line."""
        self.end = _pen_after(start, text)
        """The colours in force after the unchanged line."""

    def lay_out(self) -> list[_Cell]:
        """Return its cells."""
        if self._text is not None:
            text, pen, self._text = self._text, self.start, None
            for token in _TOKEN.finditer(text):
                if token["final"] == "m":
                    pen = _change_pen(pen, token[0])
                elif token[0] == "\t":
                    self.cells += [_ERASED] * (8 - len(self.cells) % 8)
                else:
                    _write_cells(self.cells, len(self.cells), pen, token[0])
        return self.cells

    def __len__(self) -> int:
        return len(self.cells) if self._text is None else len(self._text)

    @property
    def is_blank(self) -> bool:
        """Whether nothing is written on it."""
        return not self._text and all(cell is _ERASED for cell in self.cells)

    @property
    def _is_cleared(self) -> bool:
        """Whether only spaces were written, as by a bar that clears itself."""
        return all(cell in (_ERASED, _OVERWRITTEN) for cell in self.cells)

    def read(self, now: str) -> tuple[str, str]:
        """Return its text after the colours `now`, and the colours after it."""
        if self._text is not None:
            return _pen_change(now, self.start) + self._text, self.end
        last = 0 if self._is_cleared else len(self.cells)
        while last and self.cells[last - 1] is _ERASED:
            last -= 1
        parts: list[str] = []
        for pen, character in self.cells[:last]:
            if pen != now:
                parts.append(_pen_change(now, pen))
                now = pen
            if character != _SECOND_HALF:
                parts.append(character or " ")
        return "".join(parts), now


def _blank_row() -> _Row:
    row = _Row("", "")
    row.lay_out()
    return row


class _Screen:
    """The lines that are being overwritten, and the cursor."""

    __slots__ = ("_column", "_pen", "_row", "_rows")

    def __init__(self, line: str, pen: str) -> None:
        self._rows = [_Row(line, pen)]
        self._row = 0
        self._column = len(self._rows[0].lay_out())
        self._pen = self._rows[0].end

    def __len__(self) -> int:
        return sum(len(row) + 1 for row in self._rows) - 1

    @property
    def height(self) -> int:
        """Number of its lines."""
        return len(self._rows)

    def read(self) -> str:
        """Return its lines, without blank ones below the cursor."""
        last = len(self._rows) - 1
        while last > self._row and self._rows[last].is_blank:
            last -= 1
        lines, now = [], self._rows[0].start
        for row in self._rows[: last + 1]:
            line, now = row.read(now)
            lines.append(line)
        return "\n".join(lines) + _pen_change(now, self._pen)

    def draw(self, text: str, above: _Finished) -> int | None:
        """Draw text; return the offset after the last line's end, or None.

        Args:
            above: the lines that the cursor may move up to.
        """
        for token in _TOKEN.finditer(text):
            first = token[0][0]
            if first == "\n":
                if self._row == len(self._rows) - 1:
                    return token.end()
                self._row, self._column = self._row + 1, 0
            elif first == "\r":
                self._column = 0
            elif first == "\b":
                self._column = max(0, self._column - 1)
            elif first == "\t":
                self._column = (self._column // 8 + 1) * 8
            elif first == "\x1b":
                self._apply_sequence(token, above)
            elif first >= " ":
                self._column = _write_cells(self._cells(), self._column, self._pen, token[0])
        return None

    def _cells(self) -> list[_Cell]:
        return self._rows[self._row].lay_out()

    def _apply_sequence(self, token: re.Match[str], above: _Finished) -> None:
        """Process a sequence; sequences without meaning in a notebook are ignored."""
        final, parameters = token["final"] or "", token["parameters"] or ""
        if final == "m":
            if _COLOUR.fullmatch(token[0]):
                self._pen = _change_pen(self._pen, token[0])
            return
        if parameters[:1] in ("<", "=", ">", "?"):
            return
        numbers = [min(int(number[:6] or 0), 999) if number[:6].isdecimal() else 0 for number in parameters.split(";")]
        count = max(1, numbers[0])
        if token["escape"] in ("7", "8") or (final and final in "su"):
            self._save_or_restore(above, save=token["escape"] == "7" or final == "s")
        elif token["escape"] and token["escape"] in "DEM":
            self._move_to_row(self._row + (-1 if token["escape"] == "M" else 1), above)
            self._column = 0 if token["escape"] == "E" else self._column
        elif token["escape"] == "c":
            self._move_to(above, 1, 1)
            self._erase(above, 0)
            self._pen = ""
        elif final and final in "Hfd":
            self._move_to(above, count, max(1, [*numbers, 0][1]) if final != "d" else self._column + 1)
        elif final and final in "ABEFe":
            self._move_to_row(self._row + (-count if final in "AF" else count), above)
            self._column = 0 if final in "EF" else self._column
        elif final and final in "CDGa`":
            self._move_along_row(final, count)
        elif final == "J" and numbers[0] < 3:
            self._erase(above, numbers[0])
        elif final and final in "KX@PLM":
            self._edit_line(final, numbers[0], count)

    # -- the cursor

    def _restore_lines(self, count: int, above: _Finished) -> None:
        """Move lines back onto the screen, as many as fit."""
        room = min(count, _ROWS - len(self._rows))
        length = _MAX_REACHABLE_CHARS - len(self)
        if room > 0 and length > 0 and (rows := above.take_back(room, length)):
            self._rows[:0] = rows
            self._row += len(rows)

    def _move_to_row(self, row: int, above: _Finished) -> None:
        if row < 0:
            before = self._row
            self._restore_lines(-row, above)
            row += self._row - before
        self._row = max(0, min(row, _ROWS - 1))
        while len(self._rows) <= self._row:
            self._rows.append(_blank_row())

    def _move_to(self, above: _Finished, row: int, column: int) -> None:
        self._restore_lines(_ROWS, above)
        self._move_to_row(row - 1, above)
        self._column = min(column - 1, _WIDTH)

    def _move_along_row(self, final: str, count: int) -> None:
        if final == "D":
            self._column = max(0, self._column - count)
        else:
            column = self._column + count if final in "Ca" else count - 1
            self._column = min(column, max(_WIDTH, self._column))

    def _save_or_restore(self, above: _Finished, *, save: bool) -> None:
        if save:
            above.saved = above.count + self._row, self._column, self._pen
        elif above.saved is None:
            self._move_to(above, 1, 1)
        else:
            line, self._column, self._pen = above.saved
            self._move_to_row(line - above.count, above)

    # -- erasing and editing

    def _erase(self, above: _Finished, part: int) -> None:
        """Erase the screen below the cursor, above it, or all of it."""
        if part:
            self._restore_lines(_ROWS, above)
        cells = self._cells()
        if part == 0:
            del cells[self._column :]
            del self._rows[self._row + 1 :]
            return
        for row in self._rows[: self._row] if part == 1 else self._rows:
            row.lay_out().clear()
        if part == 1:
            cells[: self._column + 1] = [_ERASED] * min(self._column + 1, len(cells))

    def _edit_line(self, final: str, part: int, count: int) -> None:
        """Erase within the line, insert or delete characters, insert or delete lines."""
        cells, at = self._cells(), self._column
        if final in "LM":
            del self._rows[self._row : self._row + (count if final == "M" else 0)]
            added = min(count, _ROWS - len(self._rows)) if final == "L" else self._row + 1 - len(self._rows)
            self._rows[self._row : self._row] = [_blank_row() for _ in range(added)]
            self._column = 0
        elif final == "K" and part == 0:
            del cells[at:]
        elif final == "K" and part == 2:
            cells.clear()
        elif final == "K" and part == 1:
            cells[: at + 1] = [_ERASED] * min(at + 1, len(cells))
        elif final == "X":
            cells[at : at + count] = [_ERASED] * len(cells[at : at + count])
        elif final == "P":
            del cells[at : at + count]
        elif final == "@":
            # Characters that are pushed off the right edge are lost.
            cells[at:at] = [_ERASED] * (min(count, max(0, _WIDTH - len(cells))) if at < len(cells) else 0)


def _write_cells(cells: list[_Cell], column: int, pen: str, text: str) -> int:
    """Write characters into cells; return the column after them."""
    if column > len(cells):
        cells += [_ERASED] * (column - len(cells))
    if text.isascii():
        if text < " " or text == "\x7f":
            return column
        cells[column : column + len(text)] = [(pen, character) for character in text]
        return column + len(text)
    for character in text:
        width = _width(character)
        if width == 0 and column:
            before, written = cells[column - 1]
            # A combining mark on a wide character belongs to its first half.
            at = column - 2 if written == _SECOND_HALF and column > 1 else column - 1
            cells[at] = (before, (cells[at][1] + character)[:_MAX_MARKS])
            continue
        new = [(pen, character), (pen, _SECOND_HALF)][: max(1, width)]
        if column < len(cells) and cells[column][1] == _SECOND_HALF and column:
            cells[column - 1] = _ERASED
        if column + len(new) < len(cells) and cells[column + len(new)][1] == _SECOND_HALF:
            cells[column + len(new)] = _ERASED
        cells[column : column + len(new)] = new
        column += len(new)
    return column


_MAX_MARKS = 16


@cache
def _width(character: str) -> int:
    """Return how many cells a character takes."""
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _may_move(text: str) -> bool:
    return "\r" in text or "\b" in text or "\x1b" in text


def _pen_after(pen: str, text: str) -> str:
    """Return the colours in force after text."""
    if "\x1b[" not in text:
        return pen
    if (at := max(text.rfind("\x1b[0m"), text.rfind("\x1b[m"))) >= 0:
        pen, text = "", text[at:]
    for colour in _COLOUR.findall(text):
        pen = _change_pen(pen, colour)
    return pen


def _pen_change(now: str, pen: str) -> str:
    """Return the sequences that change one set of colours into another."""
    return "" if pen == now else pen[len(now) :] if pen.startswith(now) else "\x1b[0m" + pen


def _change_pen(pen: str, colour: str) -> str:
    if _RESET.match(colour):
        pen, colour = "", "" if _RESET.fullmatch(colour) else colour
    for code in _COLOUR_CODES:
        if code.fullmatch(colour):
            pen = code.sub("", pen)
    # Repeating a colour changes nothing; without a bound, a bar that sets its colour each time would grow.
    pen = pen.replace(colour, "") + colour if colour else pen
    return pen if pen.count("\x1b") <= _PEN_LIMIT else pen[pen.index("\x1b", 1) :]


# -- accumulate one rank's outputs of one cell


HEAD_LIMIT = 512 * 1024
"""Characters kept from the start of a cell's text."""
TAIL_LIMIT = 512 * 1024
"""Characters kept from its end."""
_CHUNK = 32 * 1024
"""A stream is split into chunks of about this many characters, so that the middle can be dropped."""
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_FIGURE_REASON = "shown as text: only a notebook's front end can draw this; for an image, use fig.show('png')"

_WIDGET_REASON = "the browser cannot reach a widget on a rank: this is its text form"

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
    """Accumulates a cell's output events within bounded memory for text."""

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
            match event:
                case Stream(name, text):
                    self._add_text(name, text)
                case UpdateDisplayData(data, metadata, display_id):
                    self._add_update(data, metadata, display_id)
                case ClearOutput(wait):
                    self._clear(wait=wait)
                case LibraryNoise(text):
                    self.noise += text
                case OutputOmitted(name, nbytes):
                    self._add_gap(name, nbytes)
                case DisplayData() | ExecuteResult() | ErrorRaised():
                    self._add_bundle(event)

    def finish(self) -> None:
        """Finish the cell's text: apply the limits to its last part, too."""
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
            bundle.output = {**bundle.output, "data": _clean_data(data), "metadata": metadata}
        return display_id in self._displays

    def take_foreign_updates(self) -> list[ForeignUpdate]:
        """Return and forget the latest update of each display of other cells."""
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

    def _add_bundle(self, event: DisplayData | ExecuteResult | ErrorRaised) -> None:
        self._before_output()
        self._seal()
        bundle = _Bundle(_make_output(event, self._execution_count))
        if isinstance(event, DisplayData) and event.display_id is not None:
            self._displays.setdefault(event.display_id, []).append(bundle)
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
        """Seal the finished lines, and continue with those that can change."""
        assert self._current is not None
        name, rest = self._current.name, self._current.text.split()
        self._seal()
        self._current = _Stream(name, rest)
        if len(rest) > _CHUNK:
            self._seal()

    def _seal(self) -> None:
        """Move the current stream to head or tail, and trim the tail."""
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

    >>> accumulate_events([Stream("stdout", "a"), Stream("stdout", "b")])
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


def _make_output(event: DisplayData | ExecuteResult | ErrorRaised, execution_count: int | None) -> Output:
    if isinstance(event, ErrorRaised):
        return {
            "output_type": "error",
            "ename": event.ename,
            "evalue": event.evalue,
            "traceback": list(event.traceback),
        }
    output: Output = {"output_type": "display_data", "data": _clean_data(event.data), "metadata": event.metadata}
    if isinstance(event, ExecuteResult):
        output |= {"output_type": "execute_result", "execution_count": execution_count}
    return output


def _clean_data(data: dict[str, Any]) -> dict[str, Any]:
    """Return data that a notebook can store and show without the rank.

    A widget's view is removed, because its model is on the rank, where a front end cannot find it.
    """
    data = {mime: value if _is_stored(mime, value) else _as_text(value) for mime, value in data.items()}
    if _WIDGET_VIEW in data:
        rest = {mime: value for mime, value in data.items() if mime != _WIDGET_VIEW}
        return _with_reason(rest, "a widget", _WIDGET_REASON)
    if (figure_type := find_figure_type(data)) is not None:
        return _with_reason(data, describe_figure(figure_type, data[figure_type]), _FIGURE_REASON)
    return data


def _is_stored(mime: str, value: Any) -> bool:
    """Check whether a value may be stored under its MIME type.

    JSON types take any value, all others only text.
    """
    return isinstance(value, str) or mime.endswith("json")


def _as_text(value: Any) -> str:
    is_lines = isinstance(value, list) and all(isinstance(line, str) for line in value)
    return "".join(value) if is_lines else str(value)


def _with_reason(data: dict[str, Any], what: str, why: str) -> dict[str, Any]:
    text = data.get("text/plain", what)
    return {**data, "text/plain": f"{text if isinstance(text, str) else ''.join(text)}\n({why})"}
