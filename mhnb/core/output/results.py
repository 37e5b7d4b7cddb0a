"""A cell's results by rank, and the pace of showing them.

View updates are limited: a few at once after a quiet moment, and at most ten in any second. Ranks report late output at different
moments; it is buffered, and shown once all have had time to report it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from mhnb.core.cell_name import format_cell_name
from mhnb.core.hang_report import HangReport
from mhnb.core.metrics import NO_METRICS, Metrics
from mhnb.core.output.normal_form import normalize_output
from mhnb.core.ranks import describe_ranks
from mhnb.core.trace import TraceReport
from mhnb.errors import CellError, CellFailed, CellInterrupted, CellTimeout, InvalidRequest, OrderMismatch
from mhnb.types import ClusterState, Outcome, Output, RankError

_Added = TypeVar("_Added")

MAX_RESULTS = 16
"""How many results a notebook keeps so that a panel can be opened on them."""
LEFT_WAITING = "LeftWaiting"
"""The error of a rank that was freed from a collective which another rank could not complete."""
RANK_STOPPED = "RankStopped"
"""The error of a rank that was stopped because another rank, or the cluster, was stopped or lost."""


@dataclass(frozen=True, slots=True)
class RankResult:
    """One rank's part of a cell."""

    rank: int
    outcome: Outcome
    outputs: tuple[Output, ...] = ()
    """nbformat outputs, as a notebook would store them."""
    error: RankError | None = None
    """The latest error that was shown. If the rank succeeded, it can be that of a `__repr__`; `failure` leaves it out."""
    wall_s: float = 0.0
    omitted_nbytes: int = 0
    """Bytes of text that are only in the log file."""
    noise: str = ""
    """Log lines by C++ libraries, such as Gloo's greeting; they are in none of the streams."""

    @property
    def failure(self) -> RankError | None:
        """The error; None if the rank succeeded, even if a `__repr__` failed."""
        return None if self.outcome == "ok" else self.error

    @property
    def stdout(self) -> str:
        """Everything printed to stdout."""
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        """Everything printed to stderr."""
        return self._stream("stderr")

    @property
    def text(self) -> str | None:
        """text/plain of the last expression; None if it had no value."""
        results = [o for o in self.outputs if o["output_type"] == "execute_result"]
        return results[-1]["data"].get("text/plain") if results else None

    def _stream(self, name: str) -> str:
        return "".join(o["text"] for o in self.outputs if o["output_type"] == "stream" and o["name"] == name)


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks with equal outputs, in rank order; `outputs` are the first's."""

    ranks: tuple[int, ...]
    outputs: tuple[Output, ...]
    error: RankError | None = None


@dataclass(frozen=True, slots=True)
class CarriedNote:
    """A note on an earlier cell, shown only with the next cell."""

    seq: int
    """The number of the earlier cell."""
    words: str
    """What it left, short, as a predicate: `finished on rank 0 only: variables may differ`."""
    details: str
    """All that is known about it, as sentences."""
    execution_count: int | None = None
    """The number that the notebook shows beside the earlier cell, as in `CellResult`."""

    @property
    def name(self) -> str:
        """The earlier cell's name in messages, as in `CellResult`."""
        return format_cell_name(self.seq, self.execution_count)

    def __str__(self) -> str:
        return f"{self.name} {self.words}"


@dataclass(frozen=True, slots=True, repr=False)
class CellResult:
    """Every rank's result of one cell; `done` is false while it runs."""

    seq: int
    source: str
    ranks: tuple[RankResult, ...]
    """The ranks that were to run it, in rank order."""
    wall_s: float
    """Seconds from the send to the last rank's end, or until now."""
    done: bool = True
    state: ClusterState = "clean"
    """The cluster's state as judged when the cell ended."""
    notes: tuple[str, ...] = ()
    """Notes for the user, each a sentence: which ranks differ, why the cluster is tainted, what to do."""
    process_count: int = 0
    how: str = ""
    """"" normally; "interrupted" or "timeout" when mhnb ended the cell."""
    where: HangReport | None = None
    """Where the ranks are, if the cell has been running for a while; of a stopped cell, where they were stuck."""
    handling: tuple[int, ...] = ()
    """Ranks whose code still runs after it received the interrupt; a second interrupt ends it."""
    execution_count: int | None = None
    """The number that the notebook shows beside the cell; None if the cell is not of this kernel's notebook."""
    carried: CarriedNote | None = None
    """What the cell before left behind; None if it left nothing."""
    waiting: str = ""
    """What the cell waits for, if its turn has not come: then it has no ranks yet."""
    added: tuple[object, ...] = ()
    """What features have added, at most one value of each class: `find` returns it."""

    def find(self, kind: type[_Added]) -> _Added | None:
        """Return a feature's added value by its class; None without one."""
        return next((value for value in self.added if isinstance(value, kind)), None)

    @property
    def metrics(self) -> Metrics:
        """The points that its ranks have logged with `mhnb.log`."""
        return self.find(Metrics) or NO_METRICS

    @property
    def trace(self) -> TraceReport | None:
        """The timeline of a cell that ran with `--trace`."""
        return self.find(TraceReport)

    @property
    def name(self) -> str:
        """Its name in messages: `In [7]`, else `cell 12` (mhnb's number)."""
        return format_cell_name(self.seq, self.execution_count)

    @property
    def both_names(self) -> str:
        """The cell's name, plus mhnb's number if the name lacks it."""
        return self.name if self.execution_count is None else f"{self.name} · cell {self.seq} of the cluster"

    def __repr__(self) -> str:
        ending = self.summary() if self.done else f"{self.name} runs"
        return f"<CellResult {self.seq}: {ending}>"

    def __getitem__(self, rank: int) -> RankResult:
        for result in self.ranks:
            if result.rank == rank:
                return result
        ran = ",".join(str(r.rank) for r in self.ranks)
        raise InvalidRequest(f"{self.name} did not run on rank {rank}; it ran on ranks {ran}")

    def __iter__(self) -> Iterator[RankResult]:
        return iter(self.ranks)

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def ok(self) -> bool:
        """Whether the cell succeeded on every rank that ran it."""
        return self.done and all(r.outcome == "ok" for r in self.ranks)

    @property
    def is_silent(self) -> bool:
        """Whether it succeeded on every rank, and there is nothing to show."""
        return (
            self.ok
            and not self.notes
            and self.carried is None
            and not any(self.added)
            and not any(r.outputs or r.error or r.noise or r.omitted_nbytes for r in self.ranks)
        )

    @property
    def failed(self) -> tuple[RankResult, ...]:
        """Ranks that did not succeed: first failure first, waiting ranks last."""
        bad = [r for r in self.ranks if r.outcome not in ("ok", "running")]
        return tuple(sorted(bad, key=_failure_order))

    @property
    def groups(self) -> tuple[Group, ...]:
        """The ranks by equal outputs: largest group first, then by rank."""
        return group_by_outputs(self.ranks)

    def check(self) -> CellResult:
        """Return self if the cell succeeded on every rank without a stop.

        A note of the exception has the error and the line of the rank that failed first.

        Raises:
            CellFailed: some rank raised or was lost; `result` is this.
            CellInterrupted: the user stopped it.
            CellTimeout: its time limit stopped it.
            OrderMismatch: the ranks proposed different launches; none of those was made.
        """
        if self.ok and not self.how:
            return self
        kinds: dict[str, type[CellError]] = {"interrupted": CellInterrupted, "timeout": CellTimeout}
        # A cell that was being stopped may still have reached its end: report the stop, not success.
        first = self.failed[0].error if self.failed else None
        if first is not None and first.ename == OrderMismatch.__name__ and not self.how:
            # The error's name is shown before this text everywhere.
            text = self.summary().removeprefix(f"{first.ename} on ")
            raise OrderMismatch(" · ".join(filter(None, (text, first.evalue.partition("\n")[0]))), result=self)
        ended = "ended it ·" if self.failed else "expired, but"
        why = f"--timeout {ended} " if self.how == "timeout" else "" if self.failed else "Ctrl-C came, but "
        raised = kinds.get(self.how, CellFailed)(why + self.summary(), result=self)
        if first is not None:
            raised.add_note(_describe_error(self.name, self.failed[0].rank, first))
        raise raised

    def summary(self) -> str:
        """Format one line: what failed on which ranks, first failure first."""
        if not self.failed:
            return f"{self.name} succeeded on {describe_ranks(r.rank for r in self)}"
        by_word: dict[str, list[int]] = {}
        for failed in self.failed:
            by_word.setdefault(failed.error.ename if failed.error else failed.outcome, []).append(failed.rank)
        waiting = by_word.pop(LEFT_WAITING, [])
        if len(by_word) > 1:
            waiting = sorted(waiting + by_word.pop(OrderMismatch.__name__, []))
        parts = [f"{word} on {describe_ranks(ranks)}" for word, ranks in by_word.items()]
        parts += [f"{describe_ranks(waiting)} left waiting"] if waiting else []
        others = sorted({r.rank for r in self.ranks} - {r.rank for r in self.failed})
        return " · ".join([*parts, *([f"{describe_ranks(others)} finished"] if others else [])])


def _describe_error(cell_name: str, rank: int, error: RankError) -> str:
    """Return a rank's error and its line, for a script."""
    lines = [": ".join(filter(None, (f"rank {rank}", error.ename, error.evalue.partition("\n")[0])))]
    if error.line is not None:
        lines.append(f"  {cell_name}, line {error.line}: {(error.code or '').strip()}")
    if error.inner_place:
        lines.append(f"  {error.inner_place}: {error.inner_code.strip()}")
    return "\n".join(lines)


def _failure_order(failed: RankResult) -> tuple[bool, bool, float, int]:
    error = failed.error
    # A rank that only waited for another, or was stopped because one was lost, is not the cause.
    followed = error is not None and error.ename in (OrderMismatch.__name__, LEFT_WAITING, RANK_STOPPED)
    return error is None, followed, error.at_s if error else 0.0, failed.rank


def group_by_outputs(ranks: Iterable[RankResult]) -> tuple[Group, ...]:
    """Group ranks by equal outputs: largest group first, then by first rank.

    Display ids and memory addresses (`at 0x7f..`) are not compared.

    >>> [group.ranks for group in group_by_outputs([RankResult(0, "ok"), RankResult(1, "ok")])]
    [(0, 1)]
    """
    members: dict[str, list[RankResult]] = {}
    for result in ranks:
        members.setdefault(_content_key(result), []).append(result)
    groups = [Group(tuple(r.rank for r in same), same[0].outputs, same[0].error) for same in members.values()]
    return tuple(sorted(groups, key=lambda g: (-len(g.ranks), g.ranks[0])))


def _content_key(result: RankResult) -> str:
    return "\n".join(map(normalize_output, result.outputs))


# -- buffer for late output


_DELAY_S, _BUSY_DELAY_S = 0.35, 0.1
"""A rank checks its output every 0.3 s between cells, and every 0.05 s while it runs a cell."""


class LateOutputBuffer:
    """Buffer of late output, so that equal output of ranks appears together."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[CellResult, float]] = {}
        """By number: the cell's current result, and the time at which it is shown."""

    def add(self, result: CellResult, now: float, *, is_busy: bool = False) -> None:
        """Record late output of a cell, which does not delay earlier output.

        Args:
            is_busy: whether the ranks run a cell.
        """
        _, due = self._waiting.get(result.seq, (None, now + (_BUSY_DELAY_S if is_busy else _DELAY_S)))
        self._waiting[result.seq] = (result, due)

    def take_due(self, now: float | None = None) -> list[CellResult]:
        """Return the due results in arrival order; all if `now` is None.

        >>> late = LateOutputBuffer()
        >>> late.add(CellResult(3, "f()", (), wall_s=0.1), now=5.0)
        >>> len(late.take_due(5.1)), len(late.take_due(5.4)), len(late.take_due())
        (0, 1, 0)
        """
        if not self._waiting:
            return []
        ready = [seq for seq, (_, due) in self._waiting.items() if now is None or now >= due]
        return [self._waiting.pop(seq)[0] for seq in ready]


# -- rate limiter for view updates


class RateLimiter:
    """Token bucket: `burst` updates at once, then `rate` per second.

    Any second has at most their sum. The burst shows the first line at once on every rank, not only on the fastest one.
    """

    __slots__ = ("_burst", "_gap_s", "_last_s", "_rate", "_tokens")

    def __init__(self, *, burst: int = 3, rate: int = 7, gap_s: float = 0.03) -> None:
        self._burst, self._rate, self._gap_s = burst, rate, gap_s
        self._tokens, self._last_s = float(burst), float("-inf")

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next update may be sent.

        >>> RateLimiter().wait_s(5.0)
        0.0
        """
        tokens = self._tokens_at(now)
        spacing = self._last_s + self._gap_s - now
        return max(0.0, spacing, 0.0 if tokens >= 1 else (1 - tokens) / self._rate)

    def record_sent(self, now: float) -> None:
        """Count an update that is sent now."""
        self._tokens, self._last_s = self._tokens_at(now) - 1, now

    def idle_s(self, now: float) -> float:
        """Return the seconds since the last update; infinite before the first.

        >>> RateLimiter().idle_s(5.0)
        inf
        """
        return now - self._last_s

    def _tokens_at(self, now: float) -> float:
        if self._last_s == float("-inf"):
            return self._tokens
        return min(float(self._burst), self._tokens + (now - self._last_s) * self._rate)
