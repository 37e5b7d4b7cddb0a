"""Group the failures of a cell: ranks that failed in the same way are shown once, the first failure before the others.

Decides what counts as the same way (equal except for numbers), and which ranks only waited for a rank that had failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mhnb.core.output.alike import Folded, Text, fold_outputs
from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.ranks import say_ranks
from mhnb.core.wire.limits import shorten_text
from mhnb.values import Output, RankError
from mhnb.view.ansi import strip_ansi
from mhnb.view.cell.folded import tell_lines
from mhnb.view.cell.trace import full_message, is_frame, says_more, trim_traceback

__all__ = ["Failure", "MISMATCH", "failure_heading", "find_failures"]

MISMATCH = "OrderMismatch"
"""The guard's error. Its text is a report of several lines; the first line gives the effect on the cluster."""
_LONGEST = 4096
"""Characters of a message that is searched for numbers; a longer one contains a whole report."""
_ALL_CHARS = 64 * 1024
"""Characters that all messages of a cell may have together. Their tracebacks may have twice as many."""
_FRAME_CHARS = 1024
_FEW = 4
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")
_CONTEXT = re.compile(r" +\d+(?: .*)?")
"""A line of code around the one that failed. For a function on one line, stack_data shows a varying number of them."""

_SIDE = re.compile(r"^ *ranks? ([\d,-]+) (.*)   line (\d+)\b", re.MULTILINE)
"""One side of the guard's report: its ranks, what they wanted to launch, and the line of the cell that they were on."""
_IN_THREAD = re.compile(r" in (?:a thread|thread|task) ")
"""Matches a launch by a thread or a task. The main thread was refused later, on a line that adds no information."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Ranks that failed in the same way."""

    ranks: tuple[int, ...]
    word: str
    """The exception's name, or the outcome if there is no exception: died, killed, interrupted, refused."""
    error: RankError | None = None
    waited: bool = False
    """Whether they only waited for ranks that had failed before."""
    rank: int = 0
    """The rank with this error: the first of these ranks to fail."""
    message: tuple[str, ...] = ()
    """Lines of the message with each rank's numbers, if these differ. Empty if the message is as in `error`."""
    several_lines: bool = False
    """Whether the ranks were on several lines of the cell. The error's text names each line with its ranks."""


def find_failures(result: CellResult) -> tuple[Failure, ...]:
    """Group the ranks that failed by how they failed.

    The first failure is on top, the others follow by rank, and ranks that only waited for it are last.
    """
    kinds: dict[tuple[object, ...], list[RankResult]] = {}
    words = {_word(failed) for failed in result.failed}
    # Ranks that only waited are shown with their line, without the report.
    kind = _kind_by_report if words == {MISMATCH} else _kind
    for failed in result.failed:
        kinds.setdefault(kind(failed), []).append(failed)
    failures = [
        replace(failure, waited=failure.word == MISMATCH and words != {MISMATCH})
        for same in kinds.values()
        for failure in _fold(same)
    ]
    order = {failed.rank: at for at, failed in enumerate(result.failed)}
    told = sorted(failures, key=lambda failure: (failure.waited, order[failure.rank]))
    # Show the first failure first. Sort the rest by rank, because their timing is arbitrary and users look them up by
    # rank.
    later = sorted(told[1:], key=lambda failure: (failure.waited, failure.error is None, failure.ranks[0]))
    return tuple(_bound(failure, len(told)) for failure in (*told[:1], *later))


def _bound(failure: Failure, count: int) -> Failure:
    """Shorten a message and a traceback, so that `count` failures together stay small. The cell's result has the full text."""
    error, limit = failure.error, max(_LONGEST, _ALL_CHARS // count)
    if error is None or len(error.evalue) + sum(map(len, error.traceback)) <= 3 * limit:
        return failure
    whole = f"the error of rank {failure.rank} in the cell's result"
    short = replace(error, evalue=shorten_text(error.evalue, limit, whole))
    words, brief = (f"{each.ename}: {strip_ansi(each.evalue)}".strip() for each in (error, short))
    lines = [brief if strip_ansi(text).strip() == words else shorten_text(text, limit // 4) for text in error.traceback]
    ends = limit // _FRAME_CHARS
    if sum(map(len, lines)) > 2 * limit and len(lines) > 2 * ends:
        lines[ends:-ends] = [f"[... {len(lines) - 2 * ends:,} frames left out; {whole} has them ...]"]
    return replace(failure, error=replace(short, traceback=tuple(lines)))


def _word(failed: RankResult) -> str:
    return failed.error.ename if failed.error else failed.outcome


def _kind(failed: RankResult) -> tuple[object, ...]:
    """Return what must be equal for errors to be shown once: the exception, its line, its hint, and its call path."""
    error = failed.error
    if error is None:
        return (failed.outcome,)
    # Remove the message only at the end: what a traceback contains before it belongs to the call path.
    way = "\n".join(map(_without_context, trim_traceback(error))).rstrip().removesuffix(_plain(error.evalue).rstrip())
    lines = tuple(line.rstrip() for line in way.splitlines() if line.strip())
    return (failed.outcome, error.ename, error.line, error.code, error.hint, lines)


def _kind_by_report(failed: RankResult) -> tuple[object, ...]:
    """Return the same as `_kind`, or only the guard's report.

    The report suffices if it names the rank's line and the traceback adds nothing to it.
    """
    error = failed.error
    if error is None or says_more(error) or not _names_line(error, failed.rank):
        return _kind(failed)
    return (failed.outcome, error.ename, error.hint, _plain(full_message(error)))


def _names_line(error: RankError, rank: int) -> bool:
    sides = _SIDE.findall(strip_ansi(error.evalue))
    return any(
        _is_among(rank, ranks) and (int(line) == error.line or _IN_THREAD.search(wanted) is not None)
        for ranks, wanted, line in sides
    )


def _is_among(rank: int, ranks: str) -> bool:
    """Return whether a rank is one of `0,2-3`."""
    runs = [re.findall(r"\d+", run) for run in ranks.split(",")]
    return any(run and int(run[0]) <= rank <= int(run[-1]) for run in runs)


def _without_context(piece: str) -> str:
    plain = _plain(piece)
    if not is_frame(plain):
        return plain
    return "\n".join(line for line in plain.splitlines() if not _CONTEXT.fullmatch(line))


def _fold(ranks: Sequence[RankResult]) -> Iterator[Failure]:
    """Merge ranks of one kind whose errors are equal except for numbers.

    Args:
        ranks: the first to fail first.
    """
    by_text: dict[str, list[RankResult]] = {}
    for failed in ranks:
        by_text.setdefault(_plain(full_message(failed.error)) if failed.error else "", []).append(failed)
    if len(by_text) == 1 or not all(map(_is_foldable, ranks)):
        yield from map(_failure, by_text.values())
        return
    said = [([failed.rank for failed in same], [_output(text)]) for text, same in by_text.items()]
    for block in fold_outputs(said):
        if not _reads_well(block):
            yield from (_failure(same) for same in by_text.values() if same[0].rank in block.ranks)
            continue
        failure = _failure([failed for failed in ranks if failed.rank in block.ranks])
        yield failure if block.is_literal else replace(failure, message=tuple(tell_lines(block)))


def _reads_well(block: Folded) -> bool:
    """Return whether a template reads better than a few separate messages. With letters for several numbers it does not."""
    numbers = sum(len(part.template.varying) for part in block.parts if isinstance(part, Text))
    return numbers < 2 or len(block.ranks) > _FEW


def _is_foldable(failed: RankResult) -> bool:
    """Return whether an error's numbers can be separated from its text without loss.

    This excludes a guard report, which names every rank itself, a memory address and a progress bar.
    """
    error = failed.error
    if error is None or error.ename == MISMATCH:
        return False
    text = full_message(error)
    return len(text) <= _LONGEST and _ADDRESS.search(text) is None and "%|" not in text


def _failure(same: Sequence[RankResult]) -> Failure:
    first = same[0]
    several = len({r.error.line for r in same if r.error}) > 1
    return Failure(
        tuple(sorted(r.rank for r in same)), _word(first), first.error, rank=first.rank, several_lines=several
    )


def _plain(text: str) -> str:
    """Remove colours and memory addresses."""
    return _ADDRESS.sub(" at 0x", strip_ansi(text))


def _output(text: str) -> Output:
    return {"output_type": "stream", "name": "stderr", "text": text}


def failure_heading(result: CellResult, failures: Sequence[Failure]) -> str:
    """Format what failed where, as `ValueError on rank 2 · ranks 0-1,3 finished`; an empty string if nothing failed."""
    by_word: dict[str, list[int]] = {}
    for failure in failures:
        if not failure.waited:
            by_word.setdefault(failure.word, []).extend(failure.ranks)
    if not by_word:
        return ""
    told = {failure.error.evalue.splitlines()[0] for failure in failures if failure.error and failure.error.evalue}
    if set(by_word) == {MISMATCH} and len(told) == 1:
        return f"{MISMATCH} · {told.pop()}"
    parts = [f"{word} on {say_ranks(ranks)}" for word, ranks in by_word.items()]
    waited = [rank for failure in failures if failure.waited for rank in failure.ranks]
    if waited:
        parts.append(f"{say_ranks(waited)} {'was' if len(waited) == 1 else 'were'} left waiting")
    for outcome, verb in (("ok", "finished"), ("running", "still running")):
        ranks = [r.rank for r in result.ranks if r.outcome == outcome]
        if ranks:
            parts.append(f"{say_ranks(ranks)} {verb}")
    return " · ".join([*(["--timeout ended it"] if result.how == "timeout" else []), *parts])
