"""Who failed in a cell, and how: ranks that failed in the same way are told of once, who failed first before the others.

Decides what the same way is (the same but for numbers), and who only waited for a rank that had failed.
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
"""The guard's error: its text is a report of several lines, the first of which says what became of the cluster."""
_LONGEST = 4096
"""Characters of a message that is searched for numbers; a longer one holds a whole report."""
_ALL_CHARS = 64 * 1024
"""Characters that all messages of a cell may have together, and twice as many of their tracebacks."""
_FRAME_CHARS = 1024
_FEW = 4
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")
_CONTEXT = re.compile(r" +\d+(?: .*)?")
"""A line of code around the one that failed. Of a function on one line stack_data shows more or less of them, by chance."""

_SIDE = re.compile(r"^ *ranks? ([\d,-]+) (.*)   line (\d+)\b", re.MULTILINE)
"""One side of the guard's report: its ranks, what they wanted, and the line of the cell on which they stood."""
_IN_THREAD = re.compile(r" in (?:a thread|thread|task) ")
"""Where the launch was a thread's or a task's own. The main thread was refused later, on a line that says nothing more."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Ranks that failed in the same way."""

    ranks: tuple[int, ...]
    word: str
    """The exception's name, or the outcome where there is none: died, killed, interrupted, refused."""
    error: RankError | None = None
    waited: bool = False
    """Whether they only waited for ranks that had failed before."""
    rank: int = 0
    """Whose error this is: of these ranks the first to fail."""
    message: tuple[str, ...] = ()
    """What the error says, as lines, where the ranks' numbers in it differ: with what each of them wrote. Empty: as in `error`."""
    several_lines: bool = False
    """Whether they stood on several lines of the cell, each of which the error's text names with its ranks."""


def find_failures(result: CellResult) -> tuple[Failure, ...]:
    """Put the ranks that failed together by how: the first to fail on top, then by rank; those who waited for it last."""
    kinds: dict[tuple[object, ...], list[RankResult]] = {}
    words = {_word(failed) for failed in result.failed}
    # Who only waited is told of by the line, without the report.
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
    # Who failed first is the news. When the others did is chance: they are looked up by rank.
    later = sorted(told[1:], key=lambda failure: (failure.waited, failure.error is None, failure.ranks[0]))
    return tuple(_bound(failure, len(told)) for failure in (*told[:1], *later))


def _bound(failure: Failure, count: int) -> Failure:
    """Shorten a message and a traceback, so that `count` failures together stay small; the cell's result has all of them."""
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
    """What must be the same where errors are told of once: what was raised, at which line, its cure, and the way it came."""
    error = failed.error
    if error is None:
        return (failed.outcome,)
    # Only where it ends with the message: what a traceback says before that is the way.
    way = "\n".join(map(_without_context, trim_traceback(error))).rstrip().removesuffix(_plain(error.evalue).rstrip())
    lines = tuple(line.rstrip() for line in way.splitlines() if line.strip())
    return (failed.outcome, error.ename, error.line, error.code, error.hint, lines)


def _kind_by_report(failed: RankResult) -> tuple[object, ...]:
    """As `_kind`, but where the guard's report names the rank's line and there is no more to its way, the report is all of it."""
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
    """Whether a rank is one of `0,2-3`."""
    runs = [re.findall(r"\d+", run) for run in ranks.split(",")]
    return any(run and int(run[0]) <= rank <= int(run[-1]) for run in runs)


def _without_context(piece: str) -> str:
    plain = _plain(piece)
    if not is_frame(plain):
        return plain
    return "\n".join(line for line in plain.splitlines() if not _CONTEXT.fullmatch(line))


def _fold(ranks: Sequence[RankResult]) -> Iterator[Failure]:
    """Put ranks of one kind together whose errors say the same, but for numbers.

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
    """Whether a template reads better than a few messages below each other: with letters for several numbers it does not."""
    numbers = sum(len(part.template.varying) for part in block.parts if isinstance(part, Text))
    return numbers < 2 or len(block.ranks) > _FEW


def _is_foldable(failed: RankResult) -> bool:
    """Whether an error's numbers can be told apart without loss: no report, which names every rank itself, no address, no progress bar."""
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
    """Leave out colours, and addresses in memory."""
    return _ADDRESS.sub(" at 0x", strip_ansi(text))


def _output(text: str) -> Output:
    return {"output_type": "stream", "name": "stderr", "text": text}


def failure_heading(result: CellResult, failures: Sequence[Failure]) -> str:
    """Say what failed where, as `ValueError on rank 2 · ranks 0-1,3 finished`; empty when nothing did."""
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
