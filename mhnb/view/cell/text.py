"""Format a cell's result as text: for a terminal, and as the form that is stored beside the HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mhnb.core.output.alike import Picture
from mhnb.core.output.differ import Row
from mhnb.core.output.results import CellResult
from mhnb.core.output.template import OWN
from mhnb.core.ranks import say_ranks
from mhnb.view.ansi import strip_ansi
from mhnb.view.cell.digest import Block, Digest, digest, noise_label
from mhnb.view.cell.failures import MISMATCH, Failure
from mhnb.view.cell.folded import (
    OWN_MARK,
    SLOT_MARK,
    Item,
    block_items,
    clip_items,
    clip_told,
    letter,
    said_lines,
    sparkline,
    summarise_slot,
    tell_each,
    tell_values,
)
from mhnb.view.cell.nearby import near_changes, shorten
from mhnb.view.cell.recurring import Run, find_runs, format_table, run_tables
from mhnb.view.cell.trace import format_trace_text, full_message, says_more, trim_traceback
from mhnb.view.mime import output_to_text
from mhnb.view.words import Places

__all__ = ["MAX_TEXT_NBYTES", "failure_lines", "format_cell_text", "trace_label", "waited_words"]

MAX_TEXT_NBYTES = 32 * 1024
"""Text of all blocks together; each gets an equal part, and at least 1 KiB."""
_CONTEXT = 3
"""Up to this many lines that are equal everywhere are repeated between differences; more are counted."""
_BESIDE = 40
"""Characters of a list of ranks that is shown beside their output; a longer one is shown above it."""
_DRAWN = 16

_BOLD, _RED, _QUIET, _RESET = "\x1b[1m", "\x1b[1;31m", "\x1b[2m", "\x1b[0m"


def format_cell_text(
    result: CellResult,
    *,
    color: bool = False,
    places: Places | None = None,
    badge: bool = False,
    seen: Digest | None = None,
) -> str:
    """Format every rank's output. Return an empty string if there is nothing to show and `badge` is not set.

    `badge` adds a line saying that the ranks ran the cell. `seen` is the result's summary, if the caller has it.
    """
    seen, where = seen or digest(result), places or Places()
    if seen.empty:
        return f"mhjax · {seen.heading}" if badge else ""
    painter = _Painter(color)
    if badge:
        seen = replace(seen, heading=f"mhjax · {seen.heading}")
    noise = [painter(_QUIET, f"({noise_label(result)} folded away; the log files have them)")] if seen.noise else []
    lines = [
        *_failure_part(seen, painter, where.name_source(result.seq)),
        *_block_part(seen, painter, where),
        *noise,
        *seen.notes,
    ]
    return "\n".join(lines)


class _Painter:
    """Adds terminal colours, or none."""

    def __init__(self, color: bool) -> None:  # noqa: FBT001  # the only option
        self.color = color

    def __call__(self, code: str, text: str) -> str:
        return f"{code}{text}{_RESET}" if self.color and text else text


def _failure_part(seen: Digest, painter: _Painter, source: str) -> Iterator[str]:
    if not seen.failures:
        return
    yield painter(_RED, seen.failure_heading)
    several = len(seen.failures) > 1
    for failure in seen.failures:
        if failure.waited:
            yield f"  {painter(_BOLD, say_ranks(failure.ranks))} {waited_words(failure)}"
            continue
        if several:
            yield f"  {painter(_BOLD, say_ranks(failure.ranks))}: {failure.word}"
        yield from (f"  {line}" for line in failure_lines(failure, source))
        yield from _trace_lines(failure, color=painter.color)


def waited_words(failure: Failure) -> str:
    """Format where ranks were that only waited for one that had failed."""
    error = failure.error
    line = (
        f" at line {error.line}:  {(error.code or '').strip()}" if error is not None and error.line is not None else ""
    )
    return f"waited{line}"


def failure_lines(failure: Failure, source: str) -> Iterator[str]:
    """Format a failure without its traceback: the line of the cell or script that is `source`, the message, the hint."""
    error = failure.error
    if error is None:
        return
    if error.ename == MISMATCH and "\n" in error.evalue:
        # The report itself names every side with its line; its first line is in the heading.
        yield from (line.removeprefix("  ") for line in strip_ansi(error.evalue).splitlines()[1:])
        return
    if error.line is not None:
        yield f"{source}, line {error.line}:   {(error.code or '').strip()}".rstrip()
    message = "\n".join(failure.message) or full_message(error)
    yield from f"{error.ename}: {message}".rstrip(": ").splitlines()
    if error.hint:
        yield f"→ {error.hint}"


def trace_label(failure: Failure) -> str:
    """Return the label of a traceback. It names the rank if the ranks' errors differ in numbers, or in their lines."""
    return f"traceback of rank {failure.rank}" if failure.message or failure.several_lines else "traceback"


def _trace_lines(failure: Failure, *, color: bool) -> Iterator[str]:
    """Yield the traceback if it adds to the cell's line."""
    error = failure.error
    if error is None or not says_more(error):
        return
    lines = format_trace_text(trim_traceback(error), color=color).splitlines()
    if failure.message and lines:
        yield f"    {trace_label(failure)}:"
    yield from (f"    {line}" for line in lines)


def _block_part(seen: Digest, painter: _Painter, places: Places) -> Iterator[str]:
    if not seen.blocks:
        return
    verdict = f" · {painter(_BOLD, seen.verdict)}" if seen.verdict else ""
    yield painter(_QUIET, seen.heading) + verdict
    if len(seen.blocks) == 1:
        yield from (f"  {line}".rstrip() for line in _block_lines(seen.blocks[0], 1, painter, places))
        return
    labels = [say_ranks(block.ranks) for block in seen.blocks]
    width = max((len(label) for label in labels if len(label) <= _BESIDE), default=0)
    for label, block in zip(labels, seen.blocks, strict=True):
        shown = label
        if len(label) > width:
            # Otherwise the longest list of ranks would indent every line of every block.
            yield painter(_BOLD, label)
            shown = ""
        for line in _block_lines(block, len(seen.blocks), painter, places):
            yield f"{painter(_BOLD, shown)}{' ' * (width - len(shown))} │ {line}".rstrip()
            shown = ""


def _block_lines(block: Block, blocks: int, painter: _Painter, places: Places) -> list[str]:
    log = places.logs.get(block.ranks[0])
    limit = max(1024, MAX_TEXT_NBYTES // blocks)
    if block.rows:
        lines = clip_told(list(_row_lines(block, painter)), limit, where=log or "the log file")
    else:
        items = clip_items(block_items(block.folded), limit, where=log or "the log file")
        lines = [line for item in find_runs(items, block.ranks) for line in _item_lines(item, block.ranks, painter)]
    return lines or [painter(_QUIET, "(no output)")]


def _item_lines(item: Item | Run, ranks: Sequence[int], painter: _Painter) -> Iterator[str]:
    if isinstance(item, Picture):
        for whose, output in item.variants:
            label = f"{say_ranks(whose)}: " if len(item.variants) > 1 else ""
            yield from (label + output_to_text(output, color=painter.color)).splitlines()
        return
    text = item.text.replace(OWN_MARK, painter(_QUIET, OWN))
    names = [letter(at) for at in range(len(item.columns if isinstance(item, Run) else item.slots))]
    for name in names:
        text = text.replace(SLOT_MARK, f"‹{name}›", 1)
    shown = text if painter.color else strip_ansi(text)
    if isinstance(item, Run):
        yield f"{shown}   {painter(_QUIET, f'× {item.count} lines')}"
        for table in run_tables(item, ranks, names):
            yield from (f"  {line}" for line in format_table(table))
        return
    yield shown
    if item.each:
        yield f"  {painter(_BOLD, 'each')} {tell_each(item, ranks)}"
    for name, slot in zip(names, item.slots, strict=True):
        if not slot.is_bar:
            told = filter(None, (sparkline(slot), summarise_slot(slot, ranks), tell_values(slot, ranks)))
            yield f"  {painter(_BOLD, name)} {' · '.join(told) if len(ranks) > _DRAWN else '  '.join(told)}"


def _row_lines(block: Block, painter: _Painter) -> Iterator[str]:
    """Format a block's differences from the majority: `loss 0.731 ← 0.312 elsewhere`."""
    marked = any(row.kind in ("added", "missing") for row in block.rows)
    lines, at = said_lines(block.folded), 0
    for row in block.rows:
        if row.kind == "same":
            if row.count <= _CONTEXT:
                yield from (f"{'  ' if marked else ''}{text}" for _, text in lines[at : at + row.count])
            else:
                yield painter(_QUIET, f"… {row.count} lines as on {say_ranks(block.usual)} …")
        elif row.kind == "added":
            yield f"+ {row.here}"
        elif row.kind == "missing":
            yield painter(_QUIET, f"- {shorten(row.there)}   ← elsewhere")
        else:
            yield from _changed_lines(row, painter, "  " if marked else "")
        at += 0 if row.kind == "missing" else row.count


def _changed_lines(row: Row, painter: _Painter, indent: str) -> Iterator[str]:
    spans = near_changes(row)
    changed = [span for span in spans if span.there is not None]
    here = "".join(span.here if span.there is None else painter(_BOLD, span.here) for span in spans)
    if len(changed) == 1 and changed[0].here and changed[0].there:
        yield f"{indent}{here} {painter(_QUIET, f'← {changed[0].there} elsewhere')}"
    else:
        yield indent + here
        there = "".join(span.here if span.there is None else span.there for span in spans)
        yield painter(_QUIET, f"{indent}← {there} elsewhere")
