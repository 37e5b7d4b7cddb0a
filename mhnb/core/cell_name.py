"""Cell names and line numbers in messages, as the notebook shows them.

A cell has two numbers. mhnb counts the cells of a cluster (`seq`): this number is unique, the same on every rank, and every cell has
it. The notebook shows the number that its kernel gave the cell, as `In [7]`: it is unique in one kernel only, and code that is no cell
of a notebook has none. Messages use the number that the user sees; a cell of another kernel has none here, and keeps mhnb's.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from mhnb.core.ranks import format_ranks

_CELL_ARGUMENT = re.compile(r"(?P<shown>[Ii]n\s*\[\s*(?P<count>\d+)\s*\])|(?:cell\s*)?(?P<number>\d+)")

_SPACED = re.compile(r"\b[Ii]n\s*\[\s*(\d+)\s*\]")


@dataclass(frozen=True, slots=True)
class CellPlace:
    """A cell's number and first line number, as the notebook shows them."""

    execution_count: int | None = None
    """The number that the notebook shows beside the cell; None if it shows none."""
    first_line: int = 1
    """The number that the notebook gives the first line of the source: a `%%mhjax` line above it is line 1."""


NO_PLACE = CellPlace()
"""Of code that is no cell of a notebook."""


def format_cell_name(seq: int, execution_count: int | None) -> str:
    """Format the name of a cell.

    Args:
        seq: mhnb's number of the cell, which every cell has.
        execution_count: the number that the notebook shows beside the cell; None if it shows none.

    >>> format_cell_name(12, 7), format_cell_name(12, None)
    ('In [7]', 'cell 12')
    """
    return f"cell {seq}" if execution_count is None else f"In [{execution_count}]"


def format_cell_names(cells: Iterable[tuple[int, int | None]]) -> str:
    """Format the names of several cells.

    Args:
        cells: each cell's `seq` and `execution_count`.

    >>> format_cell_names([(7, None)]), format_cell_names([(1, None), (2, None), (3, None), (5, None)])
    ('cell 7', 'cells 1-3,5')
    >>> format_cell_names([(1, 4), (2, 5), (3, None), (4, 9)])
    'In [4-5,9] and cell 3'
    """
    counts: list[int] = []
    seqs: list[int] = []
    for seq, count in cells:
        if count is None:
            seqs.append(seq)
        else:
            counts.append(count)
    shown = [f"In [{format_ranks(counts)}]"] if counts else []
    others = [f"{'cell' if len(seqs) == 1 else 'cells'} {format_ranks(seqs)}"] if seqs else []
    return " and ".join([*shown, *others])


def format_cell_argument(seq: int, execution_count: int | None, shown: Container[int | None] = ()) -> str:
    """Format a cell as the argument of a command.

    Args:
        seq: mhnb's number of the cell.
        execution_count: the number that the notebook shows beside it; None if it shows none.
        shown: the numbers that it shows beside other cells: a bare number would be taken for one of them.

    >>> format_cell_argument(12, 7), format_cell_argument(12, None), format_cell_argument(12, None, {12})
    ('In[7]', '12', 'cell12')
    """
    if execution_count is not None:
        return f"In[{execution_count}]"
    return f"cell{seq}" if seq in shown else str(seq)


def number_lines(source: str, first_line: int) -> str:
    r"""Prepend empty lines, so that line numbers match those in the notebook.

    >>> number_lines("x = 1", 2)
    '\nx = 1'
    """
    return "\n" * (first_line - 1) + source


def find_first_line(raw_cell: str, source: str) -> int | None:
    r"""Return the line number in the notebook's cell where a source begins.

    None if the cell does not end with the source. Magics are above the source, and may have removed its indent.

    Args:
        raw_cell: the cell as typed.
        source: without empty lines at its head.

    >>> find_first_line("%%time\n%%mhjax\n\n  x = 1\n  y = 2\n", "x = 1\ny = 2\n")
    4
    >>> find_first_line("x = 1", "x = 1"), find_first_line("run_all()", "x = 1")
    (1, None)
    """
    shown, lines = raw_cell.rstrip().splitlines(), source.rstrip().splitlines()
    first = len(shown) - len(lines)
    if first < 0 or any(a.strip() != b.strip() for a, b in zip(shown[first:], lines, strict=True)):
        return None
    return first + 1


class CellNames:
    """The names of a cluster's cells, by mhnb's number."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, seq: int, execution_count: int | None) -> None:
        """Record the notebook's number of a cell; None if it shows none."""
        if execution_count is None:
            self._counts.pop(seq, None)
        else:
            self._counts[seq] = execution_count

    def execution_count(self, seq: int) -> int | None:
        """Return the notebook's number of a cell; None if it shows none."""
        return self._counts.get(seq)

    def format_name(self, seq: int) -> str:
        """Format the name of a cell.

        >>> names = CellNames()
        >>> names.add(12, 7)
        >>> names.format_name(12), names.format_name(13)
        ('In [7]', 'cell 13')
        """
        return format_cell_name(seq, self._counts.get(seq))


# -- cells as arguments of commands


def join_cell_arguments(line: str) -> str:
    """Remove the blanks in cell names, so that each is one word.

    >>> join_cell_arguments("restart --replay --to In [7]")
    'restart --replay --to In[7]'
    """
    return _SPACED.sub(r"In[\1]", line)


@dataclass(frozen=True, slots=True)
class CellArgument:
    """A cell as a user names it in a command."""

    number: int
    is_shown: bool
    """Whether it can only be the number that the notebook shows: `In[7]`."""
    is_own: bool
    """Whether it can only be mhnb's number: `cell 7`."""

    @property
    def name(self) -> str:
        """The cell as the user named it."""
        return f"In [{self.number}]" if self.is_shown else f"{'cell ' if self.is_own else ''}{self.number}"


def parse_cell_argument(text: str) -> CellArgument | None:
    """Parse a user's cell name: `In[7]`, `cell 7` or `7`; else None.

    >>> parse_cell_argument("In [7]").is_shown, parse_cell_argument("cell 7").is_own, parse_cell_argument("x")
    (True, True, None)
    """
    found = _CELL_ARGUMENT.fullmatch(text.strip())
    if found is None:
        return None
    is_shown = found["shown"] is not None
    is_own = not is_shown and not text.strip().isdecimal()
    return CellArgument(int(found["count"] or found["number"]), is_shown, is_own)


def find_cell(argument: CellArgument, counts: Mapping[int, int | None]) -> int | None:
    """Return mhnb's number of the named cell, or None if unknown.

    A bare number is the one that the notebook shows, if it shows it beside one of these cells: the user sees no other. The latest cell
    counts if several have the number.

    Args:
        argument: the cell as named.
        counts: the cells, in order: by mhnb's number, the number that the notebook shows, or None.

    >>> cells = {5: 9, 6: 12, 7: None}
    >>> [find_cell(parse_cell_argument(text), cells) for text in ("In[12]", "12", "5", "7", "cell 6", "In[5]", "8")]
    [6, 6, 5, 7, 6, None, None]
    """
    if not argument.is_own:
        shown = [seq for seq, count in counts.items() if count == argument.number]
        if shown:
            return shown[-1]
    return argument.number if argument.number in counts and not argument.is_shown else None
