"""Supervisors as the reader deals with them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest

from mhnb.core.protocol import Beat, Message, StopHost
from mhnb.core.roster import Roster
from mhnb.fleet import end_hosts
from mhnb.link.memory import MemoryLink
from mhnb.watching import HostWatch

WAIT_S = 20.0


@dataclass
class PlayedHost:
    """A supervisor elsewhere, as far as these tests look at it."""

    supervisors: tuple[int, ...] = (0,)
    is_remote: bool = True
    pid: int = 0
    meets: threading.Barrier | None = None
    ended: list[int] = field(default_factory=list)

    def has_exited(self) -> bool:
        return False

    def explain(self) -> str:
        return ""

    def wait(self, pids: tuple[int, ...]) -> None:  # noqa: ARG002  # of the contract
        if self.meets is not None:
            self.meets.wait(WAIT_S)
        self.ended.append(1)

    def release(self) -> None:
        return


class LateLink(MemoryLink):
    """Its supervisors hang up one after the other, at each look."""

    def poll(self, timeout_s: float | None) -> list[Message]:
        self.drop(next(iter(self._peers)))
        return super().poll(timeout_s)


@pytest.mark.parametrize("told", [StopHost(), Beat(0)])
def test_who_is_told_to_stop_is_seen_off(told: StopHost | Beat) -> None:
    """The link stays open until each has hung up; where nobody was told to end, nobody is waited for."""
    link = LateLink()
    watch = HostWatch(link, [PlayedHost((0,)), PlayedHost((1,))])
    ends = {name: link.connect(name) for name in ("s0", "s1")}
    watch.tell(told)
    assert [end.receive(WAIT_S) for end in ends.values()] == [told, told]
    watch.see_off(lambda: 0.0)
    assert set(link._peers) == (set() if isinstance(told, StopHost) else set(ends))


def test_who_does_not_hang_up_is_not_waited_for_for_ever() -> None:
    """Its host may have lost its power in this moment."""
    watch = HostWatch(MemoryLink(), [PlayedHost()])
    watch.tell(StopHost())
    watch.see_off(time.monotonic)


def test_hosts_are_ended_at_once() -> None:
    """Each waits here for the other: one after the other they would not meet."""
    meets = threading.Barrier(2)
    hosts = [PlayedHost((k,), meets=meets) for k in (0, 1)]
    end_hosts(hosts, Roster(["host0", "host1"], ["", ""], [0, 1]))
    assert [host.ended for host in hosts] == [[1], [1]]
