"""What a cell said and did on each rank, as values that the user, the view and the journal share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mhnb.core.explain.where import WhereCard
from mhnb.core.output.content import find_content
from mhnb.core.ranks import say_ranks
from mhnb.errors import CellError, CellFailed, CellInterrupted, CellTimeout, InvalidRequest, OrderMismatch
from mhnb.values import ClusterState, Outcome, Output, RankError

__all__ = ["CellResult", "Group", "KEPT_RESULTS", "RankResult", "STOPPED", "group_by_outputs"]

KEPT_RESULTS = 16
"""How many results a notebook keeps to open a panel over."""
STOPPED = "RankStopped"
"""The error of a rank that was stopped because another one, or the cluster, was."""


@dataclass(frozen=True, slots=True)
class RankResult:
    """One rank's part of a cell."""

    rank: int
    outcome: Outcome
    outputs: tuple[Output, ...] = ()
    """nbformat outputs, as a notebook would store them."""
    error: RankError | None = None
    """The latest that was shown: of a rank that ended well that of a `__repr__`, say; `failure` leaves this out."""
    wall_s: float = 0.0
    omitted_nbytes: int = 0
    """Bytes of text that only the log file has."""
    noise: str = ""
    """Lines of C++ libraries about themselves, such as Gloo's greeting; in none of the streams."""

    @property
    def failure(self) -> RankError | None:
        """The error, unless the cell ended well all the same: that of a `__repr__` stands among the outputs."""
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
    """Ranks whose outputs are equal, in rank order; `outputs` are those of the first."""

    ranks: tuple[int, ...]
    outputs: tuple[Output, ...]
    error: RankError | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CellResult:
    """What every rank did with one cell. Also stands for a cell that still runs: then `done` is false."""

    seq: int
    source: str
    ranks: tuple[RankResult, ...]
    """The ranks that were asked to run it, in rank order."""
    wall_s: float
    """Seconds from the send to the last rank's end, or until now."""
    done: bool = True
    state: ClusterState = "clean"
    """The cluster's state as judged when the cell ended."""
    notes: tuple[str, ...] = ()
    """What the user should know, each a sentence: who differs, why the cluster is tainted, what to do."""
    process_count: int = 0
    how: str = ""
    """"" normally; "interrupted" or "timeout" when mhnb ended the cell."""
    where: WhereCard | None = None
    """Where the ranks are in a cell that runs and lasts."""
    handling: tuple[int, ...] = ()
    """Ranks whose code runs on after it got the interrupt; a second one ends that."""

    def __repr__(self) -> str:
        ending = self.summary() if self.done else f"cell {self.seq} runs"
        return f"<CellResult {self.seq}: {ending}>"

    def __getitem__(self, rank: int) -> RankResult:
        for result in self.ranks:
            if result.rank == rank:
                return result
        ran = ",".join(str(r.rank) for r in self.ranks)
        raise InvalidRequest(f"cell {self.seq} did not run on rank {rank}; it ran on ranks {ran}")

    def __iter__(self) -> Iterator[RankResult]:
        return iter(self.ranks)

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def ok(self) -> bool:
        """Whether the cell ended well on every rank that ran it."""
        return self.done and all(r.outcome == "ok" for r in self.ranks)

    @property
    def is_silent(self) -> bool:
        """Whether it ended well on every rank, and there is nothing to show of it."""
        return (
            self.ok
            and not self.notes
            and not any(r.outputs or r.error or r.noise or r.omitted_nbytes for r in self.ranks)
        )

    @property
    def failed(self) -> tuple[RankResult, ...]:
        """The ranks that did not end well, the first to fail on top; who only missed another one comes after it."""
        bad = [r for r in self.ranks if r.outcome not in ("ok", "running")]
        return tuple(sorted(bad, key=_failure_order))

    @property
    def groups(self) -> tuple[Group, ...]:
        """The ranks folded by equal outputs: the largest group first, then by first rank."""
        return group_by_outputs(self.ranks)

    def check(self) -> CellResult:
        """Return self when the cell ended well on every rank, and nobody stopped it.

        Raises:
            CellFailed: some rank raised or was lost; `result` is this.
            CellInterrupted: the user stopped it.
            CellTimeout: its time limit stopped it.
            OrderMismatch: the ranks did not want the same launches; none of those was made.
        """
        if self.ok and not self.how:
            return self
        kinds: dict[str, type[CellError]] = {"interrupted": CellInterrupted, "timeout": CellTimeout}
        # A cell that was being stopped may have reached its end all the same: whoever stopped it is told, not "ok".
        first = self.failed[0].error if self.failed else None
        if first is not None and first.ename == OrderMismatch.__name__ and not self.how:
            # The error's own name stands before this text wherever it is shown.
            told = self.summary().removeprefix(f"{first.ename} on ")
            raise OrderMismatch(" · ".join(filter(None, (told, first.evalue.partition("\n")[0]))), result=self)
        ended = "ended it ·" if self.failed else "came, but"
        why = f"--timeout {ended} " if self.how == "timeout" else "" if self.failed else "Ctrl-C came, but "
        raise kinds.get(self.how, CellFailed)(why + self.summary(), result=self)

    def summary(self) -> str:
        """One line: what failed where, first to fail first."""
        if not self.failed:
            return f"cell {self.seq} ended well on {say_ranks(r.rank for r in self)}"
        by_word: dict[str, list[int]] = {}
        for failed in self.failed:
            by_word.setdefault(failed.error.ename if failed.error else failed.outcome, []).append(failed.rank)
        waited = by_word.pop(OrderMismatch.__name__) if OrderMismatch.__name__ in by_word and len(by_word) > 1 else []
        parts = [f"{word} on {say_ranks(ranks)}" for word, ranks in by_word.items()]
        parts += [f"{say_ranks(waited)} left waiting"] if waited else []
        others = sorted({r.rank for r in self.ranks} - {r.rank for r in self.failed})
        return " · ".join([*parts, *([f"{say_ranks(others)} finished"] if others else [])])


def _failure_order(failed: RankResult) -> tuple[bool, bool, float, int]:
    error = failed.error
    # Who only missed another rank, or was stopped because one was lost, is not what happened.
    followed = error is not None and error.ename in (OrderMismatch.__name__, STOPPED)
    return error is None, followed, error.at_s if error else 0.0, failed.rank


def group_by_outputs(ranks: Iterable[RankResult]) -> tuple[Group, ...]:
    """Fold ranks with equal outputs together: the largest group first, then by first rank.

    Equal means equal content; display ids and memory addresses (`at 0x7f..`) do not count.

    >>> [group.ranks for group in group_by_outputs([RankResult(0, "ok"), RankResult(1, "ok")])]
    [(0, 1)]
    """
    members: dict[str, list[RankResult]] = {}
    for result in ranks:
        members.setdefault(_content_key(result), []).append(result)
    groups = [Group(tuple(r.rank for r in same), same[0].outputs, same[0].error) for same in members.values()]
    return tuple(sorted(groups, key=lambda g: (-len(g.ranks), g.ranks[0])))


def _content_key(result: RankResult) -> str:
    return "\n".join(map(find_content, result.outputs))
