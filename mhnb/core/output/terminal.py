r"""What a terminal would show for text with carriage returns, backspaces and erasures. It knows no outputs or ranks.

Only a line that holds such a character is laid out in cells; every other line is kept as it came, so that the cost is
linear and small. Colours (SGR sequences) stay with the characters they coloured.
"""

from __future__ import annotations

import re

__all__ = ["TerminalText"]

_MOVE = re.compile(r"[\r\b]|\x1b\[[012]?K")
_TOKEN = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|.", re.DOTALL)
_STYLE_LIMIT = 200
_ERASED = ("", "")
"""A cell that shows as a blank, or as nothing at the end of a line."""


class TerminalText:
    r"""Text that is added piece by piece and read as a terminal would show it.

    >>> text = TerminalText()
    >>> text.add("10 %\r20 %\nab\bc"); text.read()
    '20 %\nac'
    """

    __slots__ = ("_kept", "_line", "_open", "_open_length", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        """The finished lines."""
        self._kept = 0
        """Characters in `_pieces`."""
        self._open: list[str] = []
        """The unfinished last line as it came; empty when `_line` has it."""
        self._open_length = 0
        self._line: _Line | None = None

    def __len__(self) -> int:
        return self._kept + (self._open_length if self._line is None else len(self._line))

    def add(self, text: str) -> None:
        r"""Take in more text; `\r\n` is one line end."""
        if "\r\n" in text:
            text = text.replace("\r\n", "\n")
        head, newline, last = text.rpartition("\n")
        if newline:
            self._finish(head)
        if last:
            self._extend(last)

    def cut(self) -> TerminalText:
        """Hand over the unfinished line to a text of its own; what stays here ends with a line end."""
        rest = TerminalText()
        rest._open, rest._open_length, rest._line = self._open, self._open_length, self._line
        self._begin_line()
        return rest

    def read(self) -> str:
        """Return what a terminal would show by now."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        last = "".join(self._open) if self._line is None else self._line.read()
        return (self._pieces[0] if self._pieces else "") + last

    def _finish(self, text: str) -> None:
        """Take in the rest of the unfinished line and any number of whole lines."""
        if self._line is None and not _moves(text):
            self._keep(*self._open, text, "\n")
            self._begin_line()
            return
        for line in text.split("\n"):
            self._extend(line)
            self._keep(*([self._line.read()] if self._line is not None else self._open), "\n")
            self._begin_line()

    def _begin_line(self) -> None:
        self._open, self._open_length, self._line = [], 0, None

    def _extend(self, text: str) -> None:
        if self._line is not None:
            self._line.write(text)
        elif _moves(text):
            self._line = _Line("".join(self._open) + text)
            self._open = []
        else:
            self._open.append(text)
            self._open_length += len(text)

    def _keep(self, *pieces: str) -> None:
        self._pieces += pieces
        self._kept += sum(map(len, pieces))


class _Line:
    """A line laid out in cells, each the colours in force and the character written there."""

    __slots__ = ("_cells", "_column", "_style")

    def __init__(self, text: str) -> None:
        self._cells: list[tuple[str, str]] = []
        self._column = 0
        self._style = ""
        self.write(text)

    def __len__(self) -> int:
        return len(self._cells)

    def write(self, text: str) -> None:
        for token in _TOKEN.findall(text):
            if token == "\r":
                self._column = 0
            elif token == "\b":
                self._column = max(0, self._column - 1)
            elif len(token) > 1:
                self._obey(token)
            else:
                self._cells[self._column : self._column + 1] = [(self._style, token)]
                self._column += 1

    def _obey(self, sequence: str) -> None:
        """Follow a colour or an erasure; other sequences mean nothing in a notebook and are left out."""
        if sequence in ("\x1b[m", "\x1b[0m"):
            self._style = ""
        elif sequence[-1] == "m":
            # Repeating one changes nothing; without a bound, a bar that sets its colour anew each time would grow.
            self._style = (self._style.replace(sequence, "") + sequence)[-_STYLE_LIMIT:]
        elif sequence in ("\x1b[K", "\x1b[0K"):
            del self._cells[self._column :]
        elif sequence == "\x1b[2K":
            self._cells = [_ERASED] * self._column
        elif sequence == "\x1b[1K":
            self._cells[: self._column + 1] = [_ERASED] * min(self._column + 1, len(self._cells))

    def read(self) -> str:
        while self._cells and self._cells[-1] is _ERASED:
            del self._cells[-1]
            self._column = min(self._column, len(self._cells))
        parts: list[str] = []
        now = ""
        for style, character in [*self._cells, (self._style, "")]:
            if style != now:
                parts.append(style[len(now) :] if style.startswith(now) else "\x1b[0m" + style)
                now = style
            parts.append(character or " ")
        return "".join(parts[:-1])


def _moves(text: str) -> bool:
    return "\r" in text or "\b" in text or ("\x1b[" in text and _MOVE.search(text) is not None)
