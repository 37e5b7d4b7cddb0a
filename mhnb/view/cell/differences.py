"""How a block differs from the majority, as lines for either form.

A `Painter` turns words into text for a terminal or into HTML, so that both forms say the same. Where a loop prints, a rank that leaves
the others does so on every line: of these only the first and the last are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Protocol, TypeAlias

from mhnb.core.output.diff import DiffRow, Line
from mhnb.core.ranks import describe_ranks
from mhnb.view.cell.blocks import (
    HEAD_LINES,
    LINE_NBYTES,
    MAX_OUTLIER_VALUES,
    MAX_SHOWN_LINES,
    TAIL_LINES,
    OutlierValue,
    clip_unchanged,
    comparable_lines,
    count_fitting,
    find_form,
    format_more_outlier_values,
    format_omitted_line,
    keep_ends,
)
from mhnb.view.cell.summary import Block

_MAX_EQUAL_LINES = 3
"""Up to this many lines that are equal everywhere are repeated between differences. Of more only the number is shown."""

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
    """Split a block's rows into loops and other rows, in order."""
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
    """Return what a row shares with other loop lines, or None."""
    if row.kind not in ("changed", "same") or row.count > _MAX_EQUAL_LINES:
        return None
    forms = {(channel, find_form(line)) for channel, line in lines}
    first, *others = forms
    return first if not others and len(first[1]) > 1 else None


# -- as lines


class Painter(Protocol):
    """Turns words into one form: text for a terminal, or HTML."""

    def plain(self, text: str) -> str:
        """Return text of a rank."""

    def printed(self, channel: str, text: str) -> str:
        """Return a line of a channel, or a placeholder for a picture."""

    def strong(self, shown: str) -> str:
        """Mark what is already in this form as important; likewise the others."""

    def quiet(self, shown: str) -> str:
        """Mark what is said beside the output."""

    def changed(self, shown: str) -> str:
        """Mark a word that differs."""

    def added(self, shown: str) -> str:
        """Mark a line that other ranks do not have."""


@dataclass(frozen=True, slots=True)
class DifferenceLines:
    """Successive lines of a difference; of a loop the middle is folded."""

    head: Sequence[str]
    folded: Sequence[str] = ()
    folded_count: int = 0
    """The number of the rank's lines that are folded, with those that were left out."""
    tail: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    """The lines that say how a row differs."""

    lines: Sequence[str]
    count: int
    """How many of the rank's lines it stands for."""

    @property
    def nbytes(self) -> int:
        return sum(len(line) + LINE_NBYTES for line in self.lines)


def arrange_differences(
    block: Block, painter: Painter, limit_nbytes: int, *, where: str, shows_folded: bool
) -> list[DifferenceLines]:
    """Arrange a block's differences, as `loss 0.731 ← 0.312 elsewhere`.

    Too much text keeps its beginning and end. What loops fold is left out first, so that nothing is lost between two of
    them.

    Args:
        block: ranks and their differences.
        painter: of the form.
        limit_nbytes: text that there is room for.
        where: where all of it is.
        shows_folded: whether the form has the lines that loops fold.
    """
    marked = any(row.kind in ("added", "missing") for row in block.rows)
    said, parts = comparable_lines(block.output_group), split_differences(block)
    rows = [_format_rows(part, said, block.majority_ranks, painter, "  " if marked else "") for part in parts]
    folds = [
        slice(HEAD_LINES, len(own) - TAIL_LINES) if part.is_loop else slice(len(own), len(own))
        for part, own in zip(parts, rows, strict=True)
    ]
    sizes = [
        sum(row.nbytes for row in (*own[: fold.start], *own[fold.stop :]))
        for own, fold in zip(rows, folds, strict=True)
    ]
    rest = limit_nbytes - sum(sizes)
    room = max(0, rest) // max(1, sum(part.is_loop for part in parts)) if shows_folded else 0
    each = limit_nbytes if rest >= 0 else limit_nbytes // len(parts)
    arranged = [
        DifferenceLines(
            _clip(own[: fold.start], limit_nbytes if part.is_loop else each, where),
            _clip(own[fold], room, where),
            sum(row.count for row in own[fold]),
            _clip(own[fold.stop :], limit_nbytes, where),
        )
        for part, own, fold in zip(parts, rows, folds, strict=True)
    ]
    counts = [sum(row.count for row in own) for own in rows]
    return arranged if rest >= 0 else _leave_out_middle(arranged, counts, limit_nbytes, where)


def _leave_out_middle(
    parts: list[DifferenceLines], counts: Sequence[int], limit_nbytes: int, where: str
) -> list[DifferenceLines]:
    """Keep the first and last parts, at least one of each."""
    sizes = [sum(len(line) + LINE_NBYTES for line in (*part.head, *part.tail)) for part in parts]
    if sum(sizes) <= limit_nbytes:
        return parts
    head = max(1, count_fitting(sizes, limit_nbytes // 2))
    tail = max(head, len(parts) - max(1, count_fitting(sizes[::-1], limit_nbytes // 2)))
    if tail <= head:
        return parts
    note = DifferenceLines([format_omitted_line([""] * sum(counts[head:tail]), where=where)])
    return [*parts[:head], note, *parts[tail:]]


def _clip(rows: Sequence[_Row], limit_nbytes: int, where: str) -> list[str]:
    """Return rows' lines; a note replaces the middle if it saves space."""
    sizes = [row.nbytes for row in rows]
    head = tail = len(rows)
    if sum(sizes) > limit_nbytes:
        head = count_fitting(sizes, limit_nbytes // 2)
        tail = max(head, len(rows) - count_fitting(sizes[::-1], limit_nbytes - limit_nbytes // 2))
    note = format_omitted_line([""] * sum(row.count for row in rows[head:tail]), where=where)
    if sum(sizes[head:tail]) <= len(note) + LINE_NBYTES:
        return [line for row in rows for line in row.lines]
    return [
        *(line for row in rows[:head] for line in row.lines), note, *(line for row in rows[tail:] for line in row.lines)
    ]  # fmt: skip


def _format_rows(
    part: DifferencePart, lines: Sequence[Line], majority_ranks: Sequence[int], painter: Painter, indent: str
) -> list[_Row]:
    at, written = part.start, []
    for row in part.rows:
        if row.kind == "same" and row.count > _MAX_EQUAL_LINES:
            shown = [painter.quiet(f"… {row.count} lines as on {describe_ranks(majority_ranks)} …")]
        elif row.kind == "same":
            shown = [f"{indent}{painter.printed(*line)}" for line in lines[at : at + row.count]]
        elif row.kind == "added":
            shown = [f"+ {painter.added(painter.printed(row.channel, row.here))}"]
        elif row.kind == "missing":
            shown = [painter.quiet(f"- {painter.printed(row.channel, keep_ends(row.there))}   ← elsewhere")]
        else:
            shown = list(_format_changed(row, painter, indent))
        count = 0 if row.kind == "missing" else row.count
        written.append(_Row(shown, count))
        at += count
    return written


def _format_changed(row: DiffRow, painter: Painter, indent: str) -> Iterator[str]:
    spans = clip_unchanged(row)
    changed = [span for span in spans if span.there is not None]
    words = [(painter.printed("", span.here), span.there is not None) for span in spans]
    here = indent + "".join(painter.changed(word) if differs else word for word, differs in words)
    if len(changed) == 1 and changed[0].here and changed[0].there:
        yield f"{here} {painter.quiet(f'← {painter.plain(changed[0].there)} elsewhere')}"
    else:
        yield here
        there = "".join(span.here if span.there is None else span.there for span in spans)
        yield painter.quiet(f"{indent}← {painter.plain(there)} elsewhere")


def format_outlier_values(outliers: Sequence[OutlierValue], painter: Painter) -> Iterator[str]:
    """Format outliers, as `rank 2 ≠ loss 0.731 ← 0.312 elsewhere`."""
    for one in outliers[:MAX_OUTLIER_VALUES]:
        label, elsewhere = painter.strong(describe_ranks(one.ranks)), f"← {painter.plain(one.elsewhere)} elsewhere"
        value = painter.changed(painter.plain(one.value))
        yield f"{label} ≠ {painter.plain(one.before)}{value} {painter.quiet(elsewhere)}"
    if more := outliers[MAX_OUTLIER_VALUES:]:
        yield painter.quiet(format_more_outlier_values(more))
