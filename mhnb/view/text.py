"""A cell's result as text: for a terminal, and as the form that is stored beside the HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mhnb.core.results import CellResult
from mhnb.view.ansi import strip_ansi
from mhnb.view.digest import MISMATCH, Block, Digest, Failure, clip_outputs, digest, missing_note
from mhnb.view.mime import output_to_text
from mhnb.view.trace import count_user_frames, format_trace_text, trim_traceback
from mhnb.view.words import Places, format_rank_label

__all__ = ["MAX_TEXT_NBYTES", "failure_lines", "format_cell_text"]

MAX_TEXT_NBYTES = 256 * 1024
"""Text of all blocks together; each gets an equal part, and at least 2 KiB."""

_BOLD, _RED, _QUIET, _RESET = "\x1b[1m", "\x1b[1;31m", "\x1b[2m", "\x1b[0m"


def format_cell_text(
    result: CellResult, *, color: bool = False, places: Places | None = None, badge: bool = False
) -> str:
    """Write what every rank said. Empty when there is nothing to say, unless a `badge` says that the ranks ran it."""
    seen = digest(result)
    if seen.empty:
        return f"mhjax · {seen.heading}" if badge else ""
    painter = _Painter(color)
    if badge:
        seen = replace(seen, heading=f"mhjax · {seen.heading}")
    lines = [*_failure_part(result, seen, painter), *_block_part(seen, painter, places or Places()), *seen.notes]
    return "\n".join(lines)


class _Painter:
    """Colours, or none."""

    def __init__(self, color: bool) -> None:  # noqa: FBT001  # the one thing it is about
        self.color = color

    def __call__(self, code: str, text: str) -> str:
        return f"{code}{text}{_RESET}" if self.color and text else text


def _failure_part(result: CellResult, seen: Digest, painter: _Painter) -> Iterator[str]:
    if not seen.failures:
        return
    yield painter(_RED, seen.failure_heading)
    several = len(seen.failures) > 1
    for failure in seen.failures:
        if several:
            yield f"  {painter(_BOLD, format_rank_label(failure.ranks))}: {failure.word}"
        yield from (f"  {line}" for line in failure_lines(failure, result.seq))
        yield from _trace_lines(failure, color=painter.color)


def failure_lines(failure: Failure, seq: int) -> Iterator[str]:
    """Write a failure without its traceback: the cell's line, the message, the cure."""
    error = failure.error
    if error is None:
        return
    if error.ename == MISMATCH and "\n" in error.evalue:
        # It names every side with its line itself; its first line is the heading's.
        yield from (line.removeprefix("  ") for line in strip_ansi(error.evalue).splitlines()[1:])
        return
    if error.line is not None:
        yield f"cell {seq}, line {error.line}:   {(error.code or '').strip()}".rstrip()
    yield from f"{error.ename}: {strip_ansi(error.evalue)}".rstrip(": ").splitlines()
    if error.hint:
        yield f"→ {error.hint}"


def _trace_lines(failure: Failure, *, color: bool) -> Iterator[str]:
    """The traceback where it says more than the cell's line does."""
    error = failure.error
    if error is None or (error.line is not None and count_user_frames(error.traceback) < 2):
        return
    yield from (f"    {line}" for line in format_trace_text(trim_traceback(error), color=color).splitlines())


def _block_part(seen: Digest, painter: _Painter, places: Places) -> Iterator[str]:
    if not seen.blocks:
        return
    verdict = f" · {painter(_BOLD, seen.verdict)}" if seen.verdict else ""
    yield painter(_QUIET, seen.heading) + verdict
    if len(seen.blocks) == 1:
        yield from (f"  {line}" for line in _block_lines(seen.blocks[0], 1, painter, places))
        return
    labels = [format_rank_label(block.ranks) for block in seen.blocks]
    width = max(map(len, labels))
    for label, block in zip(labels, seen.blocks, strict=True):
        shown = label
        for line in _block_lines(block, len(seen.blocks), painter, places):
            yield f"{painter(_BOLD, shown)}{' ' * (width - len(shown))} │ {line}".rstrip()
            shown = ""


def _block_lines(block: Block, blocks: int, painter: _Painter, places: Places) -> list[str]:
    log = places.logs.get(block.ranks[0])
    outputs = clip_outputs(block.outputs, max(2048, MAX_TEXT_NBYTES // blocks), where=log or "the log file")
    text = "".join(
        piece if output["output_type"] == "stream" or piece.endswith("\n") else piece + "\n"
        for output in outputs
        for piece in [output_to_text(output, color=painter.color)]
    )
    lines = text.removesuffix("\n").split("\n") if text else []
    missing = missing_note(block, log)
    return [*lines, *([missing] if missing else [])] or [painter(_QUIET, "(no output)")]
