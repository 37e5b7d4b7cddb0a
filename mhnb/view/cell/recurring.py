"""Tables from repeated lines of one form, as a training loop prints them: the form once, and a table per field.

Decides which lines repeat, and which columns show them. A table has a row per line.
A number that differs from line to line only (the step) names the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from mhnb.core.output.alike import RichPart
from mhnb.core.output.template import Slot, split_numbers
from mhnb.view.cell.folded import SLOT_MARK, BlockItem, BlockLine, format_values, sparkline, summarise_slot

__all__ = ["RepeatedLines", "Table", "TableRow", "build_tables", "find_repeated_lines", "format_table"]

_MIN_LINES = 3
"""Minimum number of lines for a table; fewer are shown line by line."""
_MAX_LINES_PER_VARYING = 4
"""One in this many lines, at least, must have numbers that differ by rank.

Otherwise the few lines that do are easier to see as lines.
"""
_MAX_COLUMN_RANKS = 16
"""For more ranks, a row shows minimum, median and maximum, and the values after them."""
_WHITESPACE = re.compile(r"\s+")

_Field: TypeAlias = str | Slot
"""What a line has at a place: text that all ranks share, or a slot with each rank's own."""


@dataclass(frozen=True, slots=True)
class RepeatedLines:
    """Repeated lines of one form."""

    channel: str
    text: str
    """The form, with a mark for each column."""
    columns: tuple[tuple[str, ...] | tuple[Slot, ...], ...]
    """Per column, a text for each line if all ranks have the same; otherwise a slot for each line."""
    count: int
    """Number of lines."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table."""

    label: tuple[str, ...]
    """Values that name the line."""
    steps: str
    """The values drawn as steps."""
    values: tuple[str, ...]
    """Each rank's value; for many ranks, one text with minimum, median and maximum."""
    outliers: frozenset[int]
    """Indexes of `values` that are marked."""
    all_values: str
    """Every rank's value; empty if `values` has them."""


@dataclass(frozen=True, slots=True)
class Table:
    """One field of repeated lines: a row per line, a column per rank."""

    name: str
    labels: tuple[str, ...]
    """Headings of the label's columns."""
    ranks: tuple[int, ...]
    """Empty for many ranks, which have no columns."""
    rows: tuple[TableRow, ...]


def _is_wide(ranks: Sequence[int]) -> bool:
    """Return whether there are too many ranks for a column each."""
    return len(ranks) > _MAX_COLUMN_RANKS


def find_repeated_lines(items: Sequence[BlockItem], ranks: Sequence[int]) -> list[BlockItem | RepeatedLines]:
    """Group lines of one form if three or more follow each other and ranks differ on many of them.

    Args:
        items: a block's lines and pictures.
        ranks: the block's.
    """
    found: list[BlockItem | RepeatedLines] = []
    for _, same in groupby(enumerate(items), key=lambda pair: _form_key(*pair)):
        lines = [item for _, item in same]
        found += _group_lines(lines, ranks) if len(lines) >= _MIN_LINES else lines
    return found


def _form_key(at: int, item: BlockItem) -> tuple[object, ...]:
    """Return what lines of one form share; a picture or a progress bar shares nothing."""
    if isinstance(item, RichPart) or item.bar_texts or any(slot.is_bar for slot in item.slots):
        return (at,)
    literals, fields = _split_line(item)
    return (item.channel, *(_WHITESPACE.sub(" ", literal) for literal in literals)) if fields else (at,)


def _group_lines(lines: Sequence[BlockItem], ranks: Sequence[int]) -> list[BlockItem | RepeatedLines]:
    """Group all lines, or those from the first to the last line on which ranks differ, if enough of them differ."""
    varying = [at for at, line in enumerate(lines) if isinstance(line, BlockLine) and line.slots]
    for first, end in ((0, len(lines)), (varying[0], varying[-1] + 1)) if varying else ():
        if end - first >= _MIN_LINES and _MAX_LINES_PER_VARYING * len(varying) >= end - first:
            repeated = _build_repeated_lines([line for line in lines[first:end] if isinstance(line, BlockLine)], ranks)
            return [*lines[:first], repeated, *lines[end:]]
    return list(lines)


def _build_repeated_lines(same: Sequence[BlockLine], ranks: Sequence[int]) -> RepeatedLines:
    literals, _ = _split_line(same[0])
    text, columns = literals[0], []
    for fields, literal in zip(zip(*(_split_line(line)[1] for line in same), strict=True), literals[1:], strict=True):
        column = _build_column(fields, len(ranks))
        if column is not None:
            columns.append(column)
            # Padding of its numbers is not part of the form.
            text = f"{text.rstrip(' ')} " if text.endswith(" ") else text
        text += (SLOT_MARK if column is not None else str(fields[0])) + literal
    return RepeatedLines(same[0].channel, text, tuple(columns), len(same))


def _split_line(line: BlockLine) -> tuple[list[str], list[_Field]]:
    """Split a line into the text between its numbers, and the numbers, whether they are slots or not."""
    literals: list[str] = []
    fields: list[_Field] = []
    pending, slots = "", iter(line.slots)
    for at, piece in enumerate(line.text.split(SLOT_MARK)):
        if at:
            literals.append(pending)
            fields.append(next(slots))
            pending = ""
        between, numbers = split_numbers(piece)
        for literal, number in zip(between, numbers, strict=False):
            # Blanks before a number pad it, and differ from line to line.
            literals.append(pending + literal + number[: len(number) - len(number.lstrip(" "))])
            fields.append(number.lstrip(" "))
            pending = ""
        pending += between[-1]
    return [*literals, pending], fields


def _build_column(fields: Sequence[_Field], ranks: int) -> tuple[str, ...] | tuple[Slot, ...] | None:
    """Return the column of a place; None if every line and every rank has the same."""
    texts = tuple(place for place in fields if isinstance(place, str))
    if len(texts) == len(fields):
        return texts if len(set(texts)) > 1 else None
    return tuple(place if isinstance(place, Slot) else Slot((place,) * ranks) for place in fields)


def build_tables(run: RepeatedLines, ranks: Sequence[int], names: Sequence[str]) -> Iterator[Table]:
    """Yield a table for each field.

    Args:
        run: the lines.
        ranks: the ranks that printed them.
        names: of the run's columns.
    """
    columns = list(zip(names, run.columns, strict=True))
    label_columns = [(name, column) for name, column in columns if isinstance(column[0], str)]
    heads = tuple(name for name, _ in label_columns) or ("line",)
    labels = list(zip(*(column for _, column in label_columns), strict=True)) or [
        (str(at + 1),) for at in range(run.count)
    ]
    for name, column in columns:
        slots = [slot for slot in column if isinstance(slot, Slot)]
        if slots:
            rows = (_build_row(tuple(map(str, label)), slot, ranks) for label, slot in zip(labels, slots, strict=True))
            yield Table(name, heads, () if _is_wide(ranks) else tuple(ranks), tuple(rows))


def _build_row(label: tuple[str, ...], slot: Slot, ranks: Sequence[int]) -> TableRow:
    if not _is_wide(ranks):
        return TableRow(label, sparkline(slot), tuple(value.strip() for value in slot.values), slot.outliers, "")
    all_values = format_values(slot, ranks)
    summary = summarise_slot(slot, ranks) if len(set(slot.values)) > 1 else ""
    # If many ranks share few values, listing all values is the summary.
    return TableRow(label, sparkline(slot), (summary or all_values,), frozenset(), all_values if summary else "")


def format_table(table: Table) -> Iterator[str]:
    """Format a table as aligned text."""
    if not table.ranks:
        for row in table.rows:
            yield "  ".join(filter(None, (table.name, *row.label, row.steps, *row.values, row.all_values)))
        return
    head = [table.name, *table.labels, "", *map(str, table.ranks)]
    body = [["", *row.label, row.steps, *row.values] for row in table.rows]
    for at in sorted({at for row in table.rows for at in row.outliers}):
        # The mark has its own position, so that the figures stay aligned.
        column = len(head) - len(table.ranks) + at
        head[column] += "  "
        for cells, row in zip(body, table.rows, strict=True):
            cells[column] += " ≠" if at in row.outliers else "  "
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    for cells in (head, *body):
        yield " ".join(text.rjust(width) for text, width in zip(cells, widths, strict=True)).rstrip()
