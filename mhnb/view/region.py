"""Area at the end of a terminal that can be redrawn any number of times, and leaves nothing behind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Region", "open_region"]


class Region(Protocol):
    """Lines at the end of a terminal that can be redrawn."""

    @property
    def height(self) -> int:
        """Return the number of lines that fit."""

    def show(self, text: str) -> None:
        """Replace the text that is shown; cut a line that is too long."""

    def close(self) -> None:
        """Remove the area; the next output begins where the area began."""


class _TerminalRegion:
    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        # rich places other output, such as late output of an earlier cell, above the area.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        # A process that is killed while the cursor is hidden would leave the terminal without one.
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
    """Open an area on this process's terminal; return None if the output is not a terminal, or cannot be redrawn."""
    if not sys.stdout.isatty():
        return None
    # rich takes a while to import, and most processes have no terminal.
    from rich.console import Console

    # Other output that is printed meanwhile is plain text, whatever characters it contains.
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    return _TerminalRegion(console) if console.is_terminal and not console.is_dumb_terminal else None
