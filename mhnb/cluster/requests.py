"""Requests to several ranks at once, their errors, and metadata requests.

The metadata requests cover variables, comparison by hash, completion and inspection; they transfer no value.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from mhnb.core.guard.value_check import CheckRow, compare_leaves
from mhnb.core.messages import RankReply
from mhnb.core.ranks import describe_ranks
from mhnb.core.transfer import MAX_IN_FLIGHT
from mhnb.core.typed_json import convert
from mhnb.core.variables import VariableInfo, VariableRow, merge_variables
from mhnb.errors import ClusterError, InvalidRequest, NameMissing

T = TypeVar("T")
_transfer_numbers = itertools.count(1)
_open_transfers: set[str] = set()
"""Transfers of this process that are under way; a rank releases all others."""


class RankClient(Protocol):
    """Interface that sends requests to ranks; the cluster implements it."""

    @property
    def process_count(self) -> int:
        """Number of ranks."""

    def ask(
        self, rank: int, handler: str, arguments: dict[str, Any], payload: tuple[Any, ...] = ()
    ) -> Future[RankReply]:
        """Send a request between cells; a rank answers its requests in order."""

    def ask_all(
        self,
        ranks: Iterable[int],
        handler: str,
        arguments: dict[str, Any],
        on_success: Callable[[], None] | None = None,
    ) -> dict[int, Future[RankReply]]:
        """Send the same request to several ranks, with no cell between them.

        `on_success` is called once all have succeeded, before the end of any cell that is submitted later.
        """

    def interrupt_requests(self) -> None:
        """Interrupt what the ranks do between cells. They answer all the same."""


@dataclass(frozen=True, slots=True)
class TransferJob:
    """One request of a transfer, with the function for the reply's payload."""

    rank: int
    handler: str
    arguments: dict[str, Any]
    payload: tuple[Any, ...] = ()
    on_payload: Callable[[Any], None] | None = None
    nbytes: int = 0
    """Bytes that it transfers, in either direction."""


@dataclass(slots=True)
class Transfer:
    """Transfer under way, with the ranks that retain data for it."""

    client: RankClient
    number: str
    retaining_ranks: set[int] = field(default_factory=set)

    @property
    def open_numbers(self) -> list[str]:
        """Numbers of all transfers whose data ranks must retain, with this one."""
        return sorted(_open_transfers)


@contextmanager
def open_transfer(client: RankClient) -> Iterator[Transfer]:
    """Open a numbered transfer; at its end, release the ranks' retained data."""
    transfer = Transfer(client, str(next(_transfer_numbers)))
    _open_transfers.add(transfer.number)
    try:
        yield transfer
    finally:
        _open_transfers.discard(transfer.number)
        for rank in sorted(transfer.retaining_ranks):
            # The replies are not awaited: Ctrl-C must not hang here, and a lost rank retains nothing.
            client.ask(rank, "release", {"transfer": transfer.number})


@contextmanager
def interrupting_requests(client: RankClient) -> Iterator[None]:
    """Interrupt the ranks' work for the block if Ctrl-C ends it.

    User code on a rank may run forever. Requests are sent inside the block, because Ctrl-C may come between the request
    and the wait for its answer.
    """
    try:
        yield
    except KeyboardInterrupt:
        client.interrupt_requests()
        raise


def call_after_success(futures: Collection[Future[RankReply]], callback: Callable[[], None]) -> None:
    """Call back once all requests have succeeded, in the last answer's thread."""
    succeeded = itertools.count(1)

    def note(future: Future[RankReply]) -> None:
        if future.exception() is None and future.result().ok and next(succeeded) == len(futures):
            callback()

    for future in futures:
        future.add_done_callback(note)


def await_reply(rank: int, handler: str, future: Future[RankReply]) -> RankReply:
    """Wait for a reply, inside `interrupting_requests` like its request.

    Raises:
        ClusterError: the rank could not answer; `rank`, `ename` and `traceback` have the details.
    """
    answer = future.result()
    if not answer.ok:
        ename, evalue = answer.value["ename"], answer.value["evalue"]
        raise ClusterError(
            f"rank {rank} could not answer {handler!r}: {ename}: {evalue}",
            rank=rank,
            ename=ename,
            traceback=answer.value["traceback"],
        )
    return answer


def request_all(
    client: RankClient,
    ranks: Iterable[int],
    handler: str,
    arguments: Mapping[str, Any],
    on_success: Callable[[], None] | None = None,
) -> dict[int, RankReply]:
    """Send the same request to several ranks, and wait for all replies."""
    with interrupting_requests(client):
        futures = client.ask_all(ranks, handler, dict(arguments), on_success)
        return {rank: await_reply(rank, handler, future) for rank, future in futures.items()}


def read_values(handler: str, answers: Mapping[int, RankReply], kind: type[T]) -> dict[int, T]:
    """Convert each reply's value to the type expected for this request.

    Raises:
        ClusterError: a value is of another type; `rank` sent it.
    """
    values = {}
    for rank, answer in answers.items():
        try:
            values[rank] = convert(answer.value, kind)
        except ValueError as error:
            raise ClusterError(
                f"rank {rank} sent an unexpected reply to {handler!r}: {error!s:.200}; its version of mhnb may differ\n"
                "  Fix: install the same mhnb on every host; %mhjax doctor compares the versions",
                rank=rank,
            ) from error
    return values


def run_jobs(
    client: RankClient,
    jobs: Iterable[TransferJob],
    *,
    in_flight: int = MAX_IN_FLIGHT,
    on_done: Callable[[TransferJob], None] | None = None,
) -> None:
    """Send requests with a few under way, so that memory stays small.

    Args:
        client: the cluster.
        jobs: the requests, made when it is their turn.
        in_flight: the number of requests that may be under way.
        on_done: called in this thread after each of them.
    """
    pending: deque[tuple[TransferJob, Future[RankReply]]] = deque()
    with interrupting_requests(client):
        for job in jobs:
            pending.append((job, client.ask(job.rank, job.handler, job.arguments, job.payload)))
            if len(pending) >= in_flight:
                _finish_job(*pending.popleft(), on_done)
        while pending:
            _finish_job(*pending.popleft(), on_done)


def _finish_job(
    job: TransferJob,
    future: Future[RankReply],
    on_done: Callable[[TransferJob], None] | None,
) -> None:
    answer = await_reply(job.rank, job.handler, future)
    if job.on_payload is not None:
        job.on_payload(answer.payload[0])
    if on_done is not None:
        on_done(job)


def check_ranks(ranks: Iterable[int] | None, process_count: int) -> tuple[int, ...]:
    """Return the selected ranks, sorted; None selects all.

    Raises:
        InvalidRequest: no rank is selected, or one does not exist.
    """
    if ranks is None:
        return tuple(range(process_count))
    chosen = tuple(sorted(set(ranks)))
    missing = [rank for rank in chosen if not 0 <= rank < process_count]
    if missing or not chosen:
        what = f"unknown rank {missing[0]}" if missing else "no rank was selected"
        raise InvalidRequest(f"{what}; this cluster has {describe_ranks(range(process_count))}", ranks=chosen)
    return chosen


def check_names(names: Sequence[str], command: str) -> tuple[str, ...]:
    """Return the names, if each is a valid variable name.

    Raises:
        InvalidRequest: no name, or a name that is not a variable's.
    """
    if not names:
        raise InvalidRequest(
            f"{command}: expected one or more names of variables; %mhjax vars lists those on the ranks"
        )
    for name in names:
        candidate: object = name
        if not isinstance(candidate, str) or not name.isidentifier():
            several = isinstance(candidate, str) and all(map(str.isidentifier, filter(None, name.split(","))))
            hint = "Separate names by spaces" if several else "Assign the value to a variable first"
            raise InvalidRequest(
                f"{command}: expected names of variables, got {name!r}. {hint}",
                name=name,
            )
    return tuple(names)


# -- requests that transfer no value


@dataclass(frozen=True, slots=True)
class Completion:
    """Completions of code: each match replaces the characters `start:end`."""

    matches: tuple[str, ...]
    start: int
    end: int


def list_variables(client: RankClient, ranks: Sequence[int] | None = None) -> tuple[VariableRow, ...]:
    """List the ranks' variables and where they differ, without reading arrays."""
    answers = request_all(client, check_ranks(ranks, client.process_count), "vars", {})
    return merge_variables(read_values("vars", answers, dict[str, VariableInfo]))


def check_values(client: RankClient, wanted: Sequence[str]) -> tuple[CheckRow, ...]:
    """Compare variables by hash across shard replicas and across ranks.

    Raises:
        InvalidRequest: no name, or a name that is not a variable's.
        NameMissing: a name is missing on some rank.
    """
    checked_names = check_names(wanted, "check")
    answers = request_all(client, check_ranks(None, client.process_count), "check", {"names": checked_names})
    for name in checked_names:
        if missing := [rank for rank, answer in answers.items() if name not in answer.value]:
            rank_text = describe_ranks(missing)
            raise NameMissing(f"{name!r} does not exist on {rank_text}; %mhjax vars lists the variables", name=name)
    by_name = [{rank: answer.value[name] for rank, answer in answers.items()} for name in checked_names]
    return tuple(
        row for name, leaves in zip(checked_names, by_name, strict=True) for row in compare_leaves(name, leaves)
    )


def list_names(client: RankClient, *, rank: int = 0) -> frozenset[str]:
    """Return user-defined names on a rank, including functions and modules."""
    return frozenset(request_all(client, [rank], "names", {})[rank].value)


def complete(client: RankClient, text: str, cursor: int, *, rank: int = 0) -> Completion:
    """Complete code with the names of a rank; `cursor` counts characters."""
    value = request_all(client, [rank], "complete", {"text": text, "cursor": cursor})[rank].value
    return Completion(tuple(value["matches"]), value["start"], value["end"])


def inspect(client: RankClient, name: str, *, detail: int = 0, rank: int = 0) -> dict[str, Any] | None:
    """Return a MIME bundle about a name on a rank, or None."""
    value = request_all(client, [rank], "inspect", {"name": name, "detail": detail})[rank].value
    return dict(value["data"]) if value["found"] else None
