"""A line about what a cell waits for, until it runs."""

from __future__ import annotations

from mhnb.view.document import Line
from mhnb.view.live.screen import Region, Screen
from mhnb.view.print_html import print_html


class WaitLine:
    """The line of one cell.

    A file that is not a terminal gets none, because the line would stay there.

    Args:
        screen: where it appears.
        uid: of the cell's display.
    """

    def __init__(self, screen: Screen, uid: str) -> None:
        self._screen, self._display_id = screen, f"{uid}-wait"
        self._region: Region | None = None
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
        """Remove the line, or empty its display, which then has no height."""
        region, self._region = self._region, None
        if region is not None:
            region.close()
        if self._is_shown:
            self._is_shown = False
            self._screen.replace({"text/html": "", "text/plain": ""}, self._display_id)
