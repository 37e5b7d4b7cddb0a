"""Find the cell number and first line of the running code."""

from __future__ import annotations

from typing import Any

from mhnb.core.cell_name import NO_PLACE, CellPlace, find_first_line
from mhnb.core.cell_request import lift_cell_magic, strip_leading_blank_lines


class CellTracker:
    """The cell of the notebook that runs now, from IPython's events."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._running: Any = None
        """IPython's description of it; None between cells."""

    def install(self) -> None:
        """Watch the shell's cells from now on."""
        self._shell.events.register("pre_run_cell", self._begin)
        self._shell.events.register("post_run_cell", self._end)

    def uninstall(self) -> None:
        """Stop watching."""
        self._shell.events.unregister("pre_run_cell", self._begin)
        self._shell.events.unregister("post_run_cell", self._end)

    def _begin(self, info: Any) -> None:
        # A magic such as `%%capture` runs its text as a cell of its own, without a number.
        if self._running is None or info.store_history:
            self._running = info

    def _end(self, result: Any) -> None:
        if result is not None and result.info is self._running:
            self._running = None

    def find_place(self, source: str) -> CellPlace:
        """Return where the notebook shows a source that runs now.

        It shows none for a source that is no end of the running cell, such as one that the cell's code has made, nor for a cell that
        the front end runs without storing it.
        """
        running = self._running
        if running is None or not running.store_history:
            return NO_PLACE
        # Comments above the magic come to the magic as lines of the source.
        raw_cell = "".join(lift_cell_magic([f"{line.strip()}\n" for line in running.raw_cell.splitlines()]))
        first_line = find_first_line(raw_cell, strip_leading_blank_lines(source))
        count = self._find_number()
        return NO_PLACE if first_line is None or count is None else CellPlace(count, first_line)

    def _find_number(self) -> int | None:
        """Return the running cell's number.

        IPython 9 increments its counter before the cell runs, earlier versions and other shells after it.
        """
        count = self._shell.execution_count
        return next((number for number in (count, count - 1) if f"_i{number}" in self._shell.user_ns), None)
