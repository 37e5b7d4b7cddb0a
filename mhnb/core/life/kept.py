"""Finished cells that are retained because late output, or an update of a display that they made, may still arrive."""

from __future__ import annotations

from collections import OrderedDict

from mhnb.core.life.cell import Cell

__all__ = ["FinishedCells"]

_MAX_CELLS = 32


class FinishedCells:
    """The latest finished cells, by number."""

    def __init__(self) -> None:
        self._cells: OrderedDict[int, Cell] = OrderedDict()

    def add(self, cell: Cell) -> None:
        """Retain a cell, and drop the oldest beyond the limit."""
        self._cells[cell.seq] = cell
        while len(self._cells) > _MAX_CELLS:
            self._cells.popitem(last=False)

    def find(self, seq: int, rank: int) -> Cell | None:
        """Return the cell with that number if it is retained and the rank ran it."""
        cell = self._cells.get(seq)
        return cell if cell is not None and rank in cell.parts else None

    def apply_display_updates(self, cell: Cell, rank: int) -> list[Cell]:
        """Apply a rank's display updates for older cells to the latest cell that has each display; return those cells."""
        updated: dict[int, Cell] = {}
        for update in cell.parts[rank].accumulator.take_foreign_updates():
            for old in reversed(self._cells.values()):
                if rank in old.parts and old.parts[rank].accumulator.update_display(*update):
                    updated[old.seq] = old
                    break
        return list(updated.values())
