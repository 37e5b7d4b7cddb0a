"""Which work of a rank a signal ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from mhnb.core.messages import RankRequest
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.requests.handlers import HANDLERS, handle_request
from mhnb.rank.requests.transfer import HandlerResult


class AskedToStop:
    """The memory of a supervisor that was last asked to stop this cell, or what came after it."""

    report_count = 0

    def __init__(self, seq: int) -> None:
        self.interrupted_seq = seq


@pytest.fixture(autouse=True)
def _own_handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    ("asked", "ends"),
    [
        pytest.param(3, True, id="a request after the last cell"),
        pytest.param(4, True, id="after a cell that this rank did not run"),
        pytest.param(-1, True, id="a signal from elsewhere"),
        pytest.param(2, False, id="a request before the last cell"),
        pytest.param(1, False, id="a request before several cells"),
        pytest.param(0, False, id="a request before the first cell"),
    ],
)
def test_a_late_signal_ends_no_request(asked: int, *, ends: bool) -> None:
    """A signal that was meant for an earlier request, and comes after another cell, ends no later request."""
    interrupts = InterruptDelivery(AskedToStop(asked))
    interrupts.install(())
    interrupts.reset(3)
    interrupts.end_cell()

    def work() -> str:
        signal.raise_signal(signal.SIGINT)
        return "answered"

    if ends:
        with pytest.raises(KeyboardInterrupt, match="the request was interrupted"):
            interrupts.run_request(work)
    else:
        assert interrupts.run_request(work) == "answered"


@pytest.mark.parametrize(("handler", "is_done"), [("commit", True), ("vars", False)])
def test_a_signal_ends_no_push_that_every_rank_can_bind(
    monkeypatch: pytest.MonkeyPatch, handler: str, *, is_done: bool
) -> None:
    """A push is bound on all ranks or on none, and the ranks bind it one by one; other requests end."""

    def work(_: object) -> HandlerResult:
        signal.raise_signal(signal.SIGINT)
        return None, ()

    monkeypatch.setitem(HANDLERS, handler, work)
    interrupts = InterruptDelivery()
    interrupts.install(())
    reply = handle_request(RankRequest(1, handler, {}), {}, rank=0, shell=None, interrupts=interrupts)
    assert reply.ok == is_done


@pytest.mark.parametrize(
    ("asked", "ends"), [(-1, True), (0, False), (1, True)], ids=["elsewhere", "a request", "the cell"]
)
def test_a_late_signal_does_not_end_the_first_cell(asked: int, *, ends: bool) -> None:
    """A signal that was meant for a request before the first cell does not end that cell; one from elsewhere does."""

    def cell() -> str:
        signal.raise_signal(signal.SIGINT)
        return "ended"

    interrupts = InterruptDelivery(AskedToStop(asked))
    interrupts.install((cell.__code__,))
    interrupts.reset(1)
    if ends:
        with pytest.raises(KeyboardInterrupt):
            cell()
    else:
        assert cell() == "ended"
