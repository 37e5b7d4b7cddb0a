"""Supervisors as the event loop handles them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from mhnb.cluster.generation import end_hosts
from mhnb.cluster.host_monitor import HostMonitor
from mhnb.core.flight import encode_flight, parse_flight
from mhnb.core.messages import CheckHost, Heartbeat, HostChecked, HostUp, Message, StopHost
from mhnb.core.state.events import HostExited
from mhnb.core.state.rank_registry import RankRegistry
from mhnb.rank.flight import FlightRecorder, make_header
from mhnb.system.flight import flight_copy_path, flight_path
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """A thread for what waits for answers."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def record_events(folder: Path, rank: int) -> bytes:
    """Write a recording of three events of a rank; return its bytes."""
    recorder, path = FlightRecorder(), flight_path(folder, rank)
    recorder.open(path, make_header(rank, 1, 3))
    for kind in ("cell", "compilation", "end"):
        recorder.record(kind, 1, program="jit(step)")
    return path.read_bytes()


def test_recordings_of_other_machines_are_requested(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    """Each supervisor is asked for its ranks, one rank at a time, and a copy of what it sends is kept, for this user only."""
    link, registry = (
        InProcessTransport(),
        RankRegistry(["here", "far", "far"], ["", "far:/r/log/rank1.log", ""], [0, 1, 1]),
    )
    watch = HostMonitor(link, [FakeHost((0,), is_remote=False), FakeHost((1,))], run_dir=tmp_path / "here")
    end = link.connect("s1")
    record_events(tmp_path / "here", 0)
    found = thread.submit(watch.read_flights, registry)
    for rank in (1, 2):
        request = end.receive(WAIT_S)
        assert isinstance(request, CheckHost)
        assert (request.check, request.arguments) == ("flight", {"rank": rank})
        data = record_events(tmp_path / "far", rank)
        watch.deliver(HostChecked(1, request.request_id, encode_flight(data)))
    flights = found.result(WAIT_S)
    assert [[event.kind for event in flight.events] for flight in flights] == [["cell", "compilation", "end"]] * 3
    copies = [flight_copy_path(tmp_path / "here", rank) for rank in (1, 2)]
    assert [parse_flight(rank, path.read_bytes()) for rank, path in enumerate(copies, 1)] == flights[1:]
    assert {path.stat().st_mode & 0o777 for path in copies} == {0o600}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            HostChecked(0, 0, None, "/r/flight/rank0.events: No such file or directory"),
            "/r/flight/rank0.events: No such",
        ),
        (HostChecked(0, 0, "not base 85: \x00"), "its host sent a recording that cannot be read: "),
        (HostChecked(0, 0, encode_flight(b"x" * 10000)), "its file cannot be read: "),
        (None, "its host (far) did not answer; its recording is far:/r/flight/rank0.events"),
    ],
    ids=["absent", "damaged", "of something else", "lost"],
)
def test_recording_that_cannot_be_read_has_its_reason(
    tmp_path: Path, thread: ThreadPoolExecutor, answer: HostChecked | None, problem: str
) -> None:
    """The rank has the reason in place of events, and nothing waits for a supervisor that is lost."""
    link, registry = InProcessTransport(), RankRegistry(["far"], ["far:/r/log/rank0.log"], [0])
    clock = Clock()
    watch = HostMonitor(link, [FakeHost()], run_dir=tmp_path, real_clock=clock)
    end = link.connect("s0")
    watch.on_message(HostUp(0, 7, "far", None), clock.now)
    found = thread.submit(watch.read_flights, registry)
    request = end.receive(WAIT_S)
    assert isinstance(request, CheckHost)
    if answer is None:
        while not list(watch.find_lost(registry, clock.now)):
            clock.now += 2.0
    else:
        watch.deliver(replace(answer, request_id=request.request_id))
    (flight,) = found.result(WAIT_S)
    assert flight.events == ()
    assert flight.problem.startswith(problem)


def test_copy_that_cannot_be_kept_loses_no_event(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    """On a full disk the recording is there all the same, and the reason why there is no copy."""
    link, registry = InProcessTransport(), RankRegistry(["far"], ["far:/r/log/rank0.log"], [0])
    (tmp_path / "flight").write_text("a file where the folder should be")
    watch = HostMonitor(link, [FakeHost()], run_dir=tmp_path)
    end = link.connect("s0")
    found = thread.submit(watch.read_flights, registry)
    request = end.receive(WAIT_S)
    assert isinstance(request, CheckHost)
    watch.deliver(HostChecked(0, request.request_id, encode_flight(record_events(tmp_path / "far", 0))))
    (flight,) = found.result(WAIT_S)
    assert len(flight.events) == 3
    assert flight.problem.startswith("no copy for `mhnb flight` was kept: ")


def test_silent_host_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has not answered for one rank is not waited for again."""
    monkeypatch.setattr("mhnb.cluster.host_monitor._FLIGHT_ANSWER_S", 0.1)
    link, registry = InProcessTransport(), RankRegistry(["far"] * 3, ["far:/r/log/rank0.log"] * 3, [0, 0, 0])
    end = link.connect("s0")
    flights = HostMonitor(link, [FakeHost()], run_dir=tmp_path).read_flights(registry)
    assert [flight.problem.split(";")[0] for flight in flights] == ["its host (far) did not answer"] * 3
    assert isinstance(end.receive(WAIT_S), CheckHost)
    assert end.receive(0) is None


def test_stop_of_the_cluster_ends_the_wait_for_recordings(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    """Another thread may ask for recordings while the cluster is stopped."""
    link, registry = InProcessTransport(), RankRegistry(["far"], ["far:/r/log/rank0.log"], [0])
    watch = HostMonitor(link, [FakeHost()], run_dir=tmp_path)
    end = link.connect("s0")
    found = thread.submit(watch.read_flights, registry)
    assert isinstance(end.receive(WAIT_S), CheckHost)
    watch.broadcast(StopHost())
    (flight,) = found.result(WAIT_S)
    assert flight.problem.startswith("its host (far) did not answer")


def test_recording_of_a_host_that_is_lost_is_not_requested(tmp_path: Path) -> None:
    """The reason names the file on that host, for the user to fetch."""
    link, registry = InProcessTransport(), RankRegistry(["far"], ["far:/r/log/rank0.log"], [0])
    registry.lost_supervisors.add(0)
    end = link.connect("s0")
    (flight,) = HostMonitor(link, [FakeHost()], run_dir=tmp_path).read_flights(registry)
    assert flight.problem == "its host (far) cannot be asked any more; its recording is far:/r/flight/rank0.events"
    assert end.receive(0) is None


def test_rank_without_a_recorder_has_its_reason(tmp_path: Path) -> None:
    """A rank that could not open its recorder has said why when it was ready."""
    registry = RankRegistry(["here"], [""], [0])
    registry.entries[0].facts = {"flight": "No space left on device"}
    (flight,) = HostMonitor(InProcessTransport(), [], run_dir=tmp_path).read_flights(registry)
    assert flight.problem == "No space left on device"


def test_last_events_are_read_on_this_machine(tmp_path: Path) -> None:
    """The last event of each rank here is read; the supervisors of others send it with their heartbeats."""
    registry = RankRegistry(["here", "far"], ["", ""], [0, 1])
    watch = HostMonitor(InProcessTransport(), [FakeHost((0,), is_remote=False), FakeHost((1,))], run_dir=tmp_path)
    for rank in (0, 1):
        record_events(tmp_path, rank)
    events = watch.read_last_events(registry)
    assert {rank: (event.number, event.kind) for rank, event in events.items()} == {0: (3, "end")}
