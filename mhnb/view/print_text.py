"""Print a document as text, for terminals, shells and stored notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mhnb.view.document import (
    Card,
    Code,
    Columns,
    Document,
    Drawing,
    Drawn,
    Fields,
    Fold,
    Frame,
    Group,
    HeadedRows,
    InHtml,
    InText,
    Line,
    Part,
    Problem,
    Progress,
    Section,
    SortableTable,
    Table,
    Tiles,
    read_cell,
)

_INDENT = "  "


def print_text(document: Document) -> str:
    """Return a document as text."""
    return "\n".join(print_lines(document))


def print_lines(document: Document) -> Iterator[str]:
    """Yield the lines of a document."""
    for part in document:
        yield from _print_part(part)


def _print_part(part: Part) -> Iterable[str]:
    return _PRINTERS[type(part)](part)


def _print_inner(part: Frame | Section | InText) -> Iterator[str]:
    return print_lines(part.parts)


def _print_code(code: Code) -> Iterator[str]:
    yield from (f"{' ' * code.indent}{line}" for line in code.text.split("\n"))


def _print_fold(fold: Fold) -> Iterator[str]:
    yield from _print_line(fold.label) if isinstance(fold.label, Line) else ()
    yield from print_lines(fold.parts)


def _print_group(group: Group) -> Iterator[str]:
    yield from (f"{_INDENT}{line}" for line in print_lines(group.parts))


def _print_columns(columns: Columns) -> Iterator[str]:
    for document in columns.documents:
        yield from print_lines(document)


def _print_problem(problem: Problem) -> Iterator[str]:
    yield f"✗ {problem.name}: {problem.reason}"
    if problem.message:
        yield f"{_INDENT}{problem.source}: … {problem.message}"


def _print_table(table: Table) -> Iterator[str]:
    yield from align_columns(table.header, [[read_cell(cell) for cell in row] for row in table.rows])


def _print_line(line: Line) -> Iterator[str]:
    words = "".join(f"{' ' * span.gap}{span.text}" for span in line.beside)
    indent = _INDENT * (line.indent + (line.tone == "advice"))
    sign = f"{line.sign} " if line.sign and line.text else line.sign
    text = f"{sign}{line.text}{':' if line.tone == 'caption' else ''}{words}"
    yield from (f"{indent}{each}" for each in text.split("\n"))


def _print_headed_rows(part: HeadedRows) -> Iterator[str]:
    width = max((len(heading) for heading, _ in part.groups), default=0)
    for heading, texts in part.groups:
        yield from (f"{'' if at else heading:<{width}} · {text}" for at, text in enumerate(texts))
    if part.ending:
        yield " · ".join(part.ending)


def _print_fields(fields: Fields) -> Iterable[str]:
    rows = [fields.header, *fields.rows] if fields.header else fields.rows
    return _pad_cells([[read_cell(cell) for cell in row] for row in rows], set())


def align_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    r"""Align cells in columns: numbers to the right, text to the left.

    >>> print(*align_columns(["rank", "host"], [["0", "host0"], ["10", "host1"]]), sep="\n")
    rank  host
       0  host0
      10  host1
    """
    return _pad_cells([header, *rows], find_number_columns(header, rows))


def _pad_cells(lines: Sequence[Sequence[str]], right: set[int]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def find_number_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> set[int]:
    """Return the columns whose non-empty cells all begin with a digit."""
    return {
        column
        for column in range(len(header))
        if rows and all(not row[column] or row[column][0].isdecimal() for row in rows) and any(r[column] for r in rows)
    }


_PRINTERS: Mapping[type[Part], Callable[[Any], Iterable[str]]] = {
    Line: _print_line,
    Table: _print_table,
    SortableTable: lambda _: (),
    HeadedRows: _print_headed_rows,
    Fields: _print_fields,
    Code: _print_code,
    Fold: _print_fold,
    Group: _print_group,
    Frame: _print_inner,
    Card: lambda card: card.text.split("\n"),
    Columns: _print_columns,
    Section: _print_inner,
    Problem: _print_problem,
    Progress: lambda progress: [progress.text],
    Tiles: lambda tiles: ["   ".join(tiles.texts)],
    Drawing: lambda _: (),
    InText: _print_inner,
    InHtml: lambda _: (),
    Drawn: lambda _: (),
}
