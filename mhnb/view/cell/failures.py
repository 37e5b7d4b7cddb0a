"""Group a cell's failures, and collapse library frames in tracebacks.

Ranks that failed in the same way are shown once, the first failure before the others. Decides what counts as the same way
(equal except for numbers), and which ranks only waited for a rank that had failed.

A traceback is the list of strings that IPython creates, including colours. Frames of JAX, mhnb, IPython and Python's standard
library are library frames; all others are the user's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from mhnb.core.messages import shorten_text
from mhnb.core.output.answers import read_answer
from mhnb.core.output.folding import OutputGroup, TextPart, group_outputs
from mhnb.core.output.normal_form import align_texts, normalize_text
from mhnb.core.output.results import LEFT_WAITING, RANK_STOPPED, CellResult, RankResult
from mhnb.core.ranks import describe_ranks, describe_ranks_short, split_list
from mhnb.types import Output, RankError
from mhnb.view.ansi import strip_ansi
from mhnb.view.cell.blocks import format_lines
from mhnb.view.html import NOT_YET, join_words

_FRAME = re.compile(r"\s*(?:File (?P<path>.+?):\d+|Cell (?:In\[\d+\]|\d+), line )")
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_FAILED_LINE = re.compile(r"^-+> *(\d+) (.*)$", re.MULTILINE)
"""The line that raised, among the lines around it that IPython shows of a frame."""
_HIDDEN = re.compile(r"\s*\[\.\.\. skipping hidden (\d+) frames?\]")
_SOURCE_NAME, _DIRECT_CAUSE = "JaxStackTraceBeforeTransformation", "direct cause of the following exception"
_CHAINED = re.compile(rf"{_DIRECT_CAUSE}|During handling of the above exception|Exception Group Traceback")
_TITLE_END = "Traceback (most recent call last)"
_SEPARATOR = re.compile(r"-{20,}\s*$")
_MHNB_PATH = re.compile(
    r"[/\\]mhnb[/\\](?:adapters|cli|cluster|core|launchers|magics|rank|sharding|system|teach|transport|view)\b"
)
_LIBRARIES = (
    (re.compile(r"[/\\](?:site|dist)-packages[/\\](?:jax|jaxlib)[/\\]|[/\\]jax[/\\]_src[/\\]"), "jax"),
    (_MHNB_PATH, "mhnb"),
    (re.compile(r"[/\\](?:site|dist)-packages[/\\](?:IPython|ipykernel|ipyparallel)[/\\]"), "IPython"),
    (re.compile(r"<frozen |.*[/\\]lib[/\\]python3\.\d+t?[/\\](?!(?:site|dist)-packages)"), "Python"),
)


@dataclass(frozen=True, slots=True)
class TracePart:
    """A section of a traceback."""

    text: str
    label: str = ""
    """As `… 12 frames inside jax` if the section is collapsed; empty for the user's own frames."""


@dataclass(frozen=True, slots=True)
class _Item:
    text: str
    owner: str | None
    """The library that the frame belongs to; None for the user's frames and for text that is not a frame."""
    frames: int
    is_shown: bool = False
    """Whether its line is shown above the traceback."""


def collapse_traceback(traceback: Iterable[str], shown: RankError | None = None) -> tuple[TracePart, ...]:
    r"""Collapse each run of library frames into one part with a label.

    Args:
        traceback: the traceback's pieces.
        shown: the error whose line is shown above. The frame of that line is collapsed too, if the traceback adds to the line.

    >>> collapse_traceback(["File /v/site-packages/jax/_src/core.py:7, in f\n----> 7 raise", "TypeError: no"])[0].label
    '… 1 frame inside jax'
    """
    if shown is not None and not has_extra_information(shown):
        shown = None
    items = _parse_items(traceback, shown)
    parts = []
    for (is_library, is_shown), run in groupby(items, key=lambda item: (item.owner is not None, item.is_shown)):
        same = list(run)
        text = "\n".join(item.text.rstrip("\n") for item in same)
        parts.append(TracePart(text, _format_label(same) if is_library else _SHOWN_LABEL if is_shown else ""))
    return tuple(parts)


_SHOWN_LABEL = "… the cell's line, as above"


def _parse_items(traceback: Iterable[str], shown: RankError | None) -> list[_Item]:
    return [_parse_item(text, shown) for text in traceback if not _SEPARATOR.match(strip_ansi(text))]


def _parse_item(text: str, shown: RankError | None = None) -> _Item:
    plain = strip_ansi(text)
    hidden = _HIDDEN.match(plain)
    if hidden:  # JAX marks its own frames as hidden, and mhnb does the same
        return _Item(text, "jax", int(hidden[1]))
    frame = _FRAME.match(plain)
    path = frame["path"] if frame else None
    owner = next((name for pattern, name in _LIBRARIES if path and pattern.search(path)), None)
    is_shown = shown is not None and frame is not None and not path and _shows_line(plain, shown)
    return _Item(text, owner, 1 if frame else 0, is_shown)


def _shows_line(frame: str, error: RankError) -> bool:
    """Return whether a frame failed on the line above the message."""
    failed = _FAILED_LINE.search(frame)
    line = error.inner_place.rpartition(" ")[2] or str(error.line)
    return failed is not None and (failed[1], failed[2].strip()) == (
        line,
        (error.inner_code or error.code or "").strip(),
    )


def _format_label(items: list[_Item]) -> str:
    count = sum(item.frames for item in items)
    owners = list(dict.fromkeys(item.owner or "" for item in items))
    return f"… {count} {'frame' if count == 1 else 'frames'} inside {join_words(owners)}"


def is_frame(plain: str) -> bool:
    """Return whether a piece of a traceback, without colours, is a frame."""
    return _FRAME.match(plain) is not None


def trim_traceback(error: RankError) -> tuple[str, ...]:
    """Remove what is already shown above the traceback.

    That is the title with the exception's name, and the message at the end with its notes.
    """
    kept = []
    for text in error.traceback[: len(error.traceback) - len(_trailing_notes(error))]:
        plain = strip_ansi(text).strip()
        title = plain.startswith((f"{error.ename} ", "Traceback ")) and plain.rstrip(":").endswith(_TITLE_END)
        if not title and plain.removesuffix(":") != _final_line(error):
            kept.append(text)
    return tuple(kept)


def split_off_source(error: RankError) -> tuple[str, RankError]:
    """Split off JAX's stack before a transformation.

    JAX raises an error in a transformed function from a `JaxStackTraceBeforeTransformation`, whose stack is that of the original one.

    Returns:
        Its text, which is empty for any other error, and the error without it.
    """
    plain = [strip_ansi(text) for text in error.traceback]
    begin = next((at for at, text in enumerate(plain) if text.startswith(_SOURCE_NAME)), None)
    end = next((at for at, text in enumerate(plain) if _DIRECT_CAUSE in text), None)
    if begin is None or end is None or end < begin:
        return "", error
    source, rest = error.traceback[begin:end], (*error.traceback[:begin], *error.traceback[end + 1 :])
    return "\n".join(text.rstrip("\n") for text in source), replace(error, traceback=rest)


def full_message(error: RankError) -> str:
    """Return an error's message and notes (PEP 678), without its name."""
    return "\n".join([strip_ansi(error.evalue), *_trailing_notes(error)])


def _final_line(error: RankError) -> str:
    return f"{error.ename}: {strip_ansi(error.evalue)}".strip().removesuffix(":")


def _trailing_notes(error: RankError) -> list[str]:
    """Return what follows the message at a traceback's end."""
    notes: list[str] = []
    for text in reversed(error.traceback):
        plain = strip_ansi(text).rstrip()
        if plain.strip().removesuffix(":") == _final_line(error):
            return notes[::-1]
        notes.append(plain)
    return []


def count_user_frames(traceback: Iterable[str]) -> int:
    """Count the frames of the user's own code."""
    items = [_parse_item(text) for text in traceback]
    return sum(item.frames for item in items if item.owner is None)


def has_extra_information(error: RankError) -> bool:
    """Return whether a traceback adds to the cell's line and the message.

    Other frames, a cause and the errors of a group do. So does a syntax error that is not on the cell's line.
    """
    if error.line is None or (error.ename in _SYNTAX and find_caret(error) is None):
        return True
    if count_user_frames(error.traceback) > 1:
        # A function on one line raises on the line that calls it.
        return any(item.frames and not (item.owner or item.is_shown) for item in _parse_items(error.traceback, error))
    return _CHAINED.search("\n".join(error.traceback)) is not None


def find_caret(error: RankError) -> tuple[int, str] | None:
    r"""Return a syntax error's column and mark in the cell's line.

    The line's indent is not counted. None if it is another error, or if another line has the mistake.

    >>> find_caret(RankError("SyntaxError", "invalid syntax", ("    x = = 3\n        ^",), line=1, code="x = = 3"))
    (4, '^')
    """
    if error.ename not in _SYNTAX or not (code := (error.code or "").strip()):
        return None
    found = re.search(rf"^( *){re.escape(code)} *\n( *)(\^+) *$", strip_ansi("\n".join(error.traceback)), re.MULTILINE)
    return (len(found[2]) - len(found[1]), found[3]) if found and len(found[2]) >= len(found[1]) else None


def format_trace_text(traceback: Iterable[str], *, color: bool, shown: RankError | None = None) -> str:
    """Format a traceback as text, collapsed as by `collapse_traceback`."""
    parts = collapse_traceback(traceback, shown)
    if parts and parts[0].label == _SHOWN_LABEL:
        # The text has no folds, so that line would say nothing.
        parts = parts[1:]
    text = "\n".join(f"    {part.label}" if part.label else part.text for part in parts)
    return text if color else strip_ansi(text)


# -- group the failures of a cell


ORDER_MISMATCH = "OrderMismatch"
"""The guard's error. Its text is a report of several lines; the first line gives the effect on the cluster."""
_MAX_MERGED_CHARS = 4096
"""Characters of a message that is searched for numbers; a longer one contains a whole report."""
_MAX_TOTAL_CHARS = 64 * 1024
"""Characters that all messages of a cell may have together. Their tracebacks may have twice as many."""
_CHARS_PER_FRAME = 1024
_FEW_RANKS = 4
_NAMES = {NOT_YET: "not yet"}
_CONTEXT_LINE = re.compile(r" +\d+(?: .*)?")
"""A line of code around the one that failed. For a function on one line, stack_data shows a varying number of them."""

_REPORT_SIDE = re.compile(r"^ *ranks? ([\d,-]+) (.*)   line (\d+)\b", re.MULTILINE)
"""One side of the guard's report: its ranks, what they wanted to launch, and the line of the cell that they were on."""
_REPORT_REST = re.compile(r"^ *ranks? ([\d,-]+) +(?:\d+ more, all different|wait too)", re.MULTILINE)
"""The line of a long report that counts the sides which it does not list."""
_IN_THREAD = re.compile(r" in (?:a thread|thread|task) ")
"""Matches a launch by a thread or a task. The main thread was refused later, on a line that adds no information."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Ranks that failed in the same way."""

    ranks: tuple[int, ...]
    kind: str
    """The exception's name, or the outcome if there is no exception: died, killed, interrupted, refused."""
    error: RankError | None = None
    only_waited: bool = False
    """Whether they only waited for ranks that had failed before."""
    first_rank: int = 0
    """The rank with this error: the first of these ranks to fail."""
    message_lines: tuple[str, ...] = ()
    """Lines of the message with each rank's numbers, if these differ. Empty if the message is as in `error`."""
    has_several_lines: bool = False
    """Whether the ranks were on several lines of the cell. The error's text names each line with its ranks."""


def find_failures(result: CellResult) -> tuple[Failure, ...]:
    """Group the ranks that failed by how they failed.

    The first failure is on top, the others follow by rank, and ranks that only waited for it are last.
    """
    groups: dict[tuple[object, ...], list[RankResult]] = {}
    names = {_name_failure(failed) for failed in result.failed}
    # Ranks that only waited are shown with their line, without the report.
    key_of = _report_key if names == {ORDER_MISMATCH} else _failure_key
    for failed in result.failed:
        groups.setdefault(key_of(failed), []).append(failed)
    failures = [
        replace(failure, only_waited=failure.kind in (ORDER_MISMATCH, LEFT_WAITING) and names != {failure.kind})
        for same in groups.values()
        for failure in _merge_failures(same)
    ]
    order = {failed.rank: at for at, failed in enumerate(result.failed)}
    ordered = sorted(failures, key=lambda failure: (failure.only_waited, order[failure.first_rank]))
    # Show the first failure first. Sort the rest by rank, because their timing is arbitrary and users look them up by
    # rank.
    # Of answers that are not right yet no one is the cause of another.
    first = 0 if are_not_yet(ordered) else 1
    later = sorted(ordered[first:], key=lambda failure: (failure.only_waited, failure.error is None, failure.ranks[0]))
    ordered[first:] = later
    return tuple(_shorten_failure(failure, len(ordered)) for failure in ordered)


def are_not_yet(failures: Sequence[Failure]) -> bool:
    """Return whether the only failures are answers that are not right yet.

    A rank that only waited for one of these is no failure of its own.
    """
    return bool(failures) and all(failure.kind == NOT_YET or failure.only_waited for failure in failures)


def _shorten_failure(failure: Failure, count: int) -> Failure:
    """Shorten a failure's text so that `count` failures together stay small."""
    error, limit = failure.error, max(_MAX_MERGED_CHARS, _MAX_TOTAL_CHARS // count)
    if error is None or len(error.evalue) + sum(map(len, error.traceback)) <= 3 * limit:
        return failure
    full_text = f"the error of rank {failure.first_rank} in the cell's result"
    short = replace(error, evalue=shorten_text(error.evalue, limit, full_text))
    words, brief = (f"{each.ename}: {strip_ansi(each.evalue)}".strip() for each in (error, short))
    lines = [brief if strip_ansi(text).strip() == words else shorten_text(text, limit // 4) for text in error.traceback]
    ends = limit // _CHARS_PER_FRAME
    if sum(map(len, lines)) > 2 * limit and len(lines) > 2 * ends:
        lines[ends:-ends] = [f"[... {len(lines) - 2 * ends:,} frames left out; {full_text} has them ...]"]
    message_lines = shorten_text("\n".join(failure.message_lines), limit, full_text).splitlines()
    return replace(failure, error=replace(short, traceback=tuple(lines)), message_lines=tuple(message_lines))


def _name_failure(failed: RankResult) -> str:
    return failed.error.ename if failed.error else failed.outcome


def _failure_key(failed: RankResult) -> tuple[object, ...]:
    """Return what errors must share to be shown as one."""
    error = failed.error
    if error is None:
        return (failed.outcome,)
    # Remove the message only at the end: what a traceback contains before it belongs to the call path.
    call_path = (
        "\n".join(map(_without_context, trim_traceback(error))).rstrip().removesuffix(_normalise(error.evalue).rstrip())
    )
    lines = tuple(line.rstrip() for line in call_path.splitlines() if line.strip())
    return (failed.outcome, error.ename, error.line, error.code, error.hint, lines)


def _report_key(failed: RankResult) -> tuple[object, ...]:
    """Return the same as `_failure_key`, or only the guard's report.

    The report suffices if it names the rank's line and the traceback adds nothing to it.
    """
    error = failed.error
    if error is None or has_extra_information(error) or not _names_line(error, failed.rank):
        return _failure_key(failed)
    return (failed.outcome, error.ename, error.hint, _normalise(full_message(error)))


def _names_line(error: RankError, rank: int) -> bool:
    text = strip_ansi(error.evalue)
    sides = _REPORT_SIDE.findall(text)
    return any(_is_among(rank, ranks) for ranks in _REPORT_REST.findall(text)) or any(
        _is_among(rank, ranks) and (int(line) == error.line or _IN_THREAD.search(wanted) is not None)
        for ranks, wanted, line in sides
    )


def _is_among(rank: int, ranks: str) -> bool:
    """Return whether a rank is one of `0,2-3`."""
    runs = [re.findall(r"\d+", run) for run in ranks.split(",")]
    return any(run and int(run[0]) <= rank <= int(run[-1]) for run in runs)


def _without_context(piece: str) -> str:
    plain = _normalise(piece)
    if not is_frame(plain):
        return plain
    return "\n".join(line for line in plain.splitlines() if not _CONTEXT_LINE.fullmatch(line))


def _merge_failures(ranks: Sequence[RankResult]) -> Iterator[Failure]:
    """Merge ranks of one kind whose errors are equal except for numbers.

    Args:
        ranks: the first to fail first.
    """
    by_text: dict[str, list[RankResult]] = {}
    for failed in ranks:
        by_text.setdefault(_normalise(_message_of(failed)), []).append(failed)
    if len(by_text) == 1 or not all(map(_is_mergeable, ranks)):
        yield from map(_build_failure, by_text.values())
        return
    outputs = [([failed.rank], [_as_stream_output(_message_of(failed))]) for failed in ranks]
    is_not_yet = _name_failure(ranks[0]) == NOT_YET
    for block in group_outputs(outputs, may_list_numbers=is_not_yet):
        if is_not_yet and not _is_template_readable(block):
            yield from (_build_failure(same) for same in by_text.values() if same[0].rank in block.ranks)
            continue
        failure = _build_failure([failed for failed in ranks if failed.rank in block.ranks])
        yield failure if block.is_literal else replace(failure, message_lines=tuple(format_lines(block)))


def _is_template_readable(block: OutputGroup) -> bool:
    """Return whether a template reads better than a row for each rank.

    The card of an exercise has such rows.
    """
    numbers = sum(len(part.template.varying) for part in block.parts if isinstance(part, TextPart))
    return numbers < 2 or len(block.ranks) > _FEW_RANKS


def _message_of(failed: RankResult) -> str:
    return full_message(failed.error) if failed.error else ""


def _is_mergeable(failed: RankResult) -> bool:
    """Return whether numbers can be separated from an error's text losslessly.

    This excludes a guard report, which names every rank itself, and a progress bar.
    """
    error = failed.error
    if error is None or error.ename == ORDER_MISMATCH:
        return False
    text = full_message(error)
    return len(text) <= _MAX_MERGED_CHARS and "%|" not in text


def _build_failure(same: Sequence[RankResult]) -> Failure:
    first = same[0]
    aligned, *_ = align_texts(list(map(_message_of, same)))
    has_several = len({r.error.line for r in same if r.error}) > 1
    return Failure(
        tuple(sorted(r.rank for r in same)),
        _name_failure(first),
        first.error,
        first_rank=first.rank,
        message_lines=() if aligned == _message_of(first) else tuple(aligned.splitlines()),
        has_several_lines=has_several,
    )


def _normalise(text: str) -> str:
    """Remove colours and what differs by rank without meaning."""
    return normalize_text(strip_ansi(text))


def _as_stream_output(text: str) -> Output:
    return {"output_type": "stream", "name": "stderr", "text": text}


# -- a rank that was lost


_LOST_KINDS = ("RankDied", RANK_STOPPED)


@dataclass(frozen=True, slots=True)
class LossReport:
    """The verdict on lost ranks, which says more than their errors."""

    heading: str
    """As `rank 3 (host3, pid 4714) was killed by SIGKILL (often by the memory limit) · last line: "loading shard 3" · log …`."""
    lines: tuple[str, ...]
    """What happened to the other ranks, what helps, and the command that restores the state."""


def find_loss(result: CellResult, failures: Sequence[Failure]) -> LossReport | None:
    """Return the report on lost ranks.

    None if no rank was lost, or if the verdict says nothing about it.
    """
    lost = [failure for failure in failures if is_loss(failure)]
    if not lost or not result.notes or result.state != "dead":
        return None
    heading, *lines = [line.strip() for note in result.notes for line in note.splitlines()]
    died = [failure for failure in lost if failure.kind != RANK_STOPPED]
    if any(failure.error is not None and failure.error.evalue == heading for failure in died):
        # A host was lost: the verdict does not name its ranks.
        lines[:1] = [". ".join([_format_lost_ranks(lost), *lines[:1]])]
    finished = [rank.rank for rank in result.ranks if rank.outcome == "ok"]
    hints = dict.fromkeys(f"→ {failure.error.hint}" for failure in lost if failure.error and failure.error.hint)
    ended = [f"{describe_ranks(finished)} had finished the cell"] if finished else []
    return LossReport(heading, (*lines, *hints, *ended))


def _format_lost_ranks(lost: Sequence[Failure]) -> str:
    parts = []
    for kind, verb in zip(_LOST_KINDS, ("lost", "stopped"), strict=True):
        if ranks := [rank for failure in lost if failure.kind == kind for rank in failure.ranks]:
            parts.append(f"{describe_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'} {verb} with it")
    return ", ".join(parts)


def is_loss(failure: Failure) -> bool:
    """Return whether ranks were lost, or stopped because others were."""
    return failure.kind in _LOST_KINDS and failure.error is not None and not failure.error.traceback


# -- in one line


_MAX_KINDS = 2
_MAX_HEADING_KINDS = 4


def format_raised_error(result: CellResult) -> str:
    """Format the one-line error below the report; empty without a failure.

    >>> from mhnb.types import RankError
    >>> format_raised_error(CellResult(1, "", (RankResult(2, "error", error=RankError("ValueError", "no")),), 0.1))
    'ValueError on rank 2; details above'
    """
    ranks: dict[str, list[int]] = {}
    for failed in result.failed:
        ranks.setdefault(_name_failure(failed), []).append(failed.rank)
    causes = [kind for kind in ranks if kind not in (ORDER_MISMATCH, LEFT_WAITING, RANK_STOPPED)] or list(ranks)
    if not causes:
        return ""
    if result.how == "timeout":
        return "--timeout ended it; details above"
    if causes == [ORDER_MISMATCH]:
        return f"a launch was refused on {describe_ranks_short(ranks[ORDER_MISMATCH])}; details above"
    words = ", ".join(f"{kind} on {describe_ranks_short(ranks[kind])}" for kind in causes[:_MAX_KINDS])
    more = len(causes) - _MAX_KINDS
    return f"{words}{f' and {more} more' if more > 0 else ''}; details above"


def format_failure_heading(result: CellResult, failures: Sequence[Failure]) -> str:
    """Format what failed on which ranks; empty if nothing failed."""
    by_kind: dict[str, list[int]] = {}
    for failure in failures:
        if not failure.only_waited:
            by_kind.setdefault(failure.kind, []).extend(failure.ranks)
    if not by_kind:
        return ""
    first_lines = {
        failure.error.evalue.splitlines()[0] for failure in failures if failure.error and failure.error.evalue
    }
    if set(by_kind) == {ORDER_MISMATCH} and len(first_lines) == 1:
        return f"{ORDER_MISMATCH} · {first_lines.pop()}"
    shown, rest = split_list(list(by_kind.items()), _MAX_HEADING_KINDS)
    parts = [f"{_NAMES.get(word, word)} on {describe_ranks(ranks)}" for word, ranks in shown]
    if rest:
        parts.append(f"{len(rest)} other errors on {describe_ranks(rank for _, ranks in rest for rank in ranks)}")
    waited = [rank for failure in failures if failure.only_waited for rank in failure.ranks]
    if waited:
        parts.append(f"{describe_ranks(waited)} {'was' if len(waited) == 1 else 'were'} left waiting")
    right = {r.rank for r in result.ranks if r.outcome == "ok" and are_not_yet(failures) and _has_right_answer(r)}
    parts += [f"right on {describe_ranks(right)}"] if right else []
    for outcome, verb in (("ok", "finished"), ("running", "still running")):
        ranks = [r.rank for r in result.ranks if r.outcome == outcome and r.rank not in right]
        if ranks:
            parts.append(f"{describe_ranks(ranks)} {verb}")
    return " · ".join([*(["--timeout ended it"] if result.how == "timeout" else []), *parts])


def is_only_right(rank: RankResult) -> bool:
    """Return whether a rank's outputs are only right answers or errors.

    An answer that also shows a value does not count. The card of answers that are not right yet has the others.
    """
    if rank.omitted_nbytes:
        return False
    return all(
        (answer := read_answer(output)) is not None
        and answer.is_right
        and "\n" not in str(output["data"]["text/plain"])
        for output in rank.outputs
        if output["output_type"] != "error"
    )


def _has_right_answer(rank: RankResult) -> bool:
    return any(answer is not None and answer.is_right for answer in map(read_answer, rank.outputs))
