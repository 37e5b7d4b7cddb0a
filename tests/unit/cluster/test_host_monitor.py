"""Supervisors as the event loop handles them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest

from mhnb.cluster.generation import end_hosts
from mhnb.cluster.host_monitor import HostMonitor
from mhnb.core.messages import Heartbeat, HostUp, Message, StopHost
from mhnb.core.state.events import HostExited
from mhnb.core.state.rank_registry import RankRegistry
from tests.support.in_process_transport import InProcessTransport

WAIT_S = 20.0


@dataclass
class FakeHost:
    """A remote supervisor, as far as these tests need one."""

    supervisors: tuple[int, ...] = (0,)
    is_remote: bool = True
    pid: int = 0
    barrier: threading.Barrier | None = None
    ended: list[int] = field(default_factory=list)

    def has_exited(self) -> bool:
        return False

    def explain(self) -> str:
        return ""

    def wait(self, pids: tuple[int, ...]) -> None:  # noqa: ARG002  # of the contract
        if self.barrier is not None:
            self.barrier.wait(WAIT_S)
        self.ended.append(1)

    def release(self) -> None:
        return


class DisconnectingTransport(InProcessTransport):
    """A transport whose supervisors disconnect one after the other, one per poll."""

    def poll(self, timeout_s: float | None) -> list[Message]:
        self.drop(next(iter(self._peers)))
        return super().poll(timeout_s)


@pytest.mark.parametrize("message", [StopHost(), Heartbeat(0)])
def test_stop_waits_until_supervisors_disconnect(message: StopHost | Heartbeat) -> None:
    """The transport stays open until each stopped supervisor has disconnected; without a stop there is no wait."""
    link = DisconnectingTransport()
    watch = HostMonitor(link, [FakeHost((0,)), FakeHost((1,))])
    ends = {name: link.connect(name) for name in ("s0", "s1")}
    watch.broadcast(message)
    assert [end.receive(WAIT_S) for end in ends.values()] == [message, message]
    watch.wait_closed(lambda: 0.0)
    assert set(link._peers) == (set() if isinstance(message, StopHost) else set(ends))


def test_wait_for_disconnects_is_limited() -> None:
    """The wait is limited, because the host may have lost its power at this moment."""
    watch = HostMonitor(InProcessTransport(), [FakeHost()])
    watch.broadcast(StopHost())
    watch.wait_closed(time.monotonic)


def test_hosts_are_ended_concurrently() -> None:
    """Each host waits for the other, so hosts that are ended one after the other would not meet."""
    barrier = threading.Barrier(2)
    hosts = [FakeHost((k,), barrier=barrier) for k in (0, 1)]
    end_hosts(hosts, RankRegistry(["host0", "host1"], ["", ""], [0, 1]))
    assert [host.ended for host in hosts] == [[1], [1]]


@dataclass
class Clock:
    """A clock that the test sets."""

    now: float = 1.0

    def __call__(self) -> float:
        return self.now


def monitor_one_host(timeout_s: float = 20.0) -> tuple[HostMonitor, InProcessTransport, RankRegistry, Clock]:
    """Return the parts of one remote host that has reported and then sent nothing."""
    link, clock = InProcessTransport(), Clock()
    watch = HostMonitor(link, [FakeHost()], timeout_s=timeout_s, real_clock=clock)
    watch.on_message(HostUp(0, 7, "alpha", None), clock.now)
    watch.on_message(Heartbeat(0), clock.now)
    return watch, link, RankRegistry(["host0"], [""], [0]), clock


@pytest.mark.parametrize(("step_s", "lost"), [(30.0, []), (2.0, [0])])
def test_suspended_notebook_does_not_lose_its_hosts(step_s: float, lost: list[int]) -> None:
    """A jump in time means that this process was suspended; small steps without a message mean that the host is lost."""
    watch, _, registry, clock = monitor_one_host()
    end, found = clock.now + 30.0, list(watch.find_lost(registry, clock.now))
    while clock.now < end:
        clock.now += step_s
        found += watch.find_lost(registry, clock.now)
    assert [event.supervisor for event in found] == lost


@pytest.mark.parametrize(("has_ranks", "lost"), [(False, []), (True, [0])])
def test_host_may_be_silent_only_while_it_imports(has_ranks: bool, lost: list[int]) -> None:  # noqa: FBT001
    """A host that has reported may still import JAX; a host with ranks has finished its imports."""
    clock = Clock()
    watch = HostMonitor(InProcessTransport(), [FakeHost()], real_clock=clock)
    watch.on_message(HostUp(0, 7, "alpha", None), clock.now)
    if has_ranks:
        watch.note_spawned(0, clock.now)
    registry, found = RankRegistry(["host0"], [""], [0]), list[HostExited]()
    for _ in range(15):
        clock.now += 2.0
        found += watch.find_lost(registry, clock.now)
    assert [event.supervisor for event in found] == lost


def test_host_that_ended_after_a_suspension_is_explained() -> None:
    """A host that ended because this notebook was suspended is explained, with the option that makes hosts wait."""
    watch, link, registry, clock = monitor_one_host()
    link.connect("s0")
    list(watch.find_lost(registry, clock.now))
    clock.now += 55.0
    link.drop("s0")
    (event,) = watch.find_lost(registry, clock.now)
    assert event.cause == (
        "host0 is lost: the connection to it ended\n"
        "  this notebook did not run for 55 s (it was suspended, or its machine slept). "
        "Hosts that hear nothing from it for 40 s stop their ranks, unless the cluster was started with --keep"
    )


def test_host_that_connects_during_a_stop_is_stopped() -> None:
    """A host that connects during a stop is stopped too, because it would otherwise look for a notebook forever."""
    watch, link, _, clock = monitor_one_host()
    watch.broadcast(StopHost())
    late = link.connect("s0")
    late.send(HostUp(0, 7, "alpha", None))

    def ticking() -> float:
        clock.now += 0.5
        return clock.now

    assert watch.wait_closed(ticking) == ()
    assert late.receive(WAIT_S) == StopHost()


def test_detached_host_that_could_not_be_stopped_is_named() -> None:
    """A detached host that could not be stopped is named, because nothing else would end it."""
    watch, link, _, clock = monitor_one_host()
    end = link.connect("s0")
    watch.on_message(Heartbeat(0, outlives_notebook=True), clock.now)
    watch.make_detachable(lambda: True)
    assert end.receive(WAIT_S) == Heartbeat(0, outlives_notebook=True)
    watch.broadcast(StopHost())

    def ticking() -> float:
        clock.now += 2.4
        return clock.now

    assert watch.wait_closed(ticking) == (0,)


@pytest.mark.parametrize("goes", [False, True])
def test_detach_waits_until_each_host_confirms_or_is_lost(goes: bool) -> None:  # noqa: FBT001
    """The owner must not exit before all hosts have confirmed or are lost, because its exit would end the unconfirmed ones."""
    link = InProcessTransport()
    watch = HostMonitor(link, [FakeHost((0,)), FakeHost((1,))])
    ends = [link.connect(name) for name in ("s0", "s1")]
    thread = threading.Thread(target=watch.make_detachable, args=[lambda: True])
    thread.start()
    assert [end.receive(WAIT_S) for end in ends] == [
        Heartbeat(0, outlives_notebook=True),
        Heartbeat(1, outlives_notebook=True),
    ]
    watch.on_message(Heartbeat(0, outlives_notebook=True), 0.0)
    watch.on_message(Heartbeat(1), 0.0)
    thread.join(0.2)
    assert thread.is_alive()
    if goes:
        link.drop("s1")
        assert [
            event.supervisor for event in watch.find_lost(RankRegistry(["host0", "host1"], ["", ""], [0, 1]), 0.0)
        ] == [1]
    else:
        watch.on_message(Heartbeat(1, outlives_notebook=True), 0.0)
    thread.join(WAIT_S / 2)
    assert not thread.is_alive()


def test_host_that_connects_during_a_detach_is_detached() -> None:
    """After an attach a supervisor may connect later than the last rank, and the owner waits until it confirms too."""
    link = InProcessTransport()
    watch = HostMonitor(link, [FakeHost((0,)), FakeHost((1,))])
    connected = link.connect("s1")
    thread = threading.Thread(target=watch.make_detachable, args=[lambda: True])
    thread.start()
    # In rank order: the message for s0 had no recipient.
    assert connected.receive(WAIT_S) == Heartbeat(1, outlives_notebook=True)
    watch.on_message(Heartbeat(1, outlives_notebook=True), 0.0)
    late = link.connect("s0")
    watch.on_message(HostUp(0, 7, "alpha", None), 0.0)
    assert late.receive(WAIT_S) == Heartbeat(0, outlives_notebook=True)
    watch.on_message(Heartbeat(0, outlives_notebook=True), 0.0)
    thread.join(WAIT_S / 2)
    assert not thread.is_alive()


def test_detach_does_not_wait_after_the_event_loop_ended() -> None:
    """If another thread has stopped the cluster, there is nothing to detach and no wait."""
    HostMonitor(InProcessTransport(), [FakeHost()]).make_detachable(lambda: False)
