"""Cells that have ended, kept because output may still come for them, or an update of a display that they made."""

from __future__ import annotations

from collections import OrderedDict

from mhnb.core.life.cell import Cell

__all__ = ["KeptCells"]

_KEPT_CELLS = 32


class KeptCells:
    """The latest of them, by number."""

    def __init__(self) -> None:
        self._cells: OrderedDict[int, Cell] = OrderedDict()

    def keep(self, cell: Cell) -> None:
        """Keep a cell, and let the oldest go."""
        self._cells[cell.seq] = cell
        while len(self._cells) > _KEPT_CELLS:
            self._cells.popitem(last=False)

    def find(self, seq: int, rank: int) -> Cell | None:
        """The cell of that number if it is kept and the rank ran it."""
        cell = self._cells.get(seq)
        return cell if cell is not None and rank in cell.parts else None

    def pass_updates(self, cell: Cell, rank: int) -> list[Cell]:
        """Give a rank's updates of displays that an older cell made to the latest cell that has each; return those cells."""
        touched: dict[int, Cell] = {}
        for update in cell.parts[rank].folder.take_foreign_updates():
            for old in reversed(self._cells.values()):
                if rank in old.parts and old.parts[rank].folder.update_display(*update):
                    touched[old.seq] = old
                    break
        return list(touched.values())
