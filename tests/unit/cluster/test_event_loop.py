"""The event loop answers every waiting caller, whatever ends."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from mhnb.cluster.event_loop import CellFuture, EventLoop
from mhnb.cluster.host_monitor import HostMonitor
from mhnb.cluster.status import ClusterListener
from mhnb.core.codec import encode
from mhnb.core.debugging import DebugRequest, DebugUpdate
from mhnb.core.guard.launch_report import LaunchReport
from mhnb.core.journal import CellRecord
from mhnb.core.messages import (
    CellEnded,
    DebugPrompt,
    Heartbeat,
    HostUp,
    Message,
    OutputProduced,
    RankExited,
    RankReady,
    RankReply,
    RankRequest,
    RankSpawned,
    SignalRank,
    StopHost,
)
from mhnb.core.output.events import Stream
from mhnb.core.output.results import CellResult
from mhnb.core.state import machine
from mhnb.core.state.cell import Cell
from mhnb.core.state.events import CellRequest, CellSubmitted, StopRequested
from mhnb.core.state.machine import ClusterStateMachine
from mhnb.core.state.rank_registry import RankRegistry
from mhnb.core.state.verdict import judge_cell
from mhnb.errors import MhnbError, NotStarted, RanksLost
from tests.support.in_process_transport import InProcessPeer, InProcessTransport

WAIT_S = 20.0


@dataclass
class FakeHost:
    """A supervisor that runs until the test sets `exited`."""

    supervisors: tuple[int, ...] = (0,)
    is_remote: bool = False
    exited: threading.Event = field(default_factory=threading.Event)
    killed_pids: list[tuple[int, ...]] = field(default_factory=list)

    pid: int = 1

    def release(self) -> None: ...

    def has_exited(self) -> bool:
        return self.exited.is_set()

    def explain(self) -> str:
        return "the supervisor ended"

    def wait(self, pids: tuple[int, ...]) -> None:
        self.killed_pids.append(pids)


class RecordingListener:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.ready, self.failed, self.notified = threading.Event(), threading.Event(), threading.Event()
        self.progress: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
        self.errors: list[MhnbError] = []
        self.late: queue.SimpleQueue[CellResult] = queue.SimpleQueue()
        self.notifications: list[str] = []

    def on_progress(self, machine: ClusterStateMachine, now: float) -> None:
        self.progress.put((machine.state, now))
        if machine.state == "clean":
            self.ready.set()

    def on_failure(self, error: MhnbError) -> None:
        self.errors.append(error)
        self.failed.set()

    def on_late(self, result: CellResult) -> None:
        self.late.put(result)

    def on_notice(self, text: str) -> None:
        self.notifications.append(text)
        self.notified.set()

    def on_tick(self) -> None: ...


def start_ranks(transport: InProcessTransport, listener: RecordingListener) -> list[InProcessPeer]:
    """Make two ranks report that they are ready, and return their ends."""
    peers, supervisor = [transport.connect(f"r{rank}") for rank in (0, 1)], transport.connect("s0")
    for rank, peer in enumerate(peers):
        supervisor.send(RankSpawned(rank, 1000 + rank))
        peer.send(RankReady(rank, {}))
    assert listener.ready.wait(WAIT_S)
    return peers


class BrokenTransport(InProcessTransport):
    """A transport that fails as a defect of mhnb would."""

    def poll_with_peers(self, timeout_s: float | None) -> list[tuple[str, Message]]:  # noqa: ARG002  # of the contract
        raise ZeroDivisionError("a defect")


@dataclass
class Rig:
    """An event loop for two ranks without processes."""

    reader: EventLoop
    machine: ClusterStateMachine
    host: FakeHost
    listener: RecordingListener
    transport: InProcessTransport

    def make_ranks_ready(self) -> None:
        start_ranks(self.transport, self.listener)


@pytest.fixture
def start_loop() -> Iterator[Callable[[InProcessTransport], Rig]]:
    """Return a function that starts an event loop; all loops are closed after the test."""
    made: list[EventLoop] = []

    def begin(link: InProcessTransport) -> Rig:
        host, listener = FakeHost(), RecordingListener()
        machine = ClusterStateMachine(
            RankRegistry(["a", "b"], ["x", "y"]), generation=1, now=time.monotonic(), start_timeout_s=60
        )
        reader = EventLoop(link, machine, HostMonitor(link, [host]), clock=time.monotonic, listener=listener)
        made.append(reader)
        reader.start()
        return Rig(reader, machine, host, listener, link)

    yield begin
    for reader in made:
        reader.close(WAIT_S)
        assert not reader.is_alive


def run_cell(reader: EventLoop, peers: Sequence[InProcessPeer], seq: int) -> CellFuture:
    """Submit a cell, and make every rank end it."""
    submission = reader.submit(lambda ticket: CellSubmitted(ticket, CellRequest("x = 1")), live=False)
    for rank, peer in enumerate(peers):
        peer.send(CellEnded(rank, seq, "ok", [], 0.1))
    return submission


@dataclass
class LateRig:
    """An event loop whose clock is set by the test, and two ranks with output after their cell's end."""

    reader: EventLoop
    listener: RecordingListener
    peers: Sequence[InProcessPeer]
    now: list[float]
    transport: InProcessTransport


@pytest.fixture
def late_rig() -> Iterator[LateRig]:
    """Both ranks have sent late output that has not been shown yet."""
    link, listener, now = InProcessTransport(), RecordingListener(), [100.0]
    machine = ClusterStateMachine(RankRegistry(["a", "b"], ["x", "y"]), generation=1, now=now[0], start_timeout_s=60)
    reader = EventLoop(link, machine, HostMonitor(link, [FakeHost()]), clock=lambda: now[0], listener=listener)
    reader.start()
    peers = start_ranks(link, listener)
    run_cell(reader, peers, 1).updates.get(timeout=WAIT_S)
    for rank, peer in enumerate(peers):
        peer.send(OutputProduced(rank, 1, [Stream("stdout", "late\n")]))
    # The reply to a request arrives after the output that was sent before it.
    asked = reader.request(0, "names", {})
    while not isinstance(peers[0].receive(WAIT_S), RankRequest):
        continue
    peers[0].send(RankReply(0, 1, True, []))
    asked.result(WAIT_S)
    assert listener.late.empty()
    yield LateRig(reader, listener, peers, now, link)
    reader.close(WAIT_S)


@pytest.mark.parametrize("until", ["a moment later", "the next cell's end", "a notice", "the end"])
def test_late_output_of_several_ranks_is_shown_once(late_rig: LateRig, until: str) -> None:
    """Late output of several ranks is shown once, at the next event at the latest; single outputs would look different."""
    reader, listener = late_rig.reader, late_rig.listener
    if until == "a moment later":
        late_rig.now[0] += 1.0
    elif until == "the next cell's end":
        run_cell(reader, late_rig.peers, 2).updates.get(timeout=WAIT_S)
        assert not listener.late.empty()
    elif until == "a notice":
        late_rig.transport.connect("s0").send(RankExited(1, None, 9, []))
        assert listener.notified.wait(WAIT_S)
        assert not listener.late.empty()
    else:
        reader.close(WAIT_S)
        assert not listener.late.empty()
    shown = listener.late.get(timeout=WAIT_S)
    assert (shown.seq, [rank.stdout for rank in shown]) == (1, ["late\n", "late\n"])
    assert listener.late.empty()


def test_cell_is_in_the_journal_before_its_result_is_delivered() -> None:
    """A cell is in the journal before its result is delivered, so that the caller can rely on the journal."""
    link, listener = InProcessTransport(), RecordingListener()
    machine = ClusterStateMachine(
        RankRegistry(["a", "b"], ["x", "y"]), generation=1, now=time.monotonic(), start_timeout_s=60
    )
    seen: list[tuple[int, bool]] = []

    def write_record(record: CellRecord) -> None:
        seen.append((record.seq, submission.updates.empty()))

    reader = EventLoop(
        link,
        machine,
        HostMonitor(link, [FakeHost()]),
        clock=time.monotonic,
        listener=listener,
        write_record=write_record,
    )
    reader.start()
    peers = start_ranks(link, listener)
    submission = reader.submit(lambda ticket: CellSubmitted(ticket, CellRequest("x = 1")), live=False)
    for rank, peer in enumerate(peers):
        peer.send(CellEnded(rank, 1, "ok", [], 0.1))
    assert isinstance(submission.updates.get(timeout=WAIT_S), CellResult)
    reader.close(WAIT_S)
    assert seen == [(1, True)]


def test_request_fails_after_the_supervisor_has_ended(start_loop: Callable[[InProcessTransport], Rig]) -> None:
    """A request to a rank whose supervisor has ended fails at once, because no process is left to answer it."""
    rig = start_loop(InProcessTransport())
    rig.make_ranks_ready()
    rig.host.exited.set()
    assert rig.listener.notified.wait(WAIT_S)
    with pytest.raises(RanksLost):
        rig.reader.request(0, "names", {}).result(WAIT_S)


def test_dead_supervisor_ends_processes_of_its_ranks(start_loop: Callable[[InProcessTransport], Rig]) -> None:
    """The process groups of all its ranks go to the host at once, while their process ids are still valid."""
    rig = start_loop(InProcessTransport())
    rig.make_ranks_ready()
    rig.host.exited.set()
    assert rig.listener.notified.wait(WAIT_S)
    assert rig.host.killed_pids == [(1000, 1001)]


def test_request_cannot_be_cancelled(start_loop: Callable[[InProcessTransport], Rig]) -> None:
    """asyncio cancels the futures that it wraps; an answer that arrives later must not end the cluster."""
    rig = start_loop(InProcessTransport())
    rig.make_ranks_ready()
    assert not rig.reader.request(0, "names", {}).cancel()


def test_cell_comes_before_or_after_the_requests_to_all_ranks(start_loop: Callable[[InProcessTransport], Rig]) -> None:
    """Another thread's cell never comes between them: a push would be bound before the cell on one rank, after it on another."""
    rig = start_loop(InProcessTransport())
    rig.make_ranks_ready()
    order: list[str] = []

    def submit_cell() -> None:
        rig.reader.submit(lambda ticket: CellSubmitted(ticket, CellRequest("x = 1")), live=False)
        order.append("cell")

    thread = threading.Thread(target=submit_cell)

    def ask_ranks() -> Iterator[int]:
        yield 0
        thread.start()
        # A cell that need not wait would be sent within this time.
        thread.join(0.2)
        yield 1
        order.append("requests")

    assert sorted(rig.reader.request_all(ask_ranks(), "commit", {})) == [0, 1]
    thread.join(WAIT_S)
    assert order == ["requests", "cell"]


def test_success_of_a_request_to_all_ranks_is_reported_once(start_loop: Callable[[InProcessTransport], Rig]) -> None:
    """It is reported with the last answer, in the loop's thread, where the ends of cells are; and not if a rank could not do it."""
    transport = InProcessTransport()
    rig = start_loop(transport)
    peers = start_ranks(transport, rig.listener)
    reported: list[str] = []
    for outcomes in ((True, False), (True, True)):
        futures = rig.reader.request_all((0, 1), "commit", {}, lambda: reported.append(threading.current_thread().name))
        for rank, ok in enumerate(outcomes):
            while not isinstance(request := peers[rank].receive(WAIT_S), RankRequest):
                continue
            peers[rank].send(RankReply(rank, request.request_id, ok, None))
        assert [future.result(WAIT_S).ok for future in futures.values()] == [*outcomes]
    assert reported == ["mhnb-reader"]


@pytest.mark.slow
def test_progress_of_a_start_is_reported(start_loop: Callable[[InProcessTransport], Rig]) -> None:
    """Progress is reported from the first moment and about every second, even without a message from any rank."""
    rig = start_loop(InProcessTransport())
    first, second = (rig.listener.progress.get(timeout=WAIT_S) for _ in range(2))
    assert first[0] == second[0] == "starting"
    assert second[1] - first[1] >= 1.0


def test_progress_of_a_cell_is_reported(late_rig: LateRig) -> None:
    """Progress is reported once a cell lasts, and about every second, even without a message from any rank."""
    submission = late_rig.reader.submit(lambda ticket: CellSubmitted(ticket, CellRequest("x = 1")), live=True)
    seen = []
    # The second time is the last one before the ranks would have sent their locations.
    for now in (100.2, 101.3):
        late_rig.now[0] = now
        seen.append(submission.updates.get(timeout=WAIT_S))
    assert [round(one.wall_s, 1) for one in seen if isinstance(one, CellResult)] == [0.2, 1.3]


def test_first_stop_comes_with_the_result_so_far(late_rig: LateRig) -> None:
    """A rank may stop before anything was shown, and the view of the cell is drawn above the prompt. Later stops add nothing."""
    request = CellRequest("breakpoint()", debug=DebugRequest())
    submission = late_rig.reader.submit(lambda ticket: CellSubmitted(ticket, request), live=True)
    seen = []
    for peer, count in zip(late_rig.peers, (2, 1), strict=True):
        peer.send(DebugPrompt(late_rig.peers.index(peer), 2, 1, "(Pdb) ", "> In [1], line 1\n", 1, True))
        seen.append([type(submission.updates.get(timeout=WAIT_S)) for _ in range(count)])
    assert seen == [[CellResult, DebugUpdate], [DebugUpdate]]
    assert submission.updates.empty()


def test_cell_that_waits_is_told_for_what(late_rig: LateRig) -> None:
    """After half a second, and again each second, until its turn comes; the cell that runs is not told."""
    submit = late_rig.reader.submit
    running = submit(lambda ticket: CellSubmitted(ticket, CellRequest("x = 1")), live=True)
    waiting, silent = (
        submit(lambda ticket: CellSubmitted(ticket, CellRequest("x = 2")), live=live) for live in (True, False)
    )
    last = submit(lambda ticket: CellSubmitted(ticket, CellRequest("x = 3")), live=True)
    late_rig.now[0] += 0.4
    # A report of the running cell shows that a tick has passed.
    assert isinstance(running.updates.get(timeout=WAIT_S), CellResult)
    assert waiting.updates.empty()
    told = []
    for after_s in (0.2, 1.1):
        late_rig.now[0] += after_s
        told.append(waiting.updates.get(timeout=WAIT_S))
    assert [(one.waiting, len(one)) for one in told if isinstance(one, CellResult)] == [
        ("waiting for cell 2 to end (ranks 0-1 running 1 s)", 0),
        ("waiting for cell 2 to end (ranks 0-1 running 2 s)", 0),
    ]
    assert "cell 2 and 2 more cells" in getattr(last.updates.get(timeout=WAIT_S), "waiting", "")
    for seq in (2, 3, 4):
        for rank, peer in enumerate(late_rig.peers):
            peer.send(CellEnded(rank, seq, "ok", [], 0.1))
    while not (update := waiting.updates.get(timeout=WAIT_S)).done:  # type: ignore[union-attr]  # it is no error
        assert not getattr(update, "waiting", "")
    while not running.updates.empty():
        assert not getattr(running.updates.get(), "waiting", "")
    assert getattr(silent.updates.get(timeout=WAIT_S), "waiting", None) == ""


def test_queue_status_ends_when_the_job_starts() -> None:
    """The queue status ends once a job has its machines, even before any of them has reported."""

    @dataclass
    class Queued(FakeHost):
        queue_status: str = "job 1 waits"

    host, link, queue_positions = Queued(), InProcessTransport(), queue.SimpleQueue[str]()
    machine = ClusterStateMachine(
        RankRegistry(["a", "b"], ["x", "y"]), generation=1, now=time.monotonic(), start_timeout_s=60
    )

    class Waiting(RecordingListener):
        def on_progress(self, machine: ClusterStateMachine, now: float) -> None:  # noqa: ARG002  # of the contract
            queue_positions.put(machine.registry.queue_position)

    reader = EventLoop(link, machine, HostMonitor(link, [host]), clock=time.monotonic, listener=Waiting())
    reader.start()
    try:
        assert queue_positions.get(timeout=WAIT_S) == "job 1 waits"
        host.queue_status = ""
        while queue_positions.get(timeout=WAIT_S):
            continue
    finally:
        reader.close(WAIT_S)


def test_stop_while_starting_ends_the_wait_for_the_start(start_loop: Callable[[InProcessTransport], Rig]) -> None:
    """Stopping a cluster ends every wait until it is ready."""
    rig = start_loop(InProcessTransport())
    rig.reader.post(StopRequested())
    rig.reader.close(WAIT_S)
    assert rig.listener.failed.wait(WAIT_S)
    assert isinstance(rig.listener.errors[0], NotStarted)


def test_defect_in_the_event_loop_stops_the_cluster(
    start_loop: Callable[[InProcessTransport], Rig], capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure is printed, reported to the caller that waits for the start, and the cluster counts as stopped."""
    rig = start_loop(BrokenTransport())
    assert rig.listener.failed.wait(WAIT_S)
    assert rig.listener.notified.is_set()
    assert rig.machine.state == "stopped"
    assert "event loop failed" in str(rig.listener.errors[0])
    assert "a defect" in capsys.readouterr().err


def test_failing_user_callback_prints_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A failing user callback for late output or notices prints its error, because it runs in the reader thread."""
    listener = ClusterListener()
    listener.show_notice = lambda text: [][len(text)]
    listener.on_notice("told")
    assert "IndexError" in capsys.readouterr().err


ENDED = CellEnded(1, 1, "ok", [], 0.1)
INVALID_MESSAGES: dict[str, tuple[str, Message | list[bytes]]] = {
    "no message": ("r1", [b"shouting"]),
    "another type": ("r1", [encode(ENDED)[0].replace(b'"wall_s":0.1', b'"wall_s":"x"')]),
    "an event that is none": ("r1", [b'{"kind":"OutputProduced","rank":1,"seq":1,"events":[["Stream","stdout",7]]}']),
    "a message for ranks": ("r1", StopHost()),
    "in another rank's name": ("r1", CellEnded(0, 1, "ok", [], 0.1)),
    "of a supervisor": ("r1", RankExited(0, 1, None, [])),
    "of a rank that is none": ("r7", CellEnded(7, 1, "ok", [], 0.1)),
    "of a supervisor, about no rank": ("s0", RankExited(7, 1, None, [])),
    "of a supervisor, with both ends": ("s0", RankExited(1, 1, 9, [])),
    "of a supervisor, a beat about no rank": ("s0", Heartbeat(0, {"x": 1})),
    "of another supervisor": ("s0", HostUp(3, 1, "a", None)),
}


@pytest.mark.parametrize("what", INVALID_MESSAGES)
def test_peer_that_sends_an_invalid_message_is_dropped(
    start_loop: Callable[[InProcessTransport], Rig], what: str
) -> None:
    """A peer that sends an invalid message is dropped and reported; the loop continues, and a running cell ends."""
    rig = start_loop(InProcessTransport())
    rig.make_ranks_ready()
    peer, message_or_frames = INVALID_MESSAGES[what]
    end = rig.transport._peers.get(peer) or rig.transport.connect(peer)
    submission = rig.reader.submit(lambda ticket: CellSubmitted(ticket, CellRequest("x = 1")), live=False)
    if isinstance(message_or_frames, list):
        end.send_frames(message_or_frames)
    else:
        end.send(message_or_frames)
    assert rig.listener.notified.wait(WAIT_S)
    (notification,) = rig.listener.notifications[:1]
    assert "sent an invalid message" in notification
    assert ("rank 1 (b)" if peer == "r1" else "supervisor" if peer == "s0" else "rank 7") in notification
    assert peer not in rig.transport._peers
    assert rig.reader.is_alive
    if peer == "r1":
        # Its process must be killed, because a caller that waits for it would otherwise wait forever.
        supervisor = rig.transport._peers["s0"]
        while (message := supervisor.receive(WAIT_S)) != SignalRank(1, 9):
            assert message is not None
        rig.transport._peers["r0"].send(CellEnded(0, 1, "ok", [], 0.1))
        supervisor.send(RankExited(1, None, 9, []))
    if peer != "r7":
        assert isinstance(ended := submission.updates.get(timeout=WAIT_S), CellResult)
        assert ended.state == "dead"
        assert "an invalid message" in rig.machine.reason


def test_unreadable_cell_end_ends_the_cell(
    start_loop: Callable[[InProcessTransport], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the end of a cell cannot be judged, the cluster is dead and names the rank whose reply it is, and the cell ends."""

    def judge(cell: Cell, *arguments: Any, **options: Any) -> Any:
        assert all(part.report.interrupted_before != 7 for part in cell.parts.values()), "a reply that nobody expects"
        return judge_cell(cell, *arguments, **options)

    monkeypatch.setattr(machine, "judge_cell", judge)
    rig = start_loop(InProcessTransport())
    rig.make_ranks_ready()
    submission = rig.reader.submit(lambda ticket: CellSubmitted(ticket, CellRequest("x = 1")), live=False)
    for rank in (1, 0):
        # The last rank to end is not the cause.
        report = LaunchReport(abandoned_count=1, interrupted_before=7 if rank else None)
        rig.transport._peers[f"r{rank}"].send(CellEnded(rank, 1, "interrupted", [], 0.1, report))
    update = submission.updates.get(timeout=WAIT_S)
    assert rig.reader.is_alive
    assert isinstance(update, RanksLost)
    assert "rank 1 (b)" in str(update)
    assert rig.machine.state == "dead"


@pytest.mark.parametrize(
    "report",
    [
        b'{"rows":[["a","f",[0,1]]]}',
        b'{"rows":[["a","f",[0,1],1,1]],"order":[0,1]}',
        b'{"host_arrays":[[{}]]}',
        b'{"ignored_refusals":[[{}]]}',
        b'{"abandoned_launch":[{}]}',
        b'{"pending_launch":[{}]}',
        b'{"refused_inputs":[[{}]]}',
    ],
)
def test_unreadable_launches_end_the_cell(start_loop: Callable[[InProcessTransport], Rig], report: bytes) -> None:
    """If the guard cannot read the launches of a cell's end, the cluster is dead and names the rank and the field."""
    rig = start_loop(InProcessTransport())
    rig.make_ranks_ready()
    rig.reader.submit(lambda ticket: CellSubmitted(ticket, CellRequest("x = 1")), live=False)
    rig.transport._peers["r1"].send_frames([encode(ENDED)[0].replace(b"}", b',"launches":' + report + b"}")])
    assert rig.listener.notified.wait(WAIT_S)
    (notification,) = rig.listener.notifications[:1]
    assert "rank 1 (b) sent an invalid message: a CellEnded cannot be read: Expected" in notification
    assert "at `$.launches" in notification
