"""How a cell is named in tracebacks, and where in it an error arose. It knows tracebacks, not shells."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from IPython.core.compilerop import CachingCompiler

__all__ = ["CellCompiler", "RunningCell", "cell_file", "find_place", "hide_own_frames"]

_OWN_FOLDER = str(Path(__file__).parent)
_TIMED = ("<timed exec>", "<timed eval>")
"""The file names that IPython's %%time gives to the cell's text below its first line."""


def cell_file(seq: int) -> str:
    """Name a cell as a file: the same on every rank, so that what is derived from it is too.

    >>> cell_file(12)
    '<cell 12>'
    """
    return f"<cell {seq}>"


@dataclass(frozen=True, slots=True)
class RunningCell:
    """The cell that runs on this rank."""

    seq: int
    source: str
    began_s: float

    @property
    def file(self) -> str:
        """Its name in tracebacks."""
        return cell_file(self.seq)

    def line(self, number: int | None) -> tuple[int | None, str | None]:
        """Return a 1-based line number with its text; both None where there is no such line."""
        lines = self.source.splitlines()
        if number is None or not 1 <= number <= len(lines):
            return None, None
        return number, lines[number - 1].strip()


class CellCompiler(CachingCompiler):
    """Names cells by their number, and parses each once. ipykernel's own hashes the text in Python, which costs more than most cells."""

    _ahead: tuple[str, ast.AST] | None = None

    def parse_ahead(self, source: str, file: str) -> bool:
        """Parse a cell before it is run; false where it is no Python."""
        self._ahead = None
        try:
            self._ahead = source, super().ast_parse(source, file)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        return True

    def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> ast.AST:
        """Hand out what was parsed ahead, else parse. A tree is handed out once: whoever transforms it changes it."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == source and symbol == "exec":
            return ahead[1]
        return super().ast_parse(source, filename, symbol)

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Name the cell of that number."""
        del raw_code, transformed_code
        return cell_file(number)


def find_place(error: BaseException, cell: RunningCell) -> tuple[int | None, str | None]:
    """Return line and text of the innermost frame of an error that lies in the cell."""
    if isinstance(error, SyntaxError) and error.filename == cell.file:
        return cell.line(error.lineno)
    number = None
    traceback = error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if name == cell.file:
            number = traceback.tb_lineno
        elif name in _TIMED:
            number = traceback.tb_lineno + 1
        traceback = traceback.tb_next
    return cell.line(number)


def hide_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without this package's frames: the user's error never looks like ours."""
    first: TracebackType | None = None
    last: TracebackType | None = None
    while traceback is not None:
        following = traceback.tb_next
        if not traceback.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
            if last is None:
                first = traceback
            else:
                last.tb_next = traceback
            last = traceback
        traceback = following
    if last is not None:
        last.tb_next = None
    return first
