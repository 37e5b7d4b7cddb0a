"""Repeated lines of a running cell, read as they arrive, so that a training loop is shown while it runs as it will be stored.

Comparing all of a large output ten times per second would cost too much. So each line is read once, and of many lines only the first
ones, the last ones, and some in regular distances are kept. Their distance doubles when there are too many, so that the lines that a
curve is drawn from never change, and the curve does not flicker.

Ranks may be at different steps. They are shown together all the same; a rank that is behind has no value in the rows that it has not
reached.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from mhnb.core.output.folding import group_outputs
from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.output.template import Slot, split_numbers, template_key
from mhnb.core.ranks import describe_ranks
from mhnb.types import Output
from mhnb.view.ansi import strip_ansi
from mhnb.view.cell.blocks import (
    HEAD_LINES,
    MAX_SHOWN_LINES,
    TAIL_LINES,
    BlockItem,
    RepeatedLines,
    block_items,
    find_repeated_lines,
    shorten_line,
)

_MIN_LINES = 3
"""Fewer lines are shown line by line."""
_MAX_BEFORE = 4
"""Lines that are shown before repeated ones."""
_MAX_SAMPLED = 128
"""Maximum number of lines in regular distances that are kept of each rank."""
_MAX_COMPARED = 2048
"""Maximum number of lines of all ranks that are compared for one frame."""
_MAX_PENDING_NBYTES = 64 * 1024
"""Of more new text of a rank, only the end is read."""
_MAX_FRAME_NBYTES, _MIN_PENDING_NBYTES = 256 * 1024, 4 * 1024
"""New text of all ranks together that is read for one frame, and at least of each rank."""
_FIRST_FACTOR = 4
"""How many times as much is read for the first frame, because without their beginning the lines of several ranks are not shown."""
_MAX_LINE_NCHARS = 1000
"""A longer line is not one of a loop, and only its ends are kept, so that a frame stays small."""
_MAX_BLOCKS = 4
"""More blocks with curves of their own would be more than can be sent several times per second."""
_LAG_LINES = TAIL_LINES
"""A rank that is further behind is named."""
_WHITESPACE = re.compile(r"\s+")

_Form: TypeAlias = tuple[object, ...]
_Line: TypeAlias = tuple[str, str]
"""The stream's name and the text."""


@dataclass(frozen=True, slots=True)
class RepeatedBlock:
    """Ranks that print the same repeated lines, arranged for display."""

    ranks: tuple[int, ...]
    items: tuple[BlockItem | RepeatedLines, ...]


class RepeatedHistory:
    """The repeated lines of each rank of the cell that runs."""

    def __init__(self) -> None:
        self._seq: int | None = None
        self._readers: dict[int, _RankLines] = {}

    def read(self, snapshot: CellResult) -> None:
        """Read what is new. A snapshot of another cell starts anew."""
        if snapshot.seq != self._seq:
            self._seq, self._readers = snapshot.seq, {}
        share = max(_MIN_PENDING_NBYTES, _MAX_FRAME_NBYTES // max(1, len(snapshot.ranks)))
        if not self._readers:
            share *= _FIRST_FACTOR
        for rank in snapshot.ranks:
            self._readers.setdefault(rank.rank, _RankLines()).read(rank.outputs, min(share, _MAX_PENDING_NBYTES))

    def find_blocks(self, ranks: Sequence[RankResult]) -> list[RepeatedBlock]:
        """Return blocks that show what ranks print now; empty if it is not the same repeated lines on all of them.

        Also empty if these would be too many blocks.
        """
        readers = [self._readers.get(rank.rank) for rank in ranks]
        views = [reader.view() for reader in readers if reader is not None]
        known = [view for view in views if view is not None]
        if not known or len(known) < len(ranks) or len({(view.run.form, view.run.start) for view in known}) > 1:
            return []
        if len(ranks) > 1 and known[0].run.start < 0:
            # Which of their lines belong together is not known.
            return []
        blocks = _build_blocks([rank.rank for rank in ranks], known)
        return blocks if len(blocks) <= _MAX_BLOCKS else []


# -- the lines of one rank


class _Run:
    """Lines of one form that follow each other."""

    def __init__(self, form: _Form, start: int, before: Sequence[_Line]) -> None:
        self.form, self.before = form, tuple(before)
        self.start = start
        """The number of lines before it; -1 if it is not known, because not all were read."""
        self.count, self.stride = 0, 1
        self._sampled: dict[int, str] = {}
        self._last: deque[str] = deque(maxlen=2 * TAIL_LINES)

    def add(self, text: str) -> None:
        if self.count % self.stride == 0 or self.count < HEAD_LINES:
            self._sampled[self.count] = text
        self._last.append(text)
        self.count += 1
        if len(self._sampled) > _MAX_SAMPLED:
            self.stride *= 2
            self._sampled = {at: line for at, line in self._sampled.items() if at % self.stride == 0 or at < HEAD_LINES}

    def line_at(self, index: int) -> str | None:
        """Return a line, or None if it does not exist yet or was not kept."""
        from_end = self.count - index
        if 0 < from_end <= len(self._last):
            return self._last[-from_end]
        return self._sampled.get(index)


@dataclass(frozen=True, slots=True)
class _View:
    run: _Run
    after: tuple[_Line, ...]
    """The lines after it."""


class _RankLines:
    """Reads a rank's outputs as they grow."""

    def __init__(self) -> None:
        self._output = self._position = self._line_count = 0
        self._guard = ""
        """The text just read, to notice when it changes."""
        self._long: _Run | None = None
        """The last run of many lines, while few lines have followed it."""
        self._current: _Run | None = None
        self._recent: deque[_Line] = deque(maxlen=MAX_SHOWN_LINES + 1)
        self._since_long = 0

    def view(self) -> _View | None:
        """Return what to show; None if the last lines do not repeat."""
        current = self._current
        if self._long is not None and self._long is not current:
            after = list(self._recent)[-self._since_long :] if self._since_long else []
            return _View(self._long, tuple(after))
        return _View(current, ()) if current is not None and current.count >= _MIN_LINES else None

    def read(self, outputs: Sequence[Output], limit_nbytes: int) -> None:
        """Read the complete lines that are new; if they have more than `limit_nbytes`, begin anew with the last ones."""
        if not self._continues(outputs, limit_nbytes):
            # The output was cleared, or its middle left out, or it came too fast. Reading all of it may take long.
            self.__init__()  # type: ignore[misc]
            if sum(len(_text_of(one)) for one in outputs) > limit_nbytes:
                self._output, self._line_count = len(outputs) - 1, -1
                text = _text_of(outputs[-1])
                self._position = text.find("\n", max(0, len(text) - limit_nbytes)) + 1
        while self._output < len(outputs):
            output, is_last = outputs[self._output], self._output == len(outputs) - 1
            self._read_output(output, is_last=is_last)
            if is_last:
                break
            self._output, self._position, self._guard = self._output + 1, 0, ""

    def _continues(self, outputs: Sequence[Output], limit_nbytes: int) -> bool:
        if self._output >= len(outputs):
            return self._output == 0
        text = _text_of(outputs[self._output])
        if not text.startswith(self._guard, max(0, self._position - len(self._guard))):
            return False
        return sum(len(_text_of(one)) for one in outputs[self._output :]) - self._position <= limit_nbytes

    def _read_output(self, output: Output, *, is_last: bool) -> None:
        text = _text_of(output)
        if output["output_type"] != "stream":
            self._current = self._long = None
            self._position = len(text)
            return
        end = text.rfind("\n") + 1 if is_last else len(text)
        if end > self._position:
            for line in text[self._position : end].removesuffix("\n").split("\n"):
                self._add((str(output["name"]), line))
            self._position, self._guard = end, text[max(0, end - 64) : end]

    def _add(self, line: _Line) -> None:
        form = _form_of(line)
        if self._current is None or form is None or form != self._current.form:
            self._current = (
                _Run(form, self._line_count, list(self._recent)[-_MAX_BEFORE:]) if form is not None else None
            )
        self._recent.append((line[0], shorten_line(line[1], _MAX_LINE_NCHARS)))
        self._since_long += 1
        self._line_count += self._line_count >= 0
        if self._current is not None:
            self._current.add(line[1])
            if self._current.count > MAX_SHOWN_LINES:
                self._long, self._since_long = self._current, 0
        if self._since_long > MAX_SHOWN_LINES:
            self._long = None


def _text_of(output: Output) -> str:
    return str(output["text"]) if output["output_type"] == "stream" else ""


def _form_of(line: _Line) -> _Form | None:
    """Return what lines of one form share; None for a long line, one without numbers, or one with a progress bar."""
    if len(line[1]) > _MAX_LINE_NCHARS:
        return None
    skeleton, numbers = split_numbers(strip_ansi(line[1]))
    if not numbers or any(number.lstrip().startswith("|") for number in numbers):
        return None
    return (line[0], *(_WHITESPACE.sub(" ", str(part)) for part in template_key(skeleton, numbers)))


# -- the blocks of several ranks


def _build_blocks(ranks: Sequence[int], views: Sequence[_View]) -> list[RepeatedBlock]:
    rows = _choose_rows(views)
    leader_rank, leader = max(
        ((rank, view.run) for rank, view in zip(ranks, views, strict=True)), key=lambda one: one[1].count
    )
    before, after = _common_ends(views)
    ranks_by_text: dict[tuple[_Line, ...], list[int]] = {}
    for rank, view in zip(ranks, views, strict=True):
        lines = [(str(view.run.form[0]), _line_at(row, rank, view.run, leader_rank, leader)) for row in rows]
        ends = view.run.before[len(view.run.before) - before :]
        ranks_by_text.setdefault((*ends, *lines, *view.after[:after]), []).append(rank)
    groups = group_outputs([(same, _as_outputs(text)) for text, same in ranks_by_text.items()])
    runs = {rank: view.run for rank, view in zip(ranks, views, strict=True)}
    blocks: list[RepeatedBlock] = []
    for group in groups:
        items = find_repeated_lines(block_items(group), group.ranks, indexes=rows)
        if not any(isinstance(item, RepeatedLines) and len(item.line_indexes) == len(rows) for item in items):
            return []
        blocks.append(
            RepeatedBlock(
                group.ranks,
                tuple(
                    _restore_run(item, rows, group.ranks, runs, leader.count)
                    if isinstance(item, RepeatedLines)
                    else item
                    for item in items
                ),
            )
        )
    return blocks


def _line_at(row: int, rank: int, run: _Run, leader_rank: int, leader: _Run) -> str:
    """Return a rank's line; for one that it has not reached, that of another rank, whose values are removed later."""
    line = run.line_at(row) or leader.line_at(row) or ""
    if row < run.count:
        return line
    literals, numbers = split_numbers(line)
    _, own = split_numbers(run.line_at(run.count - 1) or "")
    if len(own) == len(numbers):
        # Each rank's own number is not a difference.
        is_own = [
            theirs.strip() == str(leader_rank) and ours.strip() == str(rank)
            for theirs, ours in zip(numbers, own, strict=True)
        ]
        numbers = [ours if kept else theirs for theirs, ours, kept in zip(numbers, own, is_own, strict=True)]
    return "".join(part for pair in zip(literals, [*numbers, ""], strict=True) for part in pair)


def _choose_rows(views: Sequence[_View]) -> list[int]:
    """Return the indexes of the lines to compare: the first, those in regular distances, and the last."""
    count, stride = max(view.run.count for view in views), max(view.run.stride for view in views)
    while count // stride * len(views) > _MAX_COMPARED:
        stride *= 2
    return sorted({*range(min(count, HEAD_LINES)), *range(0, count, stride), *range(max(0, count - TAIL_LINES), count)})


def _common_ends(views: Sequence[_View]) -> tuple[int, int]:
    """Return how many lines before and after the run to show: those that are of the same form on all ranks."""
    befores = [[_form_of(line) or line for line in reversed(view.run.before)] for view in views]
    before = next(
        (at for at, forms in enumerate(zip(*befores, strict=False)) if len(set(forms)) > 1), min(map(len, befores))
    )
    return before, min(len(view.after) for view in views)


def _as_outputs(lines: Sequence[_Line]) -> list[Output]:
    return [
        {"output_type": "stream", "name": name, "text": "".join(f"{text}\n" for _, text in same)}
        for name, same in groupby(lines, key=lambda line: line[0])
    ]


def _restore_run(
    run: RepeatedLines, rows: Sequence[int], ranks: Sequence[int], runs: Mapping[int, _Run], count: int
) -> RepeatedLines:
    """Return a run that was built from some lines with its real number of lines, and without values that ranks have not printed."""
    if len(run.line_indexes) != len(rows):
        return run
    columns = tuple(
        column
        if isinstance(column[0], str)
        else tuple(
            _remove(slot, [row >= runs[rank].count for rank in ranks]) for slot, row in zip(column, rows, strict=True)
        )
        for column in run.columns
    )
    behind = [rank for rank in ranks if count - runs[rank].count > _LAG_LINES]
    note = " · ".join(
        f"{describe_ranks(list(same))} at {at}" for at, same in groupby(behind, key=lambda rank: runs[rank].count)
    )
    return replace(run, columns=columns, count=count, indexes=tuple(rows), note=note)


def _remove(slot: str | Slot, missing: Sequence[bool]) -> Slot:
    assert isinstance(slot, Slot)
    values = ("" if gone else value for value, gone in zip(slot.values, missing, strict=True))
    return replace(slot, values=tuple(values)) if any(missing) else slot
