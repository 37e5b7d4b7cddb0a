"""Ctrl-C while requests are being sent ends those that were sent, as it does while their answers are awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import pytest

from mhnb.cluster.requests import TransferJob, request_all, run_jobs
from mhnb.core.messages import RankReply


class _InterruptedFuture(Future[RankReply]):
    def result(self, timeout: float | None = None) -> RankReply:
        del timeout
        raise KeyboardInterrupt


class InterruptedClient:
    """Sends a request to rank 0; Ctrl-C comes before the one to rank 1 is sent, or while the answers are awaited."""

    process_count = 2

    def __init__(self, *, is_sent: bool) -> None:
        self.events: list[str] = []
        self._is_sent = is_sent

    def ask(
        self, rank: int, handler: str, arguments: dict[str, Any], payload: tuple[Any, ...] = ()
    ) -> Future[RankReply]:
        """Record the request."""
        del arguments, payload
        if rank == 1 and not self._is_sent:
            raise KeyboardInterrupt
        self.events.append(f"{handler} to rank {rank}")
        return _InterruptedFuture() if self._is_sent else Future()

    def ask_all(
        self,
        ranks: Iterable[int],
        handler: str,
        arguments: dict[str, Any],
        on_success: Callable[[], None] | None = None,
    ) -> dict[int, Future[RankReply]]:
        """Send the request to each rank."""
        assert on_success is None
        return {rank: self.ask(rank, handler, arguments) for rank in ranks}

    def interrupt_requests(self) -> None:
        """Record the interrupt."""
        self.events.append("interrupt")


@pytest.mark.parametrize(
    "send",
    [
        lambda client: request_all(client, (0, 1), "vars", {}),
        lambda client: run_jobs(client, [TransferJob(rank, "vars", {}) for rank in (0, 1)]),
    ],
)
def test_requests_are_interrupted_while_others_are_sent(send: Callable[[InterruptedClient], object]) -> None:
    """A rank that has begun is interrupted: otherwise an endless `__reduce__` there would go on forever."""
    client = InterruptedClient(is_sent=False)
    with pytest.raises(KeyboardInterrupt):
        send(client)
    assert client.events == ["vars to rank 0", "interrupt"]
    client = InterruptedClient(is_sent=True)
    with pytest.raises(KeyboardInterrupt):
        send(client)
    assert client.events == ["vars to rank 0", "vars to rank 1", "interrupt"], (
        "once: a second signal would hit the answer to the first"
    )
