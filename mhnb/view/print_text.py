"""Print a document as text: for a terminal, for a shell, and as the form that is stored beside the HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mhnb.view.document import (
    Code,
    Document,
    Fold,
    Frame,
    Group,
    HeadedRows,
    InText,
    Line,
    Part,
    Progress,
    Section,
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


def _print_part(part: Part) -> Iterator[str]:
    match part:
        case Line():
            yield from _print_line(part)
        case Table():
            yield from align_columns(part.header, [[read_cell(cell) for cell in row] for row in part.rows])
        case Code():
            yield from (f"{' ' * part.indent}{line}" for line in part.text.split("\n"))
        case Group():
            yield from (f"{_INDENT}{line}" for line in print_lines(part.parts))
        case HeadedRows():
            yield from _print_headed_rows(part)
        case Fold():
            yield from _print_line(part.label) if isinstance(part.label, Line) else ()
            yield from print_lines(part.parts)
        case Progress():
            yield part.text
        case Tiles():
            yield "   ".join(part.texts)
        case Frame() | Section() | InText():
            yield from print_lines(part.parts)


def _print_line(line: Line) -> Iterator[str]:
    words = "".join(f"{' ' * span.gap}{span.text}" for span in line.beside)
    indent = _INDENT * (line.indent + (line.tone == "advice"))
    yield from (f"{indent}{each}" for each in f"{line.text}{':' if line.tone == 'caption' else ''}{words}".split("\n"))


def _print_headed_rows(part: HeadedRows) -> Iterator[str]:
    width = max((len(heading) for heading, _ in part.groups), default=0)
    for heading, texts in part.groups:
        yield from (f"{'' if at else heading:<{width}} · {text}" for at, text in enumerate(texts))
    yield " · ".join(part.ending)


def align_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    r"""Align cells in columns: numbers to the right, text to the left.

    >>> print(*align_columns(["rank", "host"], [["0", "host0"], ["10", "host1"]]), sep="\n")
    rank  host
       0  host0
      10  host1
    """
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    right = find_number_columns(header, rows)
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def find_number_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> set[int]:
    """Return the columns in which every cell that is not empty begins with a digit."""
    return {
        column
        for column in range(len(header))
        if rows and all(not row[column] or row[column][0].isdecimal() for row in rows) and any(r[column] for r in rows)
    }
