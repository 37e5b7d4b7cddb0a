"""Name cells in a rank's reports as the reader's notebook does.

On a rank a cell is known by mhnb's number: its file is `<cell 12>`, whatever the notebook shows, because the numbers of two kernels that
use the rank one after the other may be the same.
"""

from __future__ import annotations

import re

from mhnb.core.cell_name import format_cell_name
from mhnb.core.messages import RunCell

CELL_FILE = re.compile(r"<cell (\d+)>")
"""The file name of a cell."""
_AT_LINE = re.compile(r"\((<cell \d+>), line (?=\d+\)$)")
_PLACE = re.compile(r"<cell (\d+)>(?=:\d)")
"""Where JAX says that a function or a value comes from: `<cell 12>:4`."""
_FRAME = re.compile(r'(?m)^([\s|]*File ")<cell (\d+)>(", line \d+)')


def cell_file(seq: int) -> str:
    """Return a cell's file name, which is the same on every rank.

    >>> cell_file(12)
    '<cell 12>'
    """
    return f"<cell {seq}>"


class RankCellNames:
    """The numbers that notebooks have shown beside the cells of this rank."""

    def __init__(self) -> None:
        self._shown: dict[int, tuple[int, str]] = {}
        """By mhnb's number: the number shown, and the kernel whose notebook shows it."""
        self.kernel = ""
        """The kernel whose user reads what this rank reports now."""

    def record(self, cell: RunCell) -> None:
        """Record the number and the kernel of a cell that begins."""
        self.kernel = cell.kernel
        if cell.execution_count is None:
            self._shown.pop(cell.seq, None)
        else:
            self._shown[cell.seq] = (cell.execution_count, cell.kernel)

    def execution_count(self, seq: int) -> int | None:
        """Return the number that the reader's notebook shows; None without one."""
        shown = self._shown.get(seq)
        return shown[0] if shown is not None and shown[1] == self.kernel else None

    def format_name(self, seq: int) -> str:
        """Format the name of a cell: `In [7]`, else `cell 12`."""
        return format_cell_name(seq, self.execution_count(seq))

    def format_file(self, file: str) -> str:
        """Format a cell's file name, such as `<In [7]>`; keep other names."""
        named = CELL_FILE.fullmatch(file)
        return file if named is None else f"<{self.format_name(int(named[1]))}>"

    def name_file_in(self, message: str) -> str:
        """Name the cell at the end of a SyntaxError's message."""
        return _AT_LINE.sub(lambda found: f"({self.format_file(found[1])}, line ", message)

    def name_places(self, message: str) -> str:
        """Name the cells in a message that has `<cell 12>:4`."""
        return _PLACE.sub(lambda found: self.format_file(found[0]), message)

    def name_frames(self, text: str) -> str:
        """Name the cells in a traceback that Python has formatted."""
        return _FRAME.sub(lambda found: f"{found[1]}<{self.format_name(int(found[2]))}>{found[3]}", text)


CELL_NAMES = RankCellNames()
"""Those of this process. A process is one rank, except in tests."""
