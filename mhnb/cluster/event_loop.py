"""Event-loop thread of a cluster, and the handle of a submitted cell.

The thread serves the transport and the state machine from start to stop, also between cells.
It turns messages, submissions, exits and time into events, and the state machine's commands into sends and replies.
Only the submitter of a cell passes its own event in directly, under the event loop's lock, because waking another thread
takes longer. The handle of a submitted cell is shared by the submitting thread and the event loop.
"""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from mhnb.cluster.host_monitor import HostMonitor, describe_orphans
from mhnb.cluster.requests import call_after_success
from mhnb.cluster.status import EventListener
from mhnb.core.debugging import DebugUpdate
from mhnb.core.hang_report import HangReport
from mhnb.core.journal import CellRecord
from mhnb.core.messages import (
    Heartbeat,
    HostChecked,
    HostUp,
    Message,
    RankExited,
    RankReady,
    RankReply,
    RankRequest,
    RankSpawned,
    StopHost,
)
from mhnb.core.output.results import CellResult, LateOutputBuffer, RateLimiter
from mhnb.core.state.cell import Cell
from mhnb.core.state.events import (
    CellSubmitted,
    Command,
    DisconnectRanks,
    Event,
    FailStart,
    FinishCell,
    HostExited,
    HostsQueued,
    KillRanks,
    NotifyUser,
    PreflightEnded,
    RefuseCell,
    ReportReady,
    RunPreflight,
    SendToHosts,
    SendToRank,
    ShowDebugger,
    ShowLateOutput,
    SignalRanks,
    StopBeforeLaunch,
    StopRequested,
    TimePassed,
    WriteRecord,
)
from mhnb.core.state.machine import ClusterStateMachine
from mhnb.core.waiting import WAIT_NOTE_AFTER_S
from mhnb.errors import MhnbError, NotStarted, RanksLost, UnknownMessage
from mhnb.transport.base import Transport, rank_peer

Update: TypeAlias = CellResult | MhnbError


@dataclass(slots=True)
class CellFuture:
    """Handle of a submitted cell, which receives results or the refusal.

    A cell that can stop in the debugger also gets updates about that.
    """

    ticket: int
    """Its number among all submissions."""
    live: bool
    submitted_at: float = 0.0
    next_wait_note_s: float = WAIT_NOTE_AFTER_S
    """Seconds after the submission at which the submitter gets a note on what the cell waits for, if its turn has not come."""
    was_shown: bool = False
    """Whether a result so far was put into `updates`."""
    updates: queue.SimpleQueue[Update | DebugUpdate | None] = field(default_factory=queue.SimpleQueue)
    debugger: DebugUpdate | None = None
    """The newest update about the debugger that was taken from `updates`."""

    def wait(self, on_snapshot: Callable[[CellResult], None] | None) -> CellResult:
        """Wait for the last result, and pass earlier ones to `on_snapshot`.

        Not for a cell that can stop in the debugger.

        Raises:
            MhnbError: the cell was refused.
        """
        return check_end(self.follow(on_snapshot))

    def follow(
        self,
        on_snapshot: Callable[[CellResult], None] | None,
        on_debugger: Callable[[DebugUpdate], None] | None = None,
    ) -> Update | None:
        """Wait for the cell's last result, or the error that refused it.

        Of what has come, the newest update of each kind is passed on. Updates are complete, so older ones are dropped, however
        slow the view is. Without `on_debugger`, None is returned when a rank has stopped; and in any case when `wake` is called.
        """
        while True:
            taken = [self.updates.get()]
            while not self.updates.empty():
                taken.append(self.updates.get())
            result = next((each for each in reversed(taken) if isinstance(each, CellResult | MhnbError)), None)
            debugger = next((each for each in reversed(taken) if isinstance(each, DebugUpdate)), None)
            self.debugger = debugger or self.debugger
            if isinstance(result, MhnbError) or (result is not None and result.done):
                return result
            if result is not None and on_snapshot is not None:
                on_snapshot(result)
            if debugger is not None and on_debugger is not None:
                on_debugger(debugger)
            if None in taken or (debugger is not None and on_debugger is None):
                return None

    def wake(self) -> None:
        """Let `follow` in another thread return None."""
        self.updates.put(None)


def check_end(end: Update | None) -> CellResult:
    """Return the last result of a cell.

    Raises:
        MhnbError: the cell was refused.
    """
    if isinstance(end, MhnbError):
        raise end
    assert end is not None
    return end


# -- the event-loop thread


_TICK_S, _IDLE_S, _REPORT_S = 0.1, 0.25, 1.0
LIVE_AFTER_S = 0.15
"""A cell that runs longer is shown while it runs."""
_HANG_REPORT_AFTER_S, _HANG_REPORT_EVERY_S = 2.0, 1.0
"""Seconds after which the rank positions of a running cell are reported, and the interval between reports."""


class EventLoop:
    """Event loop of one cluster generation.

    Args:
        transport: the open transport; closed when the loop ends.
        state_machine: the state machine of this generation.
        host_monitor: the monitor of the supervisors.
        clock: monotonic clock, in seconds.
        listener: receives starts, late output and deaths.
        write_record: stores the record of each cell that ends, before its submitter gets the result.
    """

    def __init__(
        self,
        transport: Transport,
        state_machine: ClusterStateMachine,
        host_monitor: HostMonitor,
        *,
        clock: Callable[[], float],
        listener: EventListener,
        write_record: Callable[[CellRecord], None] | None = None,
    ) -> None:
        self._transport, self._state_machine, self._host_monitor = transport, state_machine, host_monitor
        self._clock, self._listener, self._write_record = clock, listener, write_record
        self._inbox: queue.SimpleQueue[Event | _PendingRequest | None] = queue.SimpleQueue()
        self._submissions: dict[int, CellFuture] = {}
        self._requests: dict[int, tuple[int, Future[RankReply]]] = {}
        self._last_request_id = self._last_ticket = 0
        self._next_tick = self._next_report = 0.0
        self._pace, self._late = RateLimiter(), LateOutputBuffer()
        self._next_last_events = 0.0
        """When to report the rank positions next; 0 while nothing is reported."""
        self._dirty = self._stopping = self._closed = False
        self._disconnected_peers: set[str] = set()
        """Peers that were disconnected because they sent an invalid message."""
        self._defect: Exception | None = None
        self._closed_text = (
            "the cluster is stopped; mhnb.current() returns the one that replaced it, if there is one\n"
            "  Fix: %mhjax start"
        )
        """Error text for calls after the end."""
        # Reentrant, because Ctrl-C posts an event from wherever the main thread is.
        self._lock = threading.RLock()
        """Held while the state machine is used."""
        self._thread = threading.Thread(target=self._run, name="mhnb-reader", daemon=True)

    # -- from any thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, event: Event) -> None:
        """Queue an event, or drop it if the loop has ended."""
        self._put(event)

    def submit(self, event_of: Callable[[int], CellSubmitted], *, live: bool) -> CellFuture:
        """Submit a cell, whose updates end with a result or an error."""
        with self._lock:
            # One lock for tickets and sends: the cells of two threads get one order, the same on every rank.
            self._last_ticket += 1
            submission = CellFuture(self._last_ticket, live, self._clock())
            self._submissions[submission.ticket] = submission
            if self._closed:
                self._finish(submission.ticket, NotStarted(self._closed_text))
            else:
                self._send_at_once(event_of(submission.ticket))
        return submission

    def _send_at_once(self, event: CellSubmitted) -> None:
        try:
            self._drain_inbox()
            self._handle(event)
        except Exception as error:  # noqa: BLE001  # the loop raises it, where a defect ends the cluster visibly
            self._defect = error
            self._transport.wake()

    def request(
        self, rank: int, handler: str, arguments: dict[str, object], payload: Sequence[bytes] = ()
    ) -> Future[RankReply]:
        """Send a request to a rank between cells."""
        with self._lock:
            self._last_request_id += 1
            future: Future[RankReply] = Future()
            # From here on the future cannot be cancelled: the loop must not find it already completed.
            future.set_running_or_notify_cancel()
            is_queued = self._put_locked(
                _PendingRequest(
                    rank,
                    RankRequest(
                        self._last_request_id, handler, arguments, tuple(payload), kernel=self._state_machine.kernel
                    ),
                    future,
                )
            )
        if not is_queued:
            future.set_exception(NotStarted(self._closed_text))
        return future

    def request_all(
        self,
        ranks: Iterable[int],
        handler: str,
        arguments: dict[str, object],
        on_success: Callable[[], None] | None = None,
    ) -> dict[int, Future[RankReply]]:
        """Send the same request to several ranks, with no cell between them.

        `on_success` is called once all have succeeded, before the end of any cell that is submitted later.
        """
        with self._lock:
            # Each rank must answer before or after the same cell: a push would otherwise bind a value at two places in the order.
            futures = {rank: self.request(rank, handler, arguments) for rank in ranks}
            if on_success is not None:
                # Under the lock, so that no answer is processed before.
                call_after_success(futures.values(), on_success)
        return futures

    def hang_report(self) -> HangReport | None:
        """Return a hang report of the running cell, or None."""
        with self._lock:
            return self._state_machine.build_hang_report(self._clock())

    def close(self, timeout_s: float) -> None:
        """Order the supervisors to end everything, and end the loop."""
        self._put(None)
        self._thread.join(timeout_s)

    def detach(self, timeout_s: float, closed_text: str) -> None:
        """End the loop, but no supervisor; refuse later calls with `closed_text`."""
        with self._lock:
            self._stopping, self._closed_text = True, closed_text
            if not self._closed:
                self._transport.wake()
        self._thread.join(timeout_s)
        with self._lock:
            # For this notebook only; its ranks are not notified.
            self._state_machine.handle(StopRequested(closed_text), self._clock())

    def _put(self, item: Event | _PendingRequest | None) -> bool:
        with self._lock:
            return self._put_locked(item)

    def _put_locked(self, item: Event | _PendingRequest | None) -> bool:
        """Queue an item for the loop; return False if it has ended."""
        if self._closed:
            return False
        self._inbox.put(item)
        self._transport.wake()
        return True

    @property
    def is_alive(self) -> bool:
        """Whether the loop still runs."""
        return self._thread.is_alive()

    # -- the loop

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._run_once()
            if orphans_text := describe_orphans(
                self._state_machine.registry, self._host_monitor.wait_closed(self._clock)
            ):
                self._listener.on_notice(orphans_text)
        except Exception:  # noqa: BLE001  # reported below
            # The outermost broad catch: a defect of mhnb ends the cluster visibly, and no caller waits forever.
            text = traceback.format_exc()
            print(text, file=sys.stderr)
            # No message of the ranks will be read any more, so the state machine takes no cell from here on.
            self._state_machine.handle(StopRequested(), self._clock())
            self._state_machine.reason = "internal error: mhnb's event loop failed; please report it"
            self._listener.on_notice(
                f"internal error: mhnb's event loop failed, and the cluster can no longer be used. Please report this:\n{text}"
            )
        finally:
            with self._lock:
                self._closed = True
                self._fail_pending()
                self._transport.close()

    def _run_once(self) -> None:
        busy = self._state_machine.current is not None or self._state_machine.state == "starting"
        messages = self._transport.poll_with_peers(self._poll_timeout_s() if busy else _IDLE_S)
        with self._lock:
            if self._defect is not None:
                raise self._defect
            for peer, message in messages:
                self._process(peer, message)
            for peer, why in self._transport.pop_violators():
                self._disconnect(peer, why)
            self._drain_inbox()
            now = self._clock()
            if now >= self._next_tick:
                self._next_tick = now + _TICK_S
                self._check_hosts(now)
                self._handle(TimePassed())
                self._update_hang_report(now)
                self._show_waits(now)
                self._listener.on_tick()
            self._show_snapshot(now)
            self._show_late(now)

    def _poll_timeout_s(self) -> float:
        """Return the poll's time limit in seconds: until an update is due."""
        cell = self._state_machine.current
        if not self._dirty or cell is None:
            return _TICK_S
        now = self._clock()
        return min(_TICK_S, max(self._pace.wait_s(now), cell.started_at + LIVE_AFTER_S - now, 0.0))

    def _drain_inbox(self) -> None:
        # Under the lock, as every consumer of the inbox, so an item that is there stays there.
        while not self._inbox.empty():
            item = self._inbox.get_nowait()
            if item is None:
                self._stopping = True
                self._host_monitor.broadcast(StopHost())
            elif isinstance(item, _PendingRequest):
                self._send_request(item)
            else:
                self._handle(item)

    def _process(self, peer: str, message: Message) -> None:
        """Process a message; disconnect a peer that sends an invalid one."""
        if peer in self._disconnected_peers:
            # The message was already on its way.
            return
        try:
            self._state_machine.registry.check_sender(peer, message)
        except UnknownMessage as error:
            self._disconnect(peer, str(error))
            return
        try:
            self._dispatch_message(message)
        except Exception as error:  # noqa: BLE001  # reported to the user; the traceback is printed for the log
            traceback.print_exc()
            # A cell is judged when its last rank ends, so the reply that cannot be judged may be another rank's.
            peers = self._find_invalid_replies() or {peer: error}
            for each, cause in peers.items():
                self._disconnect(
                    each, f"its {type(message).__name__} could not be processed: {type(cause).__name__}: {cause}"
                )
            # The message was processed only in part, so no cell can be judged by the present state.
            names = " and ".join(map(self._state_machine.registry.name_peer, peers))
            for command in self._state_machine.fail(f"a message from {names} could not be processed"):
                self._carry_out(command)
            error_for_cells = RanksLost(f"{self._state_machine.reason}\n  Fix: %mhjax restart --replay", ranks=())
            for ticket in list(self._submissions):
                self._finish(ticket, error_for_cells)

    def _find_invalid_replies(self) -> dict[str, Exception]:
        """Return peers whose own reply cannot be judged, with the error."""
        found: dict[str, Exception] = {}
        for rank, judge in self._state_machine.single_rank_judges.items():
            try:
                judge()
            except Exception as error:  # noqa: BLE001  # reported to the user
                found[rank_peer(rank)] = error
        return found

    def _disconnect(self, peer: str, reason: str) -> None:
        """Disconnect a faulty peer; kill its rank or report its supervisor lost."""
        if peer in self._disconnected_peers:
            return
        self._disconnected_peers.add(peer)
        self._transport.disconnect(peer)
        who, number = self._state_machine.registry.name_peer(peer), int(peer[1:])
        self._listener.on_notice(f"{who} sent an invalid message: {reason}\n  mhnb closed its connection")
        if peer.startswith("s"):
            self._handle(
                HostExited(number, f"{who} is lost: mhnb closed its connection because it sent an invalid message")
            )
        elif number < self._state_machine.process_count:
            self._state_machine.registry.mark_refused(number)
            self._carry_out(KillRanks((number,)))

    def _dispatch_message(self, message: Message) -> None:
        if isinstance(message, HostUp | Heartbeat):
            self._host_monitor.on_message(message, self._clock())
        if isinstance(message, RankSpawned):
            self._host_monitor.note_spawned(
                self._state_machine.registry.entries[message.rank].supervisor, self._clock()
            )
        if isinstance(message, Heartbeat):
            self._state_machine.registry.record_heartbeat(
                message, is_repeated=self._host_monitor.is_remote(message.supervisor)
            )
        if isinstance(message, HostChecked):
            self._host_monitor.deliver(message)
            return
        if isinstance(message, RankReply):
            if (future := self._end_request(message.request_id)) is not None:
                future.set_result(message)
            return
        self._dirty = True
        self._handle(message)
        if isinstance(message, RankExited):
            self._fail_requests(message.rank)
        if self._state_machine.state == "starting" or isinstance(message, HostUp | RankReady):
            self._listener.on_progress(self._state_machine, self._clock())

    def _send_request(self, item: _PendingRequest) -> None:
        # A rank whose supervisor is lost is lost too, although nothing could report it.
        lost = item.rank not in self._state_machine.registry.alive
        if lost or self._state_machine.state == "stopped":
            item.future.set_exception(self._rank_lost_error(item.rank, "can no longer be reached"))
            return
        number = item.request.request_id
        self._requests[number] = (item.rank, item.future)
        self._state_machine.begin_request(number, item.rank, item.request.handler, self._clock())
        self._transport.send(rank_peer(item.rank), item.request)

    def _end_request(self, number: int) -> Future[RankReply] | None:
        """Forget a request, send the waiting cell, and return the request's future."""
        if number not in self._requests:
            return None
        _, future = self._requests.pop(number)
        for command in self._state_machine.end_request(number, self._clock()):
            self._carry_out(command)
        return future

    def _fail_requests(self, rank: int) -> None:
        for number in [number for number, (asked, _) in self._requests.items() if asked == rank]:
            if (future := self._end_request(number)) is not None:
                future.set_exception(self._rank_lost_error(rank, "ended before it answered"))

    def _rank_lost_error(self, rank: int, problem: str) -> RanksLost:
        why = f": {self._state_machine.reason}" if self._state_machine.reason else ""
        has_next_step = "%mhjax restart" in why or "Fix:" in why
        next_step = "" if has_next_step else "\n  Fix: %mhjax restart --replay"
        return RanksLost(f"rank {rank} {problem}{why}{next_step}", ranks=(rank,))

    def _check_hosts(self, now: float) -> None:
        if self._state_machine.state == "starting":
            self._host_monitor.request_heartbeats(now)
            changed = (position := self._host_monitor.queue_status()) != self._state_machine.registry.queue_position
            if position or changed:
                self._handle(HostsQueued(position))
            if changed or now >= self._next_report:
                # Also without a change, so that the waiting user sees from the first moment that the start makes progress.
                self._next_report = now + _REPORT_S
                self._listener.on_progress(self._state_machine, now)
        elif self._state_machine.has_slow_requests(now):
            self._host_monitor.request_heartbeats(now)
        for event in self._host_monitor.check_halted(self._state_machine.registry, now):
            if isinstance(event, RankExited):
                self._handle(event)
                self._fail_requests(event.rank)
            else:
                self._carry_out(NotifyUser(event))
        for lost in self._host_monitor.find_lost(self._state_machine.registry, now):
            self._handle(lost)
            for rank in self._state_machine.registry.ranks_of(lost.supervisor):
                self._fail_requests(rank)

    def _update_hang_report(self, now: float) -> None:
        cell = self._state_machine.current
        # Time alone changes what is shown: a rank may be too busy to send anything.
        self._dirty = self._dirty or (cell is not None and self._pace.idle_s(now) >= _REPORT_S)
        if cell is None or now - cell.started_at < _HANG_REPORT_AFTER_S:
            self._next_last_events = 0.0
        elif now >= self._next_last_events:
            self._next_last_events = now + _HANG_REPORT_EVERY_S
            last_events = self._host_monitor.read_last_events(self._state_machine.registry)
            self._state_machine.record_last_events(last_events)

    def _show_snapshot(self, now: float) -> None:
        cell = self._state_machine.current
        if cell is None or not self._dirty or now < cell.started_at + LIVE_AFTER_S or self._pace.wait_s(now) > 0:
            return
        self._pace.record_sent(now)
        submission = self._submissions.get(cell.ticket)
        if submission is not None and submission.live:
            self._dirty = False
            self._put_snapshot(cell, submission, now)

    def _put_snapshot(self, cell: Cell, submission: CellFuture, now: float) -> None:
        submission.was_shown = True
        submission.updates.put(cell.result(now, self._state_machine.process_count))

    def _show_debugger(self, submission: CellFuture, update: DebugUpdate) -> None:
        cell = self._state_machine.current
        if submission.live and not submission.was_shown and cell is not None and cell.ticket == submission.ticket:
            # A rank may stop before anything was shown, and the view belongs above the prompt.
            self._put_snapshot(cell, submission, self._clock())
        submission.updates.put(update)

    def _show_waits(self, now: float) -> None:
        for ticket, submission in self._submissions.items():
            waited_s = now - submission.submitted_at
            if not submission.live or waited_s < submission.next_wait_note_s:
                continue
            if text := self._state_machine.describe_wait(ticket, now):
                submission.next_wait_note_s = waited_s + _REPORT_S
                submission.updates.put(CellResult(0, "", (), waited_s, done=False, waiting=text))

    def _show_late(self, now: float | None = None) -> None:
        for result in self._late.take_due(now):
            self._listener.on_late(result)

    # -- commands

    def _handle(self, event: Event) -> None:
        for command in self._state_machine.handle(event, self._clock()):
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case SendToRank(rank, message):
                self._transport.send(rank_peer(rank), message)
            case FinishCell(ticket, result, record):
                # Late output that arrives during a cell is shown within it.
                self._show_late()
                # Before its submitter gets the result, so that a result that was seen can always be replayed.
                if self._write_record is not None and record is not None:
                    self._write_record(record)
                self._finish(ticket, result)
            case WriteRecord(record) if self._write_record is not None:
                self._write_record(record)
            case RefuseCell(ticket, error) if error is not None:
                self._finish(ticket, error)
            case ShowDebugger(ticket, update) if ticket in self._submissions:
                self._show_debugger(self._submissions[ticket], update)
            case SendToHosts(message):
                self._host_monitor.broadcast(message)
            case StopBeforeLaunch() | SignalRanks() | DisconnectRanks() | KillRanks():
                self._host_monitor.carry_out(command, self._state_machine.registry, self._clock())
            case ShowLateOutput(result):
                self._late.add(result, self._clock(), is_busy=self._state_machine.current is not None)
            case NotifyUser(text):
                self._show_late()
                self._listener.on_notice(text)
            case RunPreflight() | ReportReady() | FailStart():
                self._carry_out_start(command)

    def _carry_out_start(self, command: RunPreflight | ReportReady | FailStart) -> None:
        match command:
            case RunPreflight():
                self._host_monitor.check_hosts(command, lambda error: self.post(PreflightEnded(error)))
            case ReportReady():
                self._listener.on_progress(self._state_machine, self._clock())
            case FailStart(error):
                self._listener.on_failure(error)

    def _finish(self, ticket: int, update: Update) -> None:
        submission = self._submissions.pop(ticket, None)
        if submission is not None:
            submission.updates.put(update)

    def _fail_pending(self) -> None:
        """Fail all pending submissions and requests, and an awaited start."""
        self._stopping = True
        self._host_monitor.close_requests()
        self._show_late()
        self._listener.on_failure(
            NotStarted(f"the cluster is stopped: {self._state_machine.reason or 'you stopped it'}")
        )
        error = NotStarted("the cluster was stopped before this cell could run")
        for ticket in list(self._submissions):
            self._finish(ticket, error)
        for rank in range(self._state_machine.process_count):
            self._fail_requests(rank)
        for item in self._drain_requests():
            item.future.set_exception(error)

    def _drain_requests(self) -> Iterator[_PendingRequest]:
        while not self._inbox.empty():
            if isinstance(item := self._inbox.get_nowait(), _PendingRequest):
                yield item


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    """A request on its way to the transport."""

    rank: int
    request: RankRequest
    future: Future[RankReply]
