"""Event-loop thread that serves the transport and the state machine, from start to stop, also between cells.

It turns messages, submissions, exits and time into events, and the state machine's commands into sends and replies.
Only the submitter of a cell passes its own event in directly, under the event loop's lock, because waking another thread takes longer.
"""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from mhnb.core.explain.where import WhereCard
from mhnb.core.keep.journal import CellRecord
from mhnb.core.life.events import (
    AskInterrupt,
    CellSubmitted,
    Command,
    Event,
    FailStart,
    FinishCell,
    FreeRanks,
    HostExited,
    HostsQueued,
    KeepRecord,
    KillRanks,
    RefuseCell,
    ReportReady,
    SendToHosts,
    SendToRank,
    ShowLate,
    SignalRanks,
    StopRequested,
    TellUser,
    Ticked,
)
from mhnb.core.life.late import LateOutput
from mhnb.core.life.machine import Machine
from mhnb.core.output.pace import Pace
from mhnb.core.wire.protocol import (
    Answer,
    Ask,
    Beat,
    HostUp,
    Message,
    RankExited,
    RankReady,
    RankSpawned,
    StopHost,
)
from mhnb.drive.listening import Listener
from mhnb.drive.submission import Submission, Update
from mhnb.drive.watching import HostWatch, say_left
from mhnb.errors import NotStarted, RanksLost, UnknownMessage
from mhnb.link.base import Link, rank_peer

__all__ = ["Reader"]

_TICK_S, _IDLE_S, _REPORT_S = 0.1, 0.25, 1.0
LIVE_AFTER_S = 0.15
"""A cell that runs longer is shown while it runs."""
_WHERE_AFTER_S, _WHERE_EVERY_S = 2.0, 1.0
"""Seconds after which the rank positions of a running cell are reported, and the interval between reports."""


class Reader:
    """Event loop of one cluster generation.

    Args:
        link: the open transport; closed when the loop ends.
        machine: the state machine of this generation.
        hosts: the monitor of the supervisors.
        clock: monotonic clock, in seconds.
        listener: receives starts, late output and deaths.
        keep: stores the record of each cell that ends, before its submitter gets the result.
    """

    def __init__(
        self,
        link: Link,
        machine: Machine,
        hosts: HostWatch,
        *,
        clock: Callable[[], float],
        listener: Listener,
        keep: Callable[[CellRecord], None] | None = None,
    ) -> None:
        self._link, self._machine, self._hosts = link, machine, hosts
        self._clock, self._listener, self._keep = clock, listener, keep
        self._inbox: queue.SimpleQueue[Event | _Asked | None] = queue.SimpleQueue()
        self._submissions: dict[int, Submission] = {}
        self._asks: dict[int, tuple[int, Future[Answer]]] = {}
        self._last_ask = self._last_ticket = 0
        self._next_tick = self._next_report = 0.0
        self._pace, self._late = Pace(), LateOutput()
        self._next_where: float | None = None
        """When to report the rank positions next; None while nothing is reported."""
        self._dirty = self._stopping = self._closed = False
        self._refused: set[str] = set()
        """Peers that were disconnected because they sent an invalid message."""
        self._defect: Exception | None = None
        self._gone = "the cluster is stopped; mhnb.current() is the one that was started or restarted since, and %mhjax start starts one"
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
        """Queue an event. After the end it is dropped, which is not an error."""
        self._put(event)

    def submit(self, event_of: Callable[[int], CellSubmitted], *, live: bool) -> Submission:
        """Submit a cell; the updates of the submission end with a done result or an error."""
        with self._lock:
            # One lock for tickets and sends: the cells of two threads get one order, the same on every rank.
            self._last_ticket += 1
            submission = Submission(self._last_ticket, live)
            self._submissions[submission.ticket] = submission
            if self._closed:
                self._finish(submission.ticket, NotStarted(self._gone))
            else:
                self._send_at_once(event_of(submission.ticket))
        return submission

    def _send_at_once(self, event: CellSubmitted) -> None:
        try:
            self._drain_inbox()
            self._handle(event)
        except Exception as error:  # noqa: BLE001  # the loop raises it, where a defect ends the cluster visibly
            self._defect = error
            self._link.wake()

    def ask(self, rank: int, verb: str, arguments: dict[str, object], payload: Sequence[bytes] = ()) -> Future[Answer]:
        """Send a request to a rank between cells."""
        with self._lock:
            self._last_ask += 1
            future: Future[Answer] = Future()
            # From here on the future cannot be cancelled: the loop must not find it already completed.
            future.set_running_or_notify_cancel()
            taken = self._put_locked(_Asked(rank, Ask(self._last_ask, verb, arguments, tuple(payload)), future))
        if not taken:
            future.set_exception(NotStarted(self._gone))
        return future

    def where(self) -> WhereCard | None:
        """Return a hang report of the running cell; None if no cell runs."""
        with self._lock:
            return self._machine.where(self._clock())

    def close(self, timeout_s: float) -> None:
        """Order the supervisors to end everything, and end the loop."""
        self._put(None)
        self._thread.join(timeout_s)

    def leave(self, timeout_s: float, gone: str) -> None:
        """End the loop without stopping any supervisor; later calls are refused with the text in `gone`."""
        with self._lock:
            self._stopping, self._gone = True, gone
            if not self._closed:
                self._link.wake()
        self._thread.join(timeout_s)
        with self._lock:
            # For this notebook only; its ranks are not notified.
            self._machine.handle(StopRequested(gone), self._clock())

    def _put(self, item: Event | _Asked | None) -> bool:
        with self._lock:
            return self._put_locked(item)

    def _put_locked(self, item: Event | _Asked | None) -> bool:
        """Queue an item for the loop; return False if the loop has ended."""
        if self._closed:
            return False
        self._inbox.put(item)
        self._link.wake()
        return True

    @property
    def alive(self) -> bool:
        """Whether the loop still runs."""
        return self._thread.is_alive()

    # -- the loop

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
            if left := say_left(self._machine.roster, self._hosts.see_off(self._clock)):
                self._listener.on_notice(left)
        except Exception:  # noqa: BLE001  # reported below
            # The outermost broad catch: a defect of mhnb ends the cluster visibly, and no caller waits forever.
            text = traceback.format_exc()
            print(text, file=sys.stderr)
            # No message of the ranks will be read any more, so the state machine takes no cell from here on.
            self._machine.handle(StopRequested(), self._clock())
            self._machine.reason = "mhnb's reader thread failed; please report it"
            self._listener.on_notice(
                f"mhnb's reader thread failed; the cluster cannot go on. Please report this:\n{text}"
            )
        finally:
            with self._lock:
                self._closed = True
                self._give_up()
                self._link.close()

    def _turn(self) -> None:
        busy = self._machine.current is not None or self._machine.state == "starting"
        messages = self._link.poll_named(self._until_show() if busy else _IDLE_S)
        with self._lock:
            if self._defect is not None:
                raise self._defect
            for peer, message in messages:
                self._take(peer, message)
            for peer, why in self._link.take_cut():
                self._refuse(peer, why)
            self._drain_inbox()
            now = self._clock()
            if now >= self._next_tick:
                self._next_tick = now + _TICK_S
                self._look_at_hosts(now)
                self._handle(Ticked())
                self._tell_where(now)
            self._show(now)
            self._show_late(now)

    def _until_show(self) -> float:
        """Return how long to wait for messages at most. An update is shown at once, unless something was shown a moment ago."""
        cell = self._machine.current
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
                self._hosts.tell(StopHost())
            elif isinstance(item, _Asked):
                self._send_ask(item)
            else:
                self._handle(item)

    def _take(self, peer: str, message: Message) -> None:
        """Process a message. A peer that sends an invalid message is disconnected, and the loop goes on."""
        if peer in self._refused:
            # The message was already on its way.
            return
        try:
            self._machine.roster.check_sender(peer, message)
        except UnknownMessage as error:
            self._refuse(peer, str(error))
            return
        try:
            self._take_message(message)
        except Exception as error:  # noqa: BLE001  # reported to the user; the traceback is printed for the log
            traceback.print_exc()
            # A cell is judged when its last rank ends, so the reply that cannot be judged may be another rank's.
            peers = self._find_garbled() or {peer: error}
            for each, cause in peers.items():
                self._refuse(each, f"its {message.kind} could not be taken in: {type(cause).__name__}: {cause}")
            # The message was processed only in part, so no cell can be judged by the present state.
            who = " and ".join(map(self._machine.roster.name_peer, peers))
            for command in self._machine.fail(f"what {who} sent could not be taken in"):
                self._carry_out(command)
            gone = RanksLost(f"{self._machine.reason}\n  %mhjax restart --replay", ranks=())
            for ticket in list(self._submissions):
                self._finish(ticket, gone)

    def _find_garbled(self) -> dict[str, Exception]:
        """Return the ranks whose own reply cannot be judged; empty if no judgement failed, or not because of a single rank."""
        found: dict[str, Exception] = {}
        for rank, judge in self._machine.judged_alone.items():
            try:
                judge()
            except Exception as error:  # noqa: BLE001  # reported to the user
                found[rank_peer(rank)] = error
        return found

    def _refuse(self, peer: str, why: str) -> None:
        """Disconnect an authenticated peer that sent an invalid message, and end its process, so that nothing waits for it in vain."""
        if peer in self._refused:
            return
        self._refused.add(peer)
        self._link.cut(peer)
        who, number = self._machine.roster.name_peer(peer), int(peer[1:])
        self._listener.on_notice(f"{who} sent a message that cannot be: {why}\n  mhnb ended its connection")
        if peer.startswith("s"):
            self._handle(
                HostExited(
                    number, f"{who} is lost: mhnb ended its connection, because it sent a message that cannot be"
                )
            )
        elif number < self._machine.process_count:
            self._machine.roster.note_refused(number)
            self._carry_out(KillRanks((number,)))

    def _take_message(self, message: Message) -> None:
        if isinstance(message, HostUp | Beat):
            self._hosts.hear(message, self._clock())
        if isinstance(message, RankSpawned):
            self._hosts.note_spawned(self._machine.roster.entries[message.rank].supervisor, self._clock())
        if isinstance(message, Beat):
            self._machine.roster.note_beat(message, goes_on=self._hosts.is_elsewhere(message.supervisor))
        if isinstance(message, Answer):
            _, future = self._asks.pop(message.ask_id, (0, None))
            if future is not None:
                future.set_result(message)
            return
        self._dirty = True
        self._handle(message)
        if isinstance(message, RankExited):
            self._fail_asks(message.rank)
        if self._machine.state == "starting" or isinstance(message, HostUp | RankReady):
            self._listener.on_progress(self._machine, self._clock())

    def _send_ask(self, item: _Asked) -> None:
        # A rank whose supervisor is lost is lost too, although nothing could report it.
        lost = item.rank not in self._machine.roster.alive
        if lost or self._machine.state == "stopped":
            item.future.set_exception(self._say_gone(item.rank, "cannot be asked any more"))
            return
        self._asks[item.ask.ask_id] = (item.rank, item.future)
        self._link.send(rank_peer(item.rank), item.ask)

    def _fail_asks(self, rank: int) -> None:
        for number, (asked, future) in list(self._asks.items()):
            if asked == rank:
                del self._asks[number]
                future.set_exception(self._say_gone(rank, "ended before it answered"))

    def _say_gone(self, rank: int, how: str) -> RanksLost:
        why = f": {self._machine.reason}" if self._machine.reason else ""
        way = "" if "%mhjax restart" in why else "\n  %mhjax restart --replay"
        return RanksLost(f"rank {rank} {how}{why}{way}", ranks=(rank,))

    def _look_at_hosts(self, now: float) -> None:
        if self._machine.state == "starting":
            self._hosts.ask_how(now)
            changed = (standing := self._hosts.standing()) != self._machine.roster.standing
            if standing or changed:
                self._handle(HostsQueued(standing))
            if changed or now >= self._next_report:
                # Also without a change, so that the waiting user sees from the first moment that the start goes on.
                self._next_report = now + _REPORT_S
                self._listener.on_progress(self._machine, now)
        for seen in self._hosts.look_for_halted(self._machine.roster, now):
            if isinstance(seen, RankExited):
                self._handle(seen)
                self._fail_asks(seen.rank)
            else:
                self._carry_out(TellUser(seen))
        for supervisor, cause in self._hosts.find_lost(self._machine.roster, now):
            self._handle(HostExited(supervisor, cause))
            for rank in self._machine.roster.ranks_of(supervisor):
                self._fail_asks(rank)

    def _tell_where(self, now: float) -> None:
        cell = self._machine.current
        # Time alone changes what is shown: a rank may be too busy to send anything.
        self._dirty = self._dirty or (cell is not None and self._pace.idle_s(now) >= _REPORT_S)
        if cell is None or now - cell.started_at < _WHERE_AFTER_S:
            if self._next_where is not None:
                self._next_where = None
                self._listener.on_where(None)
        elif self._next_where is None or now >= self._next_where:
            self._next_where = now + _WHERE_EVERY_S
            self._listener.on_where(self._machine.where(now))

    def _show(self, now: float) -> None:
        cell = self._machine.current
        if cell is None or not self._dirty or now < cell.started_at + LIVE_AFTER_S or self._pace.wait_s(now) > 0:
            return
        self._pace.take(now)
        submission = self._submissions.get(cell.ticket)
        if submission is not None and submission.live:
            self._dirty = False
            submission.updates.put(cell.result(now, self._machine.process_count))

    def _show_late(self, now: float | None = None) -> None:
        for result in self._late.take(now):
            self._listener.on_late(result)

    # -- commands

    def _handle(self, event: Event) -> None:
        for command in self._machine.handle(event, self._clock()):
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case SendToRank(rank, message):
                self._link.send(rank_peer(rank), message)
            case FinishCell(ticket, result, record):
                # Late output that arrives during a cell is shown within it.
                self._show_late()
                # Before its submitter gets the result, so that a result that was seen can always be replayed.
                if self._keep is not None and record is not None:
                    self._keep(record)
                self._finish(ticket, result)
            case KeepRecord(record) if self._keep is not None:
                self._keep(record)
            case RefuseCell(ticket, error) if error is not None:
                self._finish(ticket, error)
            case SendToHosts(message):
                self._hosts.tell(message)
            case AskInterrupt() | SignalRanks() | FreeRanks() | KillRanks():
                self._hosts.carry_out(command, self._machine.roster, self._clock())
            case ShowLate(result):
                self._late.note(result, self._clock(), busy=self._machine.current is not None)
            case TellUser(text):
                self._show_late()
                self._listener.on_notice(text)
            case ReportReady():
                self._listener.on_progress(self._machine, self._clock())
            case FailStart(error):
                self._listener.on_failure(error)

    def _finish(self, ticket: int, update: Update) -> None:
        submission = self._submissions.pop(ticket, None)
        if submission is not None:
            submission.updates.put(update)

    def _give_up(self) -> None:
        """Fail all pending submissions and requests, and a start that is still awaited."""
        self._stopping = True
        self._show_late()
        self._listener.on_failure(NotStarted(f"the cluster is stopped: {self._machine.reason or 'by its user'}"))
        gone = NotStarted("the cluster was stopped before the cell's turn came")
        for ticket in list(self._submissions):
            self._finish(ticket, gone)
        for rank in range(self._machine.process_count):
            self._fail_asks(rank)
        for item in self._left_in_inbox():
            item.future.set_exception(gone)

    def _left_in_inbox(self) -> Iterator[_Asked]:
        while not self._inbox.empty():
            if isinstance(item := self._inbox.get_nowait(), _Asked):
                yield item


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request on its way to the transport."""

    rank: int
    ask: Ask
    future: Future[Answer]
