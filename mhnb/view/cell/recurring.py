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

from mhnb.core.output.alike import Picture
from mhnb.core.output.template import Slot, split_numbers
from mhnb.view.cell.folded import SLOT_MARK, Item, ShownLine, sparkline, summarise_slot, tell_values

__all__ = ["Cells", "Run", "Table", "find_runs", "format_table", "run_tables"]

_LEAST = 3
"""Minimum number of lines for a table; fewer are shown line by line."""
_SHARE = 4
"""One in this many lines, at least, must have numbers that differ by rank.

Otherwise the few lines that do are easier to see as lines.
"""
_WIDE = 16
"""For more ranks, a row shows minimum, median and maximum, and the values after them."""
_BLANKS = re.compile(r"\s+")

_Place: TypeAlias = str | Slot
"""What a line has at a place: text that all ranks share, or a slot with each rank's own."""


@dataclass(frozen=True, slots=True)
class Run:
    """Repeated lines of one form."""

    channel: str
    text: str
    """The form, with a mark for each column."""
    columns: tuple[tuple[str, ...] | tuple[Slot, ...], ...]
    """Per column, a text for each line if all ranks have the same; otherwise a slot for each line."""
    count: int
    """Number of lines."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A row of a table."""

    label: tuple[str, ...]
    """Values that name the line."""
    steps: str
    """The values drawn as steps."""
    values: tuple[str, ...]
    """Each rank's value; for many ranks, one text with minimum, median and maximum."""
    odd: frozenset[int]
    """Indexes of `values` that are marked."""
    told: str
    """Every rank's value; empty if `values` has them."""


@dataclass(frozen=True, slots=True)
class Table:
    """One field of repeated lines: a row per line, a column per rank."""

    name: str
    labels: tuple[str, ...]
    """Headings of the label's columns."""
    ranks: tuple[int, ...]
    """Empty for many ranks, which have no columns."""
    rows: tuple[Cells, ...]


def _is_wide(ranks: Sequence[int]) -> bool:
    """Return whether there are too many ranks for a column each."""
    return len(ranks) > _WIDE


def find_runs(items: Sequence[Item], ranks: Sequence[int]) -> list[Item | Run]:
    """Group lines of one form if three or more follow each other and ranks differ on many of them.

    Args:
        items: a block's lines and pictures.
        ranks: the block's.
    """
    found: list[Item | Run] = []
    for _, same in groupby(enumerate(items), key=lambda pair: _form(*pair)):
        lines = [item for _, item in same]
        found += _join(lines, ranks) if len(lines) >= _LEAST else lines
    return found


def _form(at: int, item: Item) -> tuple[object, ...]:
    """Return what lines of one form share; a picture or a progress bar shares nothing."""
    if isinstance(item, Picture) or item.each or any(slot.is_bar for slot in item.slots):
        return (at,)
    literals, places = _part(item)
    return (item.channel, *(_BLANKS.sub(" ", literal) for literal in literals)) if places else (at,)


def _join(lines: Sequence[Item], ranks: Sequence[int]) -> list[Item | Run]:
    """Group all lines, or those from the first to the last line on which ranks differ, if enough of them differ."""
    vary = [at for at, line in enumerate(lines) if isinstance(line, ShownLine) and line.slots]
    for first, end in ((0, len(lines)), (vary[0], vary[-1] + 1)) if vary else ():
        if end - first >= _LEAST and _SHARE * len(vary) >= end - first:
            run = _run([line for line in lines[first:end] if isinstance(line, ShownLine)], ranks)
            return [*lines[:first], run, *lines[end:]]
    return list(lines)


def _run(same: Sequence[ShownLine], ranks: Sequence[int]) -> Run:
    literals, _ = _part(same[0])
    text, columns = literals[0], []
    for places, literal in zip(zip(*(_part(line)[1] for line in same), strict=True), literals[1:], strict=True):
        column = _column(places, len(ranks))
        if column is not None:
            columns.append(column)
            # Padding of its numbers is not part of the form.
            text = f"{text.rstrip(' ')} " if text.endswith(" ") else text
        text += (SLOT_MARK if column is not None else str(places[0])) + literal
    return Run(same[0].channel, text, tuple(columns), len(same))


def _part(line: ShownLine) -> tuple[list[str], list[_Place]]:
    """Split a line into the text between its numbers, and the numbers, whether they are slots or not."""
    literals: list[str] = []
    places: list[_Place] = []
    pending, slots = "", iter(line.slots)
    for at, piece in enumerate(line.text.split(SLOT_MARK)):
        if at:
            literals.append(pending)
            places.append(next(slots))
            pending = ""
        between, numbers = split_numbers(piece)
        for literal, number in zip(between, numbers, strict=False):
            # Blanks before a number pad it, and differ from line to line.
            literals.append(pending + literal + number[: len(number) - len(number.lstrip(" "))])
            places.append(number.lstrip(" "))
            pending = ""
        pending += between[-1]
    return [*literals, pending], places


def _column(places: Sequence[_Place], ranks: int) -> tuple[str, ...] | tuple[Slot, ...] | None:
    """Return the column of a place; None if every line and every rank has the same."""
    texts = tuple(place for place in places if isinstance(place, str))
    if len(texts) == len(places):
        return texts if len(set(texts)) > 1 else None
    return tuple(place if isinstance(place, Slot) else Slot((place,) * ranks) for place in places)


def run_tables(run: Run, ranks: Sequence[int], names: Sequence[str]) -> Iterator[Table]:
    """Yield a table for each field.

    Args:
        run: the lines.
        ranks: the ranks that printed them.
        names: of the run's columns.
    """
    told = list(zip(names, run.columns, strict=True))
    labelling = [(name, column) for name, column in told if isinstance(column[0], str)]
    heads = tuple(name for name, _ in labelling) or ("line",)
    labels = list(zip(*(column for _, column in labelling), strict=True)) or [(str(at + 1),) for at in range(run.count)]
    for name, column in told:
        slots = [slot for slot in column if isinstance(slot, Slot)]
        if slots:
            rows = (_cells(tuple(map(str, label)), slot, ranks) for label, slot in zip(labels, slots, strict=True))
            yield Table(name, heads, () if _is_wide(ranks) else tuple(ranks), tuple(rows))


def _cells(label: tuple[str, ...], slot: Slot, ranks: Sequence[int]) -> Cells:
    if not _is_wide(ranks):
        return Cells(label, sparkline(slot), tuple(value.strip() for value in slot.values), slot.odd, "")
    every = tell_values(slot, ranks)
    summary = summarise_slot(slot, ranks) if len(set(slot.values)) > 1 else ""
    # If many ranks share few values, listing all values is the summary.
    return Cells(label, sparkline(slot), (summary or every,), frozenset(), every if summary else "")


def format_table(table: Table) -> Iterator[str]:
    """Format a table as aligned text."""
    if not table.ranks:
        for row in table.rows:
            yield "  ".join(filter(None, (table.name, *row.label, row.steps, *row.values, row.told)))
        return
    head = [table.name, *table.labels, "", *map(str, table.ranks)]
    body = [["", *row.label, row.steps, *row.values] for row in table.rows]
    for at in sorted({at for row in table.rows for at in row.odd}):
        # The mark has its own position, so that the figures stay aligned.
        column = len(head) - len(table.ranks) + at
        head[column] += "  "
        for cells, row in zip(body, table.rows, strict=True):
            cells[column] += " ≠" if at in row.odd else "  "
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    for cells in (head, *body):
        yield " ".join(text.rjust(width) for text, width in zip(cells, widths, strict=True)).rstrip()
