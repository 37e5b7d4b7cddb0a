"""Format a cell's result as text, for a terminal and for storage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from mhnb.core.output.folding import RichPart
from mhnb.core.output.results import CellResult
from mhnb.core.output.template import RANK_PLACEHOLDER
from mhnb.core.ranks import describe_many_ranks, describe_ranks, pluralize, split_list
from mhnb.view.ansi import strip_ansi
from mhnb.view.cell.blocks import (
    LOG_HINT,
    OWN_MARK,
    SLOT_MARK,
    BlockItem,
    Loop,
    arrange_items,
    block_items,
    format_bars,
    format_omitted_line,
    format_values,
    slot_letter,
    summarise_slot,
)
from mhnb.view.cell.differences import arrange_differences, format_outlier_values
from mhnb.view.cell.failures import (
    ORDER_MISMATCH,
    Failure,
    are_not_yet,
    find_caret,
    format_trace_text,
    full_message,
    has_extra_information,
    trim_traceback,
)
from mhnb.view.cell.summary import Block, CellSummary, list_outlier_values, summarise_cell
from mhnb.view.html import RankLocations, join_words
from mhnb.view.mime import output_to_text
from mhnb.view.print_text import print_lines
from mhnb.view.reports.hang import build_past_hang
from mhnb.view.reports.lesson import format_difference, format_hint_call, parse_difference
from mhnb.view.reports.memory import build_shortage
from mhnb.view.reports.metrics import format_card_lines

MAX_TEXT_NBYTES = 32 * 1024
"""Text of all blocks together; each gets an equal part, and at least 1 KiB."""
MAX_FAILURES = 4
"""Failures of a cell that are always shown. In HTML the rest are in a fold."""
_MAX_FAILURE_LINES = 16
"""Lines of more failures and of all that follows them. The first one is always shown in full; the rest are counted."""
_MAX_REST_KINDS = 3
_MAX_ROWS = 4
"""Answers that are not right yet, or lines at which ranks waited."""
_MAX_LABEL_CHARS = 40
"""Characters of a list of ranks that is shown beside their output; a longer one is shown above it."""

_OWN_PLACE = re.compile(r" \(<[^()]*>, line \d+\)$", re.MULTILINE)
"""The place in the message of a syntax error of a cell: `(<cell 7>, line 1)`."""

_BOLD, _RED, _DIM, _RESET = "\x1b[1m", "\x1b[1;31m", "\x1b[2m", "\x1b[0m"


def format_cell_text(
    result: CellResult,
    *,
    color: bool = False,
    locations: RankLocations | None = None,
    badge: bool = False,
    cell_summary: CellSummary | None = None,
) -> str:
    """Format every rank's output and failures as text.

    `badge` adds a line saying that the ranks ran the cell; without it the text is empty if there is nothing to show.
    `cell_summary` is the result's summary, if the caller has it.
    """
    cell_summary, known_locations = cell_summary or summarise_cell(result), locations or RankLocations()
    if cell_summary.is_empty:
        return f"mhjax · {cell_summary.heading}" if badge else ""
    painter = _Colorizer(color)
    if badge:
        cell_summary = replace(cell_summary, heading=f"mhjax · {cell_summary.heading}")
    lines = [
        *_format_failures(cell_summary, painter, known_locations, result.name),
        *_format_blocks(cell_summary, painter, known_locations),
        *(f"  {line}" for line in format_card_lines(cell_summary.metrics)),
        *(() if cell_summary.failures else cell_summary.notes),
        *cell_summary.output_notes,
    ]
    return "\n".join(lines)


class _Colorizer:
    """Adds terminal colours, or none."""

    def __init__(self, color: bool) -> None:  # noqa: FBT001  # the only option
        self.color = color

    def __call__(self, code: str, text: str) -> str:
        return f"{code}{text}{_RESET}" if self.color and text else text

    def plain(self, text: str) -> str:
        return text

    def printed(self, channel: str, text: str) -> str:
        return "(a figure)" if channel == "picture" else text

    def strong(self, shown: str) -> str:
        return self(_BOLD, shown)

    changed = strong
    added = plain

    def quiet(self, shown: str) -> str:
        return self(_DIM, shown)


def _format_failures(
    cell_summary: CellSummary, painter: _Colorizer, locations: RankLocations, cell_name: str
) -> Iterator[str]:
    if not cell_summary.failures:
        return
    if are_not_yet(cell_summary.failures):
        yield from _format_not_yet(cell_summary, painter)
        yield from _format_notes(cell_summary, painter)
        return
    what, separator, more = cell_summary.failure_heading.partition(" · ")
    # The words after the first ones of a loss are no failure, and long.
    heading = (what, separator + more) if cell_summary.loss else (cell_summary.failure_heading, "")
    yield (
        painter(_RED, heading[0])
        + heading[1]
        + ("" if cell_summary.has_status else _format_noise(cell_summary, painter))
    )
    if cell_summary.loss:
        yield from (f"  {line}" for line in cell_summary.loss.lines)
    below = [
        *(f"  {line}" for line in print_lines(build_shortage(cell_summary.shortages))),
        *(f"  {line}" for line in print_lines(build_past_hang(cell_summary.hang))),
        *_format_waiting(cell_summary, painter),
        *_format_notes(cell_summary, painter),
    ]
    is_labelled, source = len(cell_summary.failures) > 1, locations.script_path or cell_name
    failures = [
        (failure, list(_format_own_failure(failure, painter, source, is_labelled=is_labelled)))
        for failure in cell_summary.own_failures
    ]
    shown = _count_shown_failures([len(lines) for _, lines in failures], _MAX_FAILURE_LINES - len(below))
    for _, lines in failures[:shown]:
        yield from lines
    if shown < len(failures):
        yield _format_rest([failure for failure, _ in failures[shown:]], locations)
    yield from below


def _count_shown_failures(line_counts: Sequence[int], max_lines: int) -> int:
    """Return how many failures to show: a few, or those that fit.

    The first one is as long as its message and its traceback, which the user's code has on one process, too.
    """
    shown, rest = split_list(line_counts, MAX_FAILURES)
    if not rest:
        return len(shown)
    sums = list(accumulate(line_counts))
    return max(1, sum(total <= max_lines for total in sums))


def _format_rest(failures: Sequence[Failure], locations: RankLocations) -> str:
    """Format the count of the other failures, with a log.

    Each rank writes its errors to its log. A shell has no magics, so it gets the log's path.
    """
    ranks = sorted(rank for failure in failures for rank in failure.ranks)
    kinds = list(dict.fromkeys(failure.kind for failure in failures))
    more = ", …" if len(kinds) > _MAX_REST_KINDS else ""
    log = locations.logs.get(ranks[0], "") if locations.script_path else f"%mhjax logs {ranks[0]}"
    return (
        f"  … {pluralize(len(failures), 'more failure')} ({', '.join(kinds[:_MAX_REST_KINDS])}{more}) on"
        f" {describe_many_ranks(ranks)}{f': see {log}' if log else ', each in its log'}"
    )


def _format_own_failure(failure: Failure, painter: _Colorizer, source: str, *, is_labelled: bool) -> Iterator[str]:
    lines = list(format_failure_lines(failure, source))
    if is_labelled:
        kind = "" if names_kind(failure, lines) else f" {failure.kind}"
        yield f"  {painter(_BOLD, describe_ranks(failure.ranks))}:{kind}"
    yield from (f"  {line}" for line in lines)
    yield from _format_trace(failure, color=painter.color)


def _format_notes(cell_summary: CellSummary, painter: _Colorizer) -> Iterator[str]:
    style = painter if cell_summary.has_quiet_notes else _Colorizer(color=False)
    yield from (style(_DIM, f"  {line}") for note in cell_summary.notes for line in note.splitlines())


def names_kind(failure: Failure, lines: Sequence[str]) -> bool:
    """Return whether a failure's lines already name its kind."""
    return any(line == failure.kind or line.startswith(f"{failure.kind}: ") for line in lines)


def _format_noise(cell_summary: CellSummary, painter: _Colorizer) -> str:
    return painter(_DIM, f" · {cell_summary.noise_label} in the logs") if cell_summary.noise_label else ""


def _format_not_yet(cell_summary: CellSummary, painter: _Colorizer) -> Iterator[str]:
    """Format answers that are not right yet: exercises, ranks, then differences."""
    failures = [failure for failure in cell_summary.failures if failure.error is not None and not failure.only_waited]
    titles = dict.fromkeys(full_text(failure).partition("\n")[0].removeprefix("not yet · ") for failure in failures)
    where = cell_summary.failure_heading.removeprefix("not yet ")
    yield f"{painter(_BOLD, f'not yet · {join_words(list(titles))}')} {where}"
    if len(failures) == 1:
        yield from full_text(failures[0]).splitlines()[1:]
        yield from _format_waiting(cell_summary, painter)
        return
    differences = [parse_difference(full_text(failure)) for failure in failures]
    for failure, difference in list(zip(failures, differences, strict=True))[:_MAX_ROWS]:
        yield f"  {painter(_BOLD, describe_ranks(failure.ranks))}{f' · {difference.title}' if len(titles) > 1 else ''}"
        yield from (f"  {line}" for line in format_difference(replace(difference, hint="")).splitlines()[1:])
    if rest := failures[_MAX_ROWS:]:
        ranks = [rank for failure in rest for rank in failure.ranks]
        yield f"  … and {pluralize(len(rest), 'more answer')} on {describe_many_ranks(ranks)}"
    yield from (f"  hint  {format_hint_call(title)}" for title in dict.fromkeys(d.title for d in differences if d.hint))
    yield from _format_waiting(cell_summary, painter)


def _format_waiting(cell_summary: CellSummary, painter: _Colorizer) -> Iterator[str]:
    waited = [failure for failure in cell_summary.failures if failure.only_waited]
    for failure in waited[:_MAX_ROWS]:
        yield f"  {painter(_BOLD, describe_ranks(failure.ranks))} {format_waited(failure)}"
    if rest := [rank for failure in waited[_MAX_ROWS:] for rank in failure.ranks]:
        yield f"  {painter(_BOLD, describe_many_ranks(rest))} waited at other lines"


def full_text(failure: Failure) -> str:
    """Return a failure's message, with each rank's numbers if they differ."""
    return "\n".join(failure.message_lines) or (full_message(failure.error) if failure.error else "")


def format_waited(failure: Failure) -> str:
    """Format where ranks were that only waited for one that had failed."""
    error = failure.error
    line = (
        f" at line {error.line}:  {(error.code or '').strip()}" if error is not None and error.line is not None else ""
    )
    return f"waited{line}"


def format_failure_lines(failure: Failure, source: str) -> Iterator[str]:
    """Format a failure's line, message and hint, without its traceback.

    The line is the innermost one of the user's cells. `source` names the cell or script.
    """
    error = failure.error
    if error is None:
        return
    if error.ename == ORDER_MISMATCH and "\n" in error.evalue:
        # The report itself names every side with its line; its first line is in the heading.
        yield from (line.removeprefix("  ") for line in strip_ansi(error.evalue).splitlines()[1:])
        return
    message = full_text(failure)
    if error.line is not None:
        label = f"{error.inner_place or f'{source}, line {error.line}'}:   "
        yield f"{label}{(error.inner_code or error.code or '').strip()}".rstrip()
        if (caret := find_caret(error)) is not None:
            yield " " * (len(label) + caret[0]) + caret[1]
            message = _OWN_PLACE.sub("", message)
    yield from f"{error.ename}: {message}".rstrip(": ").splitlines()
    if error.hint:
        yield f"→ {error.hint}"


def format_trace_label(failure: Failure) -> str:
    """Return a traceback's label, with the rank if ranks' errors differ."""
    return (
        f"traceback of rank {failure.first_rank}" if failure.message_lines or failure.has_several_lines else "traceback"
    )


def _format_trace(failure: Failure, *, color: bool) -> Iterator[str]:
    """Yield the traceback if it adds to the cell's line."""
    error = failure.error
    if error is None or not has_extra_information(error):
        return
    lines = format_trace_text(trim_traceback(error), color=color, shown=error).splitlines()
    if failure.message_lines and lines:
        yield f"    {format_trace_label(failure)}:"
    yield from (f"    {line}" for line in lines)


def _format_blocks(cell_summary: CellSummary, painter: _Colorizer, locations: RankLocations) -> Iterator[str]:
    if not cell_summary.has_status:
        return
    difference = f" · {painter(_BOLD, cell_summary.difference)}" if cell_summary.difference else ""
    carried = painter(_DIM, f"   [{cell_summary.carried}]") if cell_summary.carried else ""
    yield painter(_DIM, cell_summary.heading) + difference + _format_noise(cell_summary, painter) + carried
    if len(cell_summary.blocks) == 1:
        yield from (f"  {line}".rstrip() for line in _format_block(cell_summary.blocks[0], 1, painter, locations))
        return
    labels = [describe_ranks(block.ranks) for block in cell_summary.blocks]
    width = max((len(label) for label in labels if len(label) <= _MAX_LABEL_CHARS), default=0)
    for label, block in zip(labels, cell_summary.blocks, strict=True):
        shown = label
        if len(label) > width:
            # Otherwise the longest list of ranks would indent every line of every block.
            yield painter(_BOLD, label)
            shown = ""
        for line in _format_block(block, len(cell_summary.blocks), painter, locations):
            yield f"{painter(_BOLD, shown)}{' ' * (width - len(shown))} │ {line}".rstrip()
            shown = ""


def _format_block(block: Block, block_count: int, painter: _Colorizer, locations: RankLocations) -> list[str]:
    log = locations.logs.get(block.ranks[0])
    limit = max(1024, MAX_TEXT_NBYTES // block_count)
    if block.rows:
        lines = list(_format_differences(block, painter, limit, log or "the log file"))
    else:
        where = log or "the log file"
        items = arrange_items(block_items(block.output_group), limit, where=where, shows_folded=False)
        lines = [
            *format_outlier_values(list_outlier_values(block), painter),
            *_format_items(items, block.ranks, painter, where),
        ]
    return lines or [painter(_DIM, "(no output)")]


def _format_items(
    items: Sequence[BlockItem | Loop], ranks: Sequence[int], painter: _Colorizer, where: str
) -> Iterator[str]:
    hint = f" · {LOG_HINT}"
    for item in items:
        if isinstance(item, Loop):
            note = format_omitted_line([line.text for line in item.folded], where=where)
            yield from _format_items(item.head, ranks, painter, where)
            yield painter(_DIM, note + hint)
            yield from _format_items(item.tail, ranks, painter, where)
            hint = ""
        else:
            yield from _format_item(item, ranks, painter)


def _format_item(item: BlockItem, ranks: Sequence[int], painter: _Colorizer) -> Iterator[str]:
    if isinstance(item, RichPart):
        for variant_ranks, output in item.variants:
            text = output_to_text(output, color=painter.color)
            if len(item.variants) > 1:
                # The first line of a table is above its columns, and a label would shift it.
                end = "\n" if "\n" in text else " "
                text = f"{describe_ranks(variant_ranks)}:{end}{text}"
            yield from text.splitlines()
        return
    names = [slot_letter(at) for at in range(len(item.slots))]
    yield _insert_names(item.text, names, painter)
    if item.bar_texts:
        yield f"  {painter(_BOLD, 'each')} {format_bars(item, ranks)}"
    for name, slot in zip(names, item.slots, strict=True):
        if not slot.is_bar:
            parts = filter(None, (summarise_slot(slot, ranks), format_values(slot, ranks)))
            yield f"  {painter(_BOLD, name)} {' · '.join(parts)}"


def _insert_names(text: str, names: Sequence[str], painter: _Colorizer) -> str:
    text = text.replace(OWN_MARK, painter(_DIM, RANK_PLACEHOLDER))
    for name in names:
        text = text.replace(SLOT_MARK, f"‹{name}›", 1)
    return text if painter.color else strip_ansi(text)


def _format_differences(block: Block, painter: _Colorizer, limit_nbytes: int, where: str) -> Iterator[str]:
    """Format a block's differences; cut the middle of loops."""
    hint = f" · {LOG_HINT}"
    for part in arrange_differences(block, painter, limit_nbytes, where=where, shows_folded=False):
        yield from part.head
        if part.folded:
            yield painter.quiet(format_omitted_line([""] * part.folded_count, where=where) + hint)
            yield from part.tail
            hint = ""
