"""A place at the end of a terminal that is drawn anew as often as one likes, and leaves nothing behind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Region", "open_region"]


class Region(Protocol):
    """Lines at the end of a terminal."""

    @property
    def height(self) -> int:
        """How many lines there is room for."""

    def show(self, text: str) -> None:
        """Draw other text in the place of the last; a line that is too long is cut."""

    def close(self) -> None:
        """Take it away: what is printed next begins where it began."""


class _TerminalRegion:
    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        # What is printed meanwhile, late output of an earlier cell say, rich puts above it.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        # A process that is killed now would leave the terminal without a cursor.
        console.show_cursor(True)

    @property
    def height(self) -> int:
        return max(1, self._console.height - 1)

    def show(self, text: str) -> None:
        from rich.text import Text

        self._live.update(Text.from_ansi(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def close(self) -> None:
        self._live.stop()


def open_region() -> Region | None:
    """Open one on this process's terminal; None where the output goes elsewhere, or nothing on it can be taken back."""
    if not sys.stdout.isatty():
        return None
    # It takes a while to import, and most processes have no terminal.
    from rich.console import Console

    # What others print beside it is text, whatever stands in it.
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    return _TerminalRegion(console) if console.is_terminal and not console.is_dumb_terminal else None
