"""Differences of a block from the majority, split where a loop prints: a rank that leaves the others does so on every line.

Decides which lines are those of a loop, so that only some of them are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from mhnb.core.output.diff import DiffRow
from mhnb.core.output.template import Slot, split_numbers
from mhnb.view.cell.blocks import (
    MAX_SHOWN_LINES,
    SLOT_MARK,
    BlockLine,
    RepeatedLines,
    comparable_lines,
    find_repeated_lines,
)
from mhnb.view.cell.summary import Block

_WHITESPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class DifferencePart:
    """Successive rows of a block's differences."""

    rows: tuple[DiffRow, ...]
    start: int
    """Index of the block's line that the first row begins with."""
    run: RepeatedLines | None = None
    """The loop's lines on all ranks, of which these rows are the part that differs; None if they are no loop's."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A line here and in the majority's output."""

    row: int
    channel: str
    here: str
    there: str


def split_differences(block: Block) -> list[DifferencePart]:
    """Split a block's rows into those of loops and the others, in order."""
    starts = _row_starts(block.rows)
    ranks = tuple(sorted((*block.ranks, *block.majority_ranks)))
    parts: list[DifferencePart] = []
    done = 0
    for pairs in _loops(block, starts):
        changed = [pair.row for pair in pairs if block.rows[pair.row].kind == "changed"]
        first, end = changed[0], changed[-1] + 1
        run = _build_run(pairs, block, ranks)
        if run is not None:
            parts += [DifferencePart(block.rows[done:first], starts[done])] if first > done else []
            parts.append(DifferencePart(block.rows[first:end], starts[first], run))
            done = end
    return [*parts, DifferencePart(block.rows[done:], starts[done])] if done < len(block.rows) else parts


def _row_starts(rows: Sequence[DiffRow]) -> list[int]:
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + (0 if row.kind == "missing" else row.count))
    return starts


def _loops(block: Block, starts: Sequence[int]) -> Iterator[list[_Pair]]:
    """Yield successive lines of one form, if many of them differ."""
    for form, same in groupby(_pairs(block, starts), key=_form_of):
        pairs = list(same)
        if form is not None and sum(block.rows[pair.row].kind == "changed" for pair in pairs) > MAX_SHOWN_LINES:
            yield pairs


def _pairs(block: Block, starts: Sequence[int]) -> Iterator[_Pair]:
    lines = comparable_lines(block.output_group)
    for at, row in enumerate(block.rows):
        if row.kind == "same":
            yield from (_Pair(at, *line, line[1]) for line in lines[starts[at] : starts[at + 1]])
        else:
            yield _Pair(at, row.channel, row.here, row.there if row.kind == "changed" else "")


def _form_of(pair: _Pair) -> tuple[str, ...] | None:
    """Return what both lines of a pair, and others of a loop, share; None if the two have different forms."""
    (here, numbers), (there, _) = split_numbers(pair.here), split_numbers(pair.there)
    forms = [tuple(_WHITESPACE.sub(" ", literal) for literal in literals) for literals in (here, there)]
    return (pair.channel, *forms[0]) if numbers and forms[0] == forms[1] else None


def _build_run(pairs: Sequence[_Pair], block: Block, ranks: Sequence[int]) -> RepeatedLines | None:
    here = frozenset(block.ranks)
    items = find_repeated_lines([_build_line(pair, here, ranks) for pair in pairs], ranks)
    return next((item for item in items if isinstance(item, RepeatedLines)), None)


def _build_line(pair: _Pair, here: frozenset[int], ranks: Sequence[int]) -> BlockLine:
    literals, ours = split_numbers(pair.here)
    _, theirs = split_numbers(pair.there)
    text, slots = literals[0], []
    for own, other, literal in zip(ours, theirs, literals[1:], strict=True):
        if own.strip() == other.strip():
            text += own + literal
        else:
            text += f"{' ' if own.startswith(' ') else ''}{SLOT_MARK}{literal}"
            slots.append(Slot(tuple(own.strip() if rank in here else other.strip() for rank in ranks)))
    return BlockLine(pair.channel, text, tuple(slots))
