"""Who failed in a cell, and how: ranks that failed in the same way are told of once, who failed first before the others.

Decides what the same way is, and who only waited for a rank that had failed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mhnb.core.ranks import say_ranks
from mhnb.core.results import CellResult, RankResult
from mhnb.values import RankError
from mhnb.view.ansi import strip_ansi

__all__ = ["Failure", "MISMATCH", "failure_heading", "find_failures"]

MISMATCH = "OrderMismatch"
"""The guard's error: its text is a report of several lines, the first of which says what became of the cluster."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")


@dataclass(frozen=True, slots=True)
class Failure:
    """Ranks that failed in the same way."""

    ranks: tuple[int, ...]
    word: str
    """The exception's name, or the outcome where there is none: died, killed, interrupted, refused."""
    error: RankError | None = None
    waited: bool = False
    """Whether they only waited for ranks that had failed before."""


def find_failures(result: CellResult) -> tuple[Failure, ...]:
    """Put the ranks that failed together by how: the first to fail on top, then by rank; those who waited for it last."""
    alike: dict[tuple[object, ...], list[RankResult]] = {}
    for failed in result.failed:
        alike.setdefault(_failure_key(failed), []).append(failed)
    words = {_word(failed) for failed in result.failed}
    failures = [
        Failure(
            tuple(sorted(r.rank for r in same)),
            _word(same[0]),
            same[0].error,
            waited=_word(same[0]) == MISMATCH and words != {MISMATCH},
        )
        for same in alike.values()
    ]
    told = sorted(failures, key=lambda failure: failure.waited)
    # Who failed first is the news. When the others did is chance: they are looked up by rank.
    later = sorted(told[1:], key=lambda failure: (failure.waited, failure.error is None, failure.ranks[0]))
    return (*told[:1], *later)


def _word(failed: RankResult) -> str:
    return failed.error.ename if failed.error else failed.outcome


def _failure_key(failed: RankResult) -> tuple[object, ...]:
    error = failed.error
    if error is None:
        return (failed.outcome,)
    trace = "\n".join(error.traceback)
    return (failed.outcome, error.ename, *(_ADDRESS.sub(" at 0x", strip_ansi(t)) for t in (error.evalue, trace)))


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
