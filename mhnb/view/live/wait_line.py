"""One quiet line about what a cell waits for before its turn. It is gone once the cell runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mhnb.view.document import Line
from mhnb.view.print_html import print_html


class _Region(Protocol):
    def show(self, text: str) -> None: ...

    def close(self) -> None: ...


class WaitScreen(Protocol):
    """The part of a screen that the line needs."""

    rich: bool
    """Whether it shows HTML."""

    def show(self, data: Mapping[str, Any], display_id: str) -> None:
        """Create a display in the current cell."""

    def replace(self, data: Mapping[str, Any], display_id: str) -> None:
        """Replace a display."""

    def open_region(self) -> _Region | None:
        """Open an area for text that is replaced repeatedly; return None if text cannot be replaced."""


class WaitLine:
    """The line of one cell. A file that is not a terminal gets none, because a line there would stay.

    Args:
        screen: where it appears.
        uid: of the cell's display.
    """

    def __init__(self, screen: WaitScreen, uid: str) -> None:
        self._screen, self._display_id = screen, f"{uid}-wait"
        self._region: _Region | None = None
        self._is_shown = False

    def show(self, text: str) -> None:
        """Show the line, or replace it."""
        if not self._screen.rich:
            self._region = self._region or self._screen.open_region()
            if self._region is not None:
                self._region.show(text)
            return
        html = print_html([Line(text, "quiet")])
        data = {"text/html": html, "text/plain": text}
        (self._screen.replace if self._is_shown else self._screen.show)(data, self._display_id)
        self._is_shown = True

    def close(self) -> None:
        """Remove the line. A display cannot be removed, but an empty one has no height."""
        region, self._region = self._region, None
        if region is not None:
            region.close()
        if self._is_shown:
            self._is_shown = False
            self._screen.replace({"text/html": "", "text/plain": ""}, self._display_id)
