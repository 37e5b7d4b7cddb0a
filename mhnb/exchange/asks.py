"""Requests to several ranks at once, and the errors for replies that are not ok."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from mhnb.core.exchange.transfer import IN_FLIGHT
from mhnb.core.ranks import say_ranks
from mhnb.core.wire.protocol import Answer
from mhnb.errors import ClusterError, InvalidRequest

__all__ = ["Asker", "Job", "Transfer", "ask_all", "check_names", "check_ranks", "open_transfer", "settle", "stream"]

_NUMBERS = itertools.count(1)
_OPEN: set[str] = set()
"""Transfers of this process that are under way; a rank releases all others."""


class Asker(Protocol):
    """Interface that sends requests to ranks; the cluster implements it."""

    @property
    def process_count(self) -> int:
        """Number of ranks."""

    def ask(self, rank: int, verb: str, arguments: dict[str, Any], payload: tuple[Any, ...] = ()) -> Future[Answer]:
        """Send a request to a rank between cells. Several requests may be under way; a rank answers in order."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a transfer, and the function that takes the payload of the reply."""

    rank: int
    verb: str
    arguments: dict[str, Any]
    payload: tuple[Any, ...] = ()
    take: Callable[[Any], None] | None = None


@dataclass(slots=True)
class Transfer:
    """A transfer under way: its number, and the ranks that retain data for it."""

    asker: Asker
    number: str
    keeping: set[int] = field(default_factory=set)

    @property
    def live(self) -> list[str]:
        """Numbers of the transfers whose data the ranks must retain, including this one."""
        return sorted(_OPEN)


@contextmanager
def open_transfer(asker: Asker) -> Iterator[Transfer]:
    """Number a transfer; at its end, however it ends, ask the ranks that retain data for it to release it."""
    transfer = Transfer(asker, str(next(_NUMBERS)))
    _OPEN.add(transfer.number)
    try:
        yield transfer
    finally:
        _OPEN.discard(transfer.number)
        for rank in sorted(transfer.keeping):
            # The replies are not awaited: Ctrl-C must not hang here, and a lost rank retains nothing.
            asker.ask(rank, "release", {"transfer": transfer.number})


def settle(rank: int, verb: str, future: Future[Answer]) -> Answer:
    """Wait for a reply and return it.

    Raises:
        ClusterError: the rank could not answer; `rank`, `ename` and `traceback` have the details.
    """
    answer = future.result()
    if not answer.ok:
        ename, evalue = answer.value["ename"], answer.value["evalue"]
        raise ClusterError(
            f"rank {rank} could not answer {verb!r}: {ename}: {evalue}",
            rank=rank,
            ename=ename,
            traceback=answer.value["traceback"],
        )
    return answer


def ask_all(asker: Asker, ranks: Iterable[int], verb: str, arguments: Mapping[str, Any]) -> dict[int, Answer]:
    """Send the same request to several ranks at once, and wait for all replies."""
    futures = {rank: asker.ask(rank, verb, dict(arguments)) for rank in ranks}
    return {rank: settle(rank, verb, future) for rank, future in futures.items()}


def stream(asker: Asker, jobs: Iterable[Job], *, in_flight: int = IN_FLIGHT) -> None:
    """Send requests one after another, with a few under way at a time, so that no more than those are in memory."""
    pending: deque[tuple[Job, Future[Answer]]] = deque()
    for job in jobs:
        pending.append((job, asker.ask(job.rank, job.verb, job.arguments, job.payload)))
        if len(pending) >= in_flight:
            _finish(*pending.popleft())
    while pending:
        _finish(*pending.popleft())


def _finish(job: Job, future: Future[Answer]) -> None:
    answer = settle(job.rank, job.verb, future)
    if job.take is not None:
        job.take(answer.payload[0])


def check_ranks(ranks: Iterable[int] | None, process_count: int) -> tuple[int, ...]:
    """Return the selected ranks, sorted; None selects all.

    Raises:
        InvalidRequest: no rank is selected, or one does not exist.
    """
    if ranks is None:
        return tuple(range(process_count))
    chosen = tuple(sorted(set(ranks)))
    absent = [rank for rank in chosen if not 0 <= rank < process_count]
    if absent or not chosen:
        what = f"there is no rank {absent[0]}" if absent else "no rank is named"
        raise InvalidRequest(f"{what}; this cluster has {say_ranks(range(process_count))}", ranks=chosen)
    return chosen


def check_names(names: Sequence[str], verb: str) -> tuple[str, ...]:
    """Return the names, if each is a valid variable name.

    Raises:
        InvalidRequest: no name, or a name that is not a variable's.
    """
    if not names:
        raise InvalidRequest(f"{verb} what? Name one or more variables; %mhjax vars lists what the ranks hold")
    for name in names:
        given: object = name
        if not isinstance(given, str) or not name.isidentifier():
            several = isinstance(given, str) and all(map(str.isidentifier, filter(None, name.split(","))))
            cure = "Separate names by spaces" if several else "Bind the value to a name first, where it comes from"
            raise InvalidRequest(
                f"{verb} takes names of variables, not {name!r}. {cure}",
                name=name,
            )
    return tuple(names)
