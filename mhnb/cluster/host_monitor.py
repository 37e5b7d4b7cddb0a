"""Monitor of the supervisors: send messages to all, and detect lost ones.

A supervisor on this machine is lost when its process has ended. A remote one is lost also when its connection
ends, or when it is silent for too long.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from mhnb.core.flight import FlightEvent, RankFlight, decode_flight, parse_flight
from mhnb.core.messages import (
    CheckHost,
    CloseConnections,
    Heartbeat,
    HostChecked,
    HostUp,
    InterruptCell,
    Message,
    RankExited,
    SignalRank,
    StartRanks,
    StopHost,
)
from mhnb.core.ranks import describe_ranks
from mhnb.core.state.events import (
    DisconnectRanks,
    HostExited,
    KillRanks,
    RunPreflight,
    SignalRanks,
    StopBeforeLaunch,
)
from mhnb.core.state.host_tracking import HOST_TIMEOUT_FACTOR, HeartbeatMonitor, SuspendDetector
from mhnb.core.state.rank_registry import RankEntry, RankRegistry
from mhnb.errors import LaunchError, MhnbError
from mhnb.launchers.base import FailureReporter, Host, QueuedHost
from mhnb.launchers.remote_command import TaskHosts
from mhnb.rank.guard.shared_board import SharedBoard
from mhnb.system.flight import flight_path, read_flight, read_last_event, write_flight_copy
from mhnb.system.processes import find_exit_status, is_stopped
from mhnb.system.waiting import wait_until
from mhnb.transport.base import Transport, supervisor_peer

_CLOSE_S, _CLOSE_DETACHABLE_S = 1.5, 5.0
"""Seconds for supervisors to end their ranks and disconnect. Those that would outlive this process are reported if they do not."""
_CONFIRM_MARGIN_S, _POLL_S = 10.0, 0.005
_HEARTBEAT_REQUEST_EVERY_S = 1.0
_HALTED_CHECK_EVERY_S = 0.5
_KILL_CONFIRM_S = 5.0
"""A remote host that was ordered to kill ranks must give a sign of life within this time, or is lost."""
_IMPORT_ALLOWANCE_S = 60.0
"""While it imports JAX, a supervisor is silent, and a busy file system delays it beyond the usual limit."""
_FLIGHT_ANSWER_S = 20.0
_read_real_clock = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HostMonitor:
    """Monitors the supervisors of one generation.

    Args:
        transport: the transport that reaches them.
        hosts: their processes.
        timeout_s: a remote supervisor that is silent for longer is lost.
        real_clock: seconds, which advance also while this machine sleeps.
        run_dir: of the generation, on this machine.
        run_preflight: checks the hosts, in a thread of its own; returns what prevents a start, or None.
    """

    def __init__(
        self,
        transport: Transport,
        hosts: Sequence[Host],
        *,
        timeout_s: float = 20.0,
        real_clock: Callable[[], float] = _read_real_clock,
        run_dir: Path = Path(),
        run_preflight: Callable[[RunPreflight, HostRequests], MhnbError | None] = lambda _command, _requests: None,
    ) -> None:
        self._transport, self._hosts = transport, list(hosts)
        self._monitored_remote = {k for host in hosts if host.is_remote for k in host.supervisors}
        self._all_remote = frozenset(self._monitored_remote)
        self._all = tuple(k for host in hosts for k in host.supervisors)
        self._connected_remote = set(self._monitored_remote)
        """Remote supervisors whose end has not been observed."""
        self._heartbeats, self._suspend_detector = HeartbeatMonitor(timeout_s), SuspendDetector()
        self._timeout_s, self._real_clock = timeout_s, real_clock
        self._is_stopping = self._is_detachable = False
        self._heartbeats_requested_at = self._halted_checked_at = 0.0
        self._run_dir, self._run_preflight = run_dir, run_preflight
        self._requests = HostRequests(lambda supervisor, request: self._send_to([supervisor], request))
        self._flight_lock = threading.Lock()
        """Two threads would write the same copies."""
        self._halted: set[int] = set()
        """Supervisors on this machine that were halted at the last sample."""
        self._importing: set[int] = set()
        """Supervisors that have the order to start their ranks, and have not started one yet."""
        self._unconfirmed = set(self._all)
        """Supervisors that have not confirmed yet that they outlive this process."""

    def broadcast(self, message: Message) -> None:
        """Send a message to every supervisor, which applies it to its ranks."""
        if isinstance(message, StopHost):
            self._is_stopping = True
            self._requests.close()
        if isinstance(message, StartRanks):
            self._importing = set(self._monitored_remote)
            self._heartbeats.allow_silence(_IMPORT_ALLOWANCE_S)
        # Also to those that were given up: one that comes back must end with the others.
        for supervisor in self._all:
            self._transport.send(supervisor_peer(supervisor), message)

    def carry_out(
        self, command: StopBeforeLaunch | SignalRanks | DisconnectRanks | KillRanks, registry: RankRegistry, now: float
    ) -> None:
        """Order all supervisors to act on ranks; each handles its own ranks.

        For a halted supervisor on this machine, this process acts instead. It gets no message, because it would obey much later.
        """
        halted = self._find_halted()
        running = [k for k in self._all if k not in halted]
        if isinstance(command, StopBeforeLaunch):
            self._send_to(running, InterruptCell(command.seq))
        elif isinstance(command, DisconnectRanks):
            self._send_to(running, CloseConnections())
        else:
            signum = command.signum if isinstance(command, SignalRanks) else int(signal.SIGKILL)
            for rank in command.ranks:
                self._send_to(running, SignalRank(rank, signum))
        if isinstance(command, KillRanks):
            self._heartbeats.limit_wait(now, _KILL_CONFIRM_S)
        pid_by_rank = {
            entry.rank: entry.pid for entry in registry.entries if entry.supervisor in halted and entry.exit is None
        }
        if pid_by_rank:
            self._act_for_halted(command, pid_by_rank, len(registry.entries))

    def _act_for_halted(
        self,
        command: StopBeforeLaunch | SignalRanks | DisconnectRanks | KillRanks,
        pid_by_rank: Mapping[int, int | None],
        process_count: int,
    ) -> None:
        """Act for the halted supervisor of these ranks."""
        if isinstance(command, StopBeforeLaunch | DisconnectRanks):
            if (board := open_shared_board(self._run_dir, process_count)) is not None:
                if isinstance(command, StopBeforeLaunch):
                    board.request_interrupt(command.seq)
                else:
                    board.request_close()
                board.close()
            return
        signum = command.signum if isinstance(command, SignalRanks) else int(signal.SIGKILL)
        for pid in filter(None, map(pid_by_rank.get, command.ranks)):
            # Its parent cannot have waited for it, so its process id is not reused. The group may have ended anyway.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signum)

    def _send_to(self, supervisors: Sequence[int], message: Message) -> None:
        for supervisor in supervisors:
            self._transport.send(supervisor_peer(supervisor), message)

    def _find_halted(self) -> set[int]:
        """Return the local supervisors whose process is halted at this moment."""
        here = [host for host in self._hosts if not host.is_remote and host.pid]
        return {k for host in here if is_stopped(host.pid) for k in host.supervisors}

    def check_halted(self, registry: RankRegistry, now: float) -> Iterator[RankExited | str]:
        """Yield notices of halted local supervisors, and unreported exits of their ranks."""
        if now - self._halted_checked_at < _HALTED_CHECK_EVERY_S:
            return
        self._halted_checked_at = now
        before, self._halted = self._halted, self._find_halted()
        for host in self._hosts:
            for k in host.supervisors:
                if k in self._halted - before:
                    yield _describe_halted(host.pid, registry.ranks_of(k))
                elif k in before - self._halted:
                    yield f"the supervisor of this machine (pid {host.pid}) is running again"
        for entry in registry.entries:
            is_unreported = entry.supervisor in self._halted and entry.exit is None and entry.pid is not None
            if is_unreported and (end := find_exit_status(entry.pid or 0)) is not None:
                yield RankExited(entry.rank, *end, [])

    def make_detachable(self, is_loop_alive: Callable[[], bool]) -> None:
        """Make supervisors outlive this process from now on, and await their confirmation.

        Call it after the cluster's record was written, and not in the event-loop thread. It returns when each has
        confirmed or is lost, because this process may end at the next moment. It returns at the latest when a remote
        supervisor would be lost.

        Args:
            is_loop_alive: whether the event-loop thread still runs; otherwise no confirmation will arrive.
        """
        self._is_detachable = True
        for supervisor in self._all:
            self._transport.send(supervisor_peer(supervisor), Heartbeat(supervisor, outlives_notebook=True))
        # A remote supervisor is lost by then. A local one that is silent for so long was stopped, and reads the message
        # when it continues.
        limit_s = self._timeout_s + _CONFIRM_MARGIN_S
        # No lock: Ctrl-C could leave one held, and the event loop would wait for it.
        wait_until(lambda: not self._unconfirmed or not is_loop_alive(), limit_s, _POLL_S)

    def check_hosts(self, command: RunPreflight, on_end: Callable[[MhnbError | None], None]) -> None:
        """Begin to check the hosts, in a thread of its own.

        Args:
            command: what the supervisors have reported.
            on_end: receives what prevents the start, or None. Not called if the checks are stopped.
        """

        def work() -> None:
            try:
                error = self._run_preflight(command, self._requests)
            except RequestsClosed:
                return
            except MhnbError as refusal:
                error = refusal
            except Exception as defect:  # noqa: BLE001  # not reported elsewhere, and the start would wait forever
                traceback.print_exc()
                error = LaunchError(
                    f"internal error in the preflight checks: {type(defect).__name__}: {defect}. Please report it"
                )
            on_end(error)

        threading.Thread(target=work, name="mhnb-preflight", daemon=True).start()

    def deliver(self, message: HostChecked) -> None:
        """Pass an answer to the thread that waits for it."""
        self._requests.deliver(message)

    def close_requests(self) -> None:
        """End the waits for supervisors' answers after the event loop's end."""
        self._requests.close()

    def request_heartbeats(self, now: float) -> None:
        """Request heartbeats from local supervisors too, because a rank may be halted."""
        if now - self._heartbeats_requested_at >= _HEARTBEAT_REQUEST_EVERY_S:
            self._heartbeats_requested_at = now
            for supervisor in self._all:
                if supervisor not in self._all_remote:
                    self._transport.send(
                        supervisor_peer(supervisor), Heartbeat(supervisor, outlives_notebook=self._is_detachable)
                    )

    def read_last_events(self, registry: RankRegistry) -> dict[int, FlightEvent]:
        """Return local ranks' last recorded events; remote ones come with heartbeats."""
        here = [entry.rank for entry in registry.entries if entry.supervisor not in self._all_remote]
        read = ((rank, read_last_event(flight_path(self._run_dir, rank))) for rank in here)
        return {rank: event for rank, event in read if event is not None}

    def read_flights(self, registry: RankRegistry) -> list[RankFlight]:
        """Return the flight recordings of all ranks, also from remote supervisors.

        Not to be called in the event-loop thread.
        """
        flights = {}
        waiting: dict[int, list[RankEntry]] = {}
        silent: set[int] = set()
        for entry in registry.entries:
            if problem := str(entry.facts.get("flight", "")):
                flights[entry.rank] = RankFlight(entry.rank, problem=problem)
            elif entry.supervisor not in self._all_remote:
                flights[entry.rank] = read_flight(flight_path(self._run_dir, entry.rank), entry.rank)
            elif entry.supervisor in registry.lost_supervisors or self._is_stopping:
                flights[entry.rank] = RankFlight(
                    entry.rank, problem=_describe_unread(entry, "cannot be asked any more")
                )
            else:
                waiting.setdefault(entry.supervisor, []).append(entry)
        with self._flight_lock:
            # One rank of each host at a time, so that no message is large.
            for entries in itertools.zip_longest(*waiting.values()):
                flights |= self._ask_for_flights([entry for entry in entries if entry is not None], silent)
        return [flights[entry.rank] for entry in registry.entries]

    def _ask_for_flights(self, entries: Sequence[RankEntry], silent: set[int]) -> dict[int, RankFlight]:
        """Request recordings from hosts not in `silent`; add late hosts to it."""
        requests = {entry.supervisor: {"rank": entry.rank} for entry in entries if entry.supervisor not in silent}
        try:
            answers = self._requests.ask("flight", requests, timeout_s=_FLIGHT_ANSWER_S) if requests else {}
        except RequestsClosed:
            # The cluster was stopped meanwhile.
            answers = {}
        silent |= requests.keys() - answers.keys()
        return {entry.rank: self._take_flight(entry, answers.get(entry.supervisor)) for entry in entries}

    def _take_flight(self, entry: RankEntry, answer: HostAnswer | None) -> RankFlight:
        """Read a host's answer, and keep a copy for `mhnb flight`."""
        if answer is None or answer.error:
            return RankFlight(entry.rank, problem=answer.error if answer else _describe_unread(entry, "did not answer"))
        try:
            data = decode_flight(str(answer.value))
        except ValueError as error:
            return RankFlight(entry.rank, problem=f"its host sent a recording that cannot be read: {error}")
        flight = parse_flight(entry.rank, data)
        try:
            write_flight_copy(self._run_dir, entry.rank, data)
        except OSError as error:
            flight = structs.replace(flight, problem=flight.problem or f"no copy for `mhnb flight` was kept: {error}")
        return flight

    def is_remote(self, supervisor: int) -> bool:
        """Whether the supervisor is remote, and so is always asked for heartbeats."""
        return supervisor in self._all_remote

    def queue_status(self) -> str:
        """Return the hosts' position in a scheduler's queue; empty if none waits."""
        return next(
            (host.queue_status for host in self._hosts if isinstance(host, QueuedHost) and host.queue_status), ""
        )

    def wait_closed(self, clock: Callable[[], float]) -> tuple[int, ...]:
        """Wait briefly until remote supervisors that were ordered to stop have disconnected.

        Closing a connection that has unread data discards what was sent last. Most supervisors would end all the same, by their
        watchdog; those that were ordered to outlive this process would live on forever.

        Returns:
            Those of the latter that have not disconnected.
        """
        waited_for = {supervisor_peer(k) for k in self._connected_remote} if self._is_stopping else set()
        until = clock() + (_CLOSE_DETACHABLE_S if self._is_detachable else _CLOSE_S)
        while waited_for and (left_s := until - clock()) > 0:
            for message in self._transport.poll(left_s):
                if isinstance(message, HostUp):
                    # It connected while the others were being stopped.
                    self._transport.send(supervisor_peer(message.supervisor), StopHost())
            waited_for -= set(self._transport.pop_disconnected())
        return tuple(k for k in self._all if self._is_detachable and supervisor_peer(k) in waited_for)

    def on_message(self, message: Message, now: float) -> None:
        """Record a sign of life."""
        if isinstance(message, Heartbeat) and message.outlives_notebook:
            self._unconfirmed.discard(message.supervisor)
        if isinstance(message, HostUp):
            if self._is_detachable:
                # It connects, or reconnects, after `make_detachable`, which could not reach it.
                self._transport.send(
                    supervisor_peer(message.supervisor), Heartbeat(message.supervisor, outlives_notebook=True)
                )
            self._connected_remote |= {message.supervisor} & self._all_remote
            for host in self._hosts:
                if isinstance(host, TaskHosts):
                    host.record_report(message.supervisor)
        if isinstance(message, HostUp | Heartbeat) and message.supervisor in self._monitored_remote:
            # The allowance holds from the first report on, because the order to start the ranks may follow at once.
            is_importing = isinstance(message, HostUp) or message.supervisor in self._importing
            self._heartbeats.record(message.supervisor, now, extra_s=_IMPORT_ALLOWANCE_S if is_importing else 0.0)

    def note_spawned(self, supervisor: int, now: float) -> None:
        """End a supervisor's import allowance, because it has started a rank."""
        self._importing.discard(supervisor)
        if supervisor in self._monitored_remote:
            self._heartbeats.record(supervisor, now)

    def find_lost(self, registry: RankRegistry, now: float) -> Iterator[HostExited]:
        """Yield newly lost supervisors, and request heartbeats from the others."""
        self._heartbeats.extend(self._suspend_detector.check(now, self._real_clock()))
        for lost in (
            *self._find_failed(registry),
            *self._find_exited(registry),
            *self._find_disconnected(registry),
            *self._find_silent(registry, now),
        ):
            yield replace(lost, cause=lost.cause + self._describe_suspension(now))
        if self._heartbeats.is_due(now):
            for supervisor in self._monitored_remote:
                self._transport.send(
                    supervisor_peer(supervisor), Heartbeat(supervisor, outlives_notebook=self._is_detachable)
                )

    def _find_failed(self, registry: RankRegistry) -> Iterator[HostExited]:
        """Yield supervisors that failed to start while their launch command still runs."""
        if not registry.is_waiting_for_hosts:
            return
        for host in self._hosts:
            if isinstance(host, FailureReporter) and not host.has_exited():
                for supervisor, error in host.start_failures().items():
                    if supervisor not in registry.lost_supervisors:
                        yield self._mark_lost(supervisor, str(error), error)

    def _find_disconnected(self, registry: RankRegistry) -> Iterator[HostExited]:
        for peer in self._transport.pop_disconnected():
            supervisor = int(peer[1:]) if peer.startswith("s") else -1
            self._connected_remote.discard(supervisor)
            if supervisor in self._monitored_remote:
                yield self._mark_lost(
                    supervisor, f"{registry.name_host(supervisor)} is lost: the connection to it ended"
                )

    def _find_silent(self, registry: RankRegistry, now: float) -> Iterator[HostExited]:
        for supervisor, silent_s in self._heartbeats.find_lost(now).items():
            name = registry.name_host(supervisor)
            yield self._mark_lost(supervisor, f"{name} is lost: it has not answered for {silent_s:.0f} s")

    def _describe_suspension(self, now: float) -> str:
        """Describe a suspension of this process that may have ended hosts."""
        lasted_s = self._suspend_detector.recent_duration(now)
        if lasted_s < self._timeout_s or not self._all_remote:
            return ""
        text = f"\n  this notebook did not run for {lasted_s:.0f} s (it was suspended, or its machine slept)"
        if self._is_detachable:
            return text
        return (
            f"{text}. Hosts that hear nothing from it for {HOST_TIMEOUT_FACTOR * self._timeout_s:.0f} s stop their ranks, "
            "unless the cluster was started with --keep"
        )

    def _find_exited(self, registry: RankRegistry) -> Iterator[HostExited]:
        for host in [host for host in self._hosts if host.has_exited()]:
            self._hosts.remove(host)
            # Now, before another process can reuse their ids: what ranks have started outlives a killed supervisor.
            host.wait(tuple(pid for k in host.supervisors for pid in registry.pids_of(k)))
            cause = host.explain()
            failures = host.start_failures() if isinstance(host, FailureReporter) else {}
            for supervisor in host.supervisors:
                yield self._mark_lost(supervisor, cause, failures.get(supervisor))

    def _mark_lost(self, supervisor: int, cause: str, error: LaunchError | None = None) -> HostExited:
        self._heartbeats.remove(supervisor)
        self._requests.mark_lost(supervisor)
        self._monitored_remote.discard(supervisor)
        self._unconfirmed.discard(supervisor)
        return HostExited(supervisor, cause, error)


def _describe_halted(pid: int, ranks: Sequence[int]) -> str:
    effect = (
        f"{describe_ranks(ranks)} continue without it, and this notebook signals them directly"
        if ranks
        else "it runs the hub"
    )
    return (
        f"the supervisor of this machine (pid {pid}) is suspended (SIGSTOP or debugger): {effect}\n"
        f"  Fix: kill -CONT {pid}\n  Or: %mhjax restart --replay"
    )


def _describe_unread(entry: RankEntry, why: str) -> str:
    # `machine:/run/log/rank3.log`
    folder = entry.log_path.rpartition("/log/")[0]
    return f"its host ({entry.host}) {why}; its recording is {flight_path(Path(folder), entry.rank)}"


def open_shared_board(run_dir: Path, process_count: int) -> SharedBoard | None:
    """Open a local cluster's shared board, or return None (engine-only profile)."""
    try:
        return SharedBoard(run_dir, process_count)
    except (OSError, ValueError):
        return None


def describe_orphans(registry: RankRegistry, supervisors: Sequence[int]) -> str:
    """Describe what may still run under supervisors that missed the stop order."""
    if not supervisors:
        return ""
    return (
        f"{', '.join(registry.name_host(k) for k in supervisors)} could not be ordered to stop: "
        "ranks that were started there with --keep may continue to run and wait for a notebook\n"
        "  Fix: on that machine, once it can be reached: pkill -f mhnb.rank.supervisor (ends all of your clusters there)"
    )


# -- requests to the supervisors


class RequestsClosed(Exception):
    """The cluster is stopped, so no supervisor answers any more."""


class HostAnswer(NamedTuple):
    """The answer of a supervisor to one request."""

    value: Any
    error: str
    """Why there is no value; empty if there is one."""
    received_at: float
    """Seconds since 1970."""


class HostRequests:
    """Requests from any thread to supervisors; the event loop delivers answers.

    Args:
        send: sends a message to a supervisor, from any thread.
        clock: seconds since 1970.
    """

    def __init__(self, send: Callable[[int, CheckHost], None], clock: Callable[[], float] = time.time) -> None:
        self._send, self._clock = send, clock
        self._changed = threading.Condition()
        self._request_ids = itertools.count(1)
        self._answers: dict[int, dict[int, HostAnswer]] = {}
        """Request that waits for answers -> supervisor -> its answer."""
        self._lost: set[int] = set()
        self._is_closed = False

    def ask(self, check: str, arguments: Mapping[int, Mapping[str, Any]], *, timeout_s: float) -> dict[int, HostAnswer]:
        """Send requests to supervisors, and return the answers that came in time.

        Raises:
            RequestsClosed: the cluster is stopped.
        """
        request_id, answers = next(self._request_ids), dict[int, HostAnswer]()
        self._answers[request_id] = answers
        for supervisor, own in arguments.items():
            self._send(supervisor, CheckHost(request_id, check, dict(own)))
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or not arguments.keys() - answers.keys() - self._lost, timeout_s
            )
            del self._answers[request_id]
            if self._is_closed:
                raise RequestsClosed
        return answers

    def deliver(self, message: HostChecked) -> None:
        """Record an answer. An answer that arrives too late is dropped."""
        with self._changed:
            if (answers := self._answers.get(message.request_id)) is not None:
                answers[message.supervisor] = HostAnswer(message.value, message.error, self._clock())
                self._changed.notify_all()

    def mark_lost(self, supervisor: int) -> None:
        """Stop waiting for a supervisor that is lost."""
        with self._changed:
            self._lost.add(supervisor)
            self._changed.notify_all()

    def close(self) -> None:
        """End the requests that wait for answers, and refuse further ones."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
