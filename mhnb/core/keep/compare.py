"""Compare a replayed cell with its journal record, and describe the differences."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

from mhnb.core.keep.journal import MAX_TRACE_ROWS, CellRecord, LaunchTrace, TraceRow
from mhnb.core.ranks import describe_ranks

__all__ = ["describe_difference"]

_Key = TypeVar("_Key", bound=Hashable)


def describe_difference(before: CellRecord, now: CellRecord) -> str:
    """Describe how a replayed cell differed from its record, one line per set of ranks; empty if it did the same.

    The comparison covers each rank's outcome, the name of the exception that it raised, and its launches.

    >>> before, now = ({0: "ok", 1: "ok"}, {0: "ok", 1: "error"})
    >>> describe_difference(CellRecord(1, 4, "f()", outcomes=before), CellRecord(2, 4, "f()", outcomes=now))
    'rank 1: before it finished, now it raised an error'
    """
    all_ranks = sorted({*before.outcomes, *now.outcomes})
    endings = _group_ranks(all_ranks, lambda rank: (_format_ending(before, rank), _format_ending(now, rank)))
    lines = [f"{describe_ranks(ranks)}: before {was}, now {is_}" for (was, is_), ranks in endings if was != is_]
    if before.launches is not None and now.launches is not None:
        was_by, is_by = _trace_by_rank(before.launches), _trace_by_rank(now.launches)
        launched = _group_ranks(all_ranks, lambda rank: (was_by.get(rank), is_by.get(rank)))
        lines += [
            f"{describe_ranks(ranks)}: {said}"
            for pair, ranks in launched
            if (said := _describe_launch_difference(*pair))
        ]
    if not lines and (before.how, before.state) != (now.how, now.state):
        lines.append(f"before it left the cluster {_format_end_state(before)}, now {_format_end_state(now)}")
    return "\n".join(lines)


def _format_end_state(record: CellRecord) -> str:
    words = {"timeout": " after its --timeout", "interrupted": " after an interrupt"}
    return record.state + words.get(record.how, "")


def _group_ranks(ranks: Iterable[int], key: Callable[[int], _Key]) -> list[tuple[_Key, list[int]]]:
    same: dict[_Key, list[int]] = {}
    for rank in ranks:
        same.setdefault(key(rank), []).append(rank)
    return list(same.items())


def _format_ending(record: CellRecord, rank: int) -> str:
    outcome = record.outcomes.get(rank)
    if outcome == "error":
        return f"it raised {record.errors.get(rank, 'an error')}"
    words = {
        None: "it did not run the cell",
        "ok": "it finished",
        "interrupted": "it was interrupted",
        "killed": "it was killed",
    }
    return words.get(outcome, f"it {outcome}")


def _trace_by_rank(traces: Iterable[LaunchTrace]) -> dict[int, LaunchTrace]:
    return {rank: trace for trace in traces for rank in trace.ranks}


def _describe_launch_difference(before: LaunchTrace | None, now: LaunchTrace | None) -> str:
    """Describe where two launch sequences diverge; empty if they are equal."""
    if (before and before.hash) == (now and now.hash):
        return ""
    index, was, is_ = _first_difference(before.rows if before else (), now.rows if now else ())
    totals = f"launches: {before.count if before else 0} before, {now.count if now else 0} now"
    if was is None and is_ is None:
        return f"its launches differ after the first {index} ({totals})"
    ambiguous = was is not None and is_ is not None and was[1] == is_[1]
    words = ["none" if row is None else _format_program(row, ambiguous=ambiguous) for row in (was, is_)]
    return f"launch {index + 1} was {words[0]}, now {words[1]} ({totals})"


def _first_difference(
    before: Sequence[TraceRow], now: Sequence[TraceRow]
) -> tuple[int, TraceRow | None, TraceRow | None]:
    """Return the 0-based number of the first launch that differs, and both rows there.

    Runs are maximal, so equal runs have equal lengths.
    """
    index = 0
    for at, (was, is_) in enumerate(zip_longest(before, now)):
        if was is None or is_ is None or (was[0], was[2]) != (is_[0], is_[2]):
            return index, was, is_
        if was[4] != is_[4] and at + 1 == MAX_TRACE_ROWS:
            return index + min(was[4], is_[4]), None, None
        if was[4] < is_[4]:
            return index + was[4], before[at + 1] if at + 1 < len(before) else None, is_
        if was[4] > is_[4]:
            return index + is_[4], was, now[at + 1] if at + 1 < len(now) else None
        index += was[4]
    return index, None, None


def _format_program(row: TraceRow, *, ambiguous: bool) -> str:
    fingerprint, name, _, line, _ = row
    program = f" (program {fingerprint[:6]})" if ambiguous else ""
    return f"{name}{program}{'' if line is None else f' of line {line}'}"
