"""Differences of a block from the majority, split where a loop prints: a rank that leaves the others does so on every line.

Decides which lines are those of a loop, of which only the first and the last are shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TypeAlias

from mhnb.core.output.diff import DiffRow, Line
from mhnb.core.output.template import split_numbers
from mhnb.view.cell.blocks import MAX_SHOWN_LINES, comparable_lines
from mhnb.view.cell.summary import Block

_WHITESPACE = re.compile(r"\s+")
_MAX_EQUAL_LINES = 3
"""Of more equal lines only the number is shown, so they are not part of a loop that differs."""

_Form: TypeAlias = tuple[str, tuple[str, ...]]
"""The stream's name, and the text between a line's numbers."""


@dataclass(frozen=True, slots=True)
class DifferencePart:
    """Successive rows of a block's differences."""

    rows: tuple[DiffRow, ...]
    start: int
    """Index of the block's line that the first row begins with."""
    is_loop: bool
    """Whether these are many lines of one form, in which numbers differ."""


def split_differences(block: Block) -> list[DifferencePart]:
    """Split a block's rows into those of loops and the others, in order."""
    lines, rows = comparable_lines(block.output_group), block.rows
    starts = [0, *accumulate(0 if row.kind == "missing" else row.count for row in rows)]
    forms = [_form_of(row, lines[start : start + row.count]) for row, start in zip(rows, starts, strict=False)]
    parts: list[DifferencePart] = []
    for form, same in groupby(range(len(rows)), key=forms.__getitem__):
        first, *others = same
        found = rows[first : first + 1 + len(others)]
        is_loop = form is not None and len(found) > MAX_SHOWN_LINES
        if parts and not (is_loop or parts[-1].is_loop):
            parts[-1] = replace(parts[-1], rows=parts[-1].rows + found)
        else:
            parts.append(DifferencePart(found, starts[first], is_loop))
    return parts


def _form_of(row: DiffRow, lines: Sequence[Line]) -> _Form | None:
    """Return what a row shares with others of a loop; None if it is no part of one."""
    if row.kind not in ("changed", "same") or row.count > _MAX_EQUAL_LINES:
        return None
    forms = {(channel, tuple(_WHITESPACE.sub(" ", text) for text in split_numbers(line)[0])) for channel, line in lines}
    first, *others = forms
    return first if not others and len(first[1]) > 1 else None
