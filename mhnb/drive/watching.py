"""Monitor of the supervisors: send messages to all of them, and detect which are lost.

A supervisor on this machine is lost when its process has ended. A remote one is lost also when its connection
ends, or when it is silent for too long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from mhnb.core.life.events import AskInterrupt, FreeRanks, KillRanks, SignalRanks
from mhnb.core.life.pulse import PATIENCE, Pulse, Standstill
from mhnb.core.life.roster import Roster
from mhnb.core.ranks import say_ranks
from mhnb.core.wire.protocol import (
    Beat,
    CloseConnections,
    HostUp,
    InterruptCell,
    Message,
    RankExited,
    SignalRank,
    StopHost,
)
from mhnb.launch.base import Host, QueuedHost, ReportingHost
from mhnb.link.base import Link, supervisor_peer
from mhnb.rank.guard.shared_board import Board
from mhnb.system.processes import find_end, is_halted

__all__ = ["HostWatch", "find_board", "say_left"]

_SEE_OFF_S, _SEE_OFF_KEPT_S = 1.5, 5.0
"""Seconds for supervisors to end their ranks and disconnect. Those that would outlive this process are reported if they do not."""
_SURE_S, _LOOK_S = 10.0, 0.005
_ASK_HOW_S = 1.0
_LOOK_HALTED_S = 0.5
_KILLED_S = 5.0
"""A remote host that was ordered to kill ranks must give a sign of life within this time, or is lost."""


_IMPORTS_S = 60.0
_read_real_clock = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HostWatch:
    """Monitors the supervisors of one generation.

    Args:
        link: the transport that reaches them.
        hosts: their processes.
        timeout_s: a remote supervisor that is silent for longer is lost.
        real_clock: seconds, which advance also while this machine sleeps.
        board: opens the shared board of the ranks on this machine, so that they can be reached without their supervisor.
    """

    def __init__(
        self,
        link: Link,
        hosts: Sequence[Host],
        *,
        timeout_s: float = 20.0,
        real_clock: Callable[[], float] = _read_real_clock,
        board: Callable[[], Board | None] = lambda: None,
    ) -> None:
        self._link, self._hosts = link, list(hosts)
        self._remote = {k for host in hosts if host.is_remote for k in host.supervisors}
        self._elsewhere = frozenset(self._remote)
        self._all = tuple(k for host in hosts for k in host.supervisors)
        self._there = set(self._remote)
        """Remote supervisors whose end has not been observed."""
        self._pulse, self._standstill = Pulse(timeout_s), Standstill()
        self._timeout_s, self._real_clock = timeout_s, real_clock
        self._ends = self._stays = False
        self._asked_how_at = self._looked_at = 0.0
        self._find_board = board
        self._halted: set[int] = set()
        """Supervisors on this machine that were halted at the last sample."""
        self._unsure = set(self._all)
        """Supervisors that have not confirmed yet that they outlive this process."""

    def tell(self, message: Message) -> None:
        """Send the same message to every supervisor; each applies what concerns its own ranks."""
        self._ends = self._ends or isinstance(message, StopHost)
        # Also to those that were given up: one that comes back must end with the others.
        for supervisor in self._all:
            self._link.send(supervisor_peer(supervisor), message)

    def carry_out(
        self, command: AskInterrupt | SignalRanks | FreeRanks | KillRanks, roster: Roster, now: float
    ) -> None:
        """Send the supervisors an order for ranks: each signals its own ranks and ignores the others.

        For a halted supervisor on this machine, this process acts instead. It gets no message, because it would obey much later.
        """
        halted = self._find_halted()
        awake = [k for k in self._all if k not in halted]
        if isinstance(command, AskInterrupt):
            self._tell_some(awake, InterruptCell(command.seq))
        elif isinstance(command, FreeRanks):
            self._tell_some(awake, CloseConnections())
        else:
            signum = command.signum if isinstance(command, SignalRanks) else int(signal.SIGKILL)
            for rank in command.ranks:
                self._tell_some(awake, SignalRank(rank, signum))
        if isinstance(command, KillRanks):
            self._pulse.hurry(now, _KILLED_S)
        held = {entry.rank: entry.pid for entry in roster.entries if entry.supervisor in halted and entry.exit is None}
        if held:
            self._do_here(command, held)

    def _do_here(
        self, command: AskInterrupt | SignalRanks | FreeRanks | KillRanks, held: Mapping[int, int | None]
    ) -> None:
        """Do what the halted supervisor of these ranks would do; `held` has the ranks with their process ids."""
        if isinstance(command, AskInterrupt | FreeRanks):
            if (board := self._find_board()) is not None:
                if isinstance(command, AskInterrupt):
                    board.ask_interrupt(command.seq)
                else:
                    board.ask_close()
                board.close()
            return
        signum = command.signum if isinstance(command, SignalRanks) else int(signal.SIGKILL)
        for pid in filter(None, map(held.get, command.ranks)):
            # Its parent cannot have waited for it, so its process id is not reused. The group may have ended anyway.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signum)

    def _tell_some(self, supervisors: Sequence[int], message: Message) -> None:
        for supervisor in supervisors:
            self._link.send(supervisor_peer(supervisor), message)

    def _find_halted(self) -> set[int]:
        """Return the supervisors on this machine whose process is halted at this moment."""
        here = [host for host in self._hosts if not host.is_remote and host.pid]
        return {k for host in here if is_halted(host.pid) for k in host.supervisors}

    def look_for_halted(self, roster: Roster, now: float) -> Iterator[RankExited | str]:
        """Yield what halted supervisors on this machine do not report: that they are halted, and which of their ranks have ended."""
        if now - self._looked_at < _LOOK_HALTED_S:
            return
        self._looked_at = now
        before, self._halted = self._halted, self._find_halted()
        for host in self._hosts:
            for k in host.supervisors:
                if k in self._halted - before:
                    yield _say_halted(host.pid, roster.ranks_of(k))
                elif k in before - self._halted:
                    yield f"the supervisor of this machine (pid {host.pid}) goes on"
        for entry in roster.entries:
            hidden = entry.supervisor in self._halted and entry.exit is None and entry.pid is not None
            if hidden and (end := find_end(entry.pid or 0)) is not None:
                yield RankExited(entry.rank, *end, [])

    def keep(self, is_heard: Callable[[], bool]) -> None:
        """Make supervisors that may outlive this process do so from now on, because their record has been written.

        Returns when each has confirmed or is lost, because this process may end at the next moment. It returns at the latest
        when a remote supervisor would be lost. Not to be called in the event-loop thread.

        Args:
            is_heard: whether the event-loop thread still runs; otherwise no confirmation will arrive.
        """
        self._stays = True
        for supervisor in self._all:
            self._link.send(supervisor_peer(supervisor), Beat(supervisor, kept=True))
        # A remote supervisor is lost by then. A local one that is silent for so long was stopped, and reads the message
        # when it continues.
        until = time.monotonic() + self._timeout_s + _SURE_S
        # No lock: Ctrl-C could leave one held, and the event loop would wait for it.
        while self._unsure and is_heard() and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def ask_how(self, now: float) -> None:
        """While the ranks start, request heartbeats also from supervisors on this machine, from time to time: a rank may be halted."""
        if now - self._asked_how_at >= _ASK_HOW_S:
            self._asked_how_at = now
            for supervisor in self._all:
                if supervisor not in self._elsewhere:
                    self._link.send(supervisor_peer(supervisor), Beat(supervisor, kept=self._stays))

    def is_elsewhere(self, supervisor: int) -> bool:
        """Whether the supervisor is on another machine; those get heartbeat requests as long as they live."""
        return supervisor in self._elsewhere

    def standing(self) -> str:
        """Return the position of the hosts in a scheduler's queue; empty if none waits."""
        return next((host.standing for host in self._hosts if isinstance(host, QueuedHost) and host.standing), "")

    def see_off(self, clock: Callable[[], float]) -> tuple[int, ...]:
        """Wait a short time until remote supervisors that were ordered to stop have disconnected, as each does at its end.

        Closing a connection that has unread data discards what was sent last. Most supervisors would end all the same, by their
        watchdog; those that were told to outlive this process would live on forever.

        Returns:
            Those of the latter that have not disconnected.
        """
        waited_for = {supervisor_peer(k) for k in self._there} if self._ends else set()
        until = clock() + (_SEE_OFF_KEPT_S if self._stays else _SEE_OFF_S)
        while waited_for and (left_s := until - clock()) > 0:
            for message in self._link.poll(left_s):
                if isinstance(message, HostUp):
                    # It connected while the others were being stopped.
                    self._link.send(supervisor_peer(message.supervisor), StopHost())
            waited_for -= set(self._link.take_lost())
        return tuple(k for k in self._all if self._stays and supervisor_peer(k) in waited_for)

    def hear(self, message: Message, now: float) -> None:
        """Record a sign of life."""
        if isinstance(message, Beat) and message.kept:
            self._unsure.discard(message.supervisor)
        if isinstance(message, HostUp):
            if self._stays:
                # It connects, or reconnects, after `keep`, which could not reach it.
                self._link.send(supervisor_peer(message.supervisor), Beat(message.supervisor, kept=True))
            self._there |= {message.supervisor} & self._elsewhere
            for host in self._hosts:
                if isinstance(host, ReportingHost):
                    host.note_up(message.supervisor)
        if isinstance(message, HostUp | Beat) and message.supervisor in self._remote:
            # After this report it imports JAX. A busy file system delays that beyond the usual silence limit.
            self._pulse.hear(message.supervisor, now, busy_s=_IMPORTS_S if isinstance(message, HostUp) else 0.0)

    def note_spawned(self, supervisor: int, now: float) -> None:
        """Record that a supervisor has a rank: its imports are over, so from now on the usual silence limit applies."""
        if supervisor in self._remote:
            self._pulse.hear(supervisor, now)

    def find_lost(self, roster: Roster, now: float) -> Iterator[tuple[int, str]]:
        """Yield each supervisor that was found lost since the last call, with the cause; request a heartbeat from the others."""
        self._pulse.allow(self._standstill.look(now, self._real_clock()))
        for supervisor, cause in (*self._ended(roster), *self._cut_off(roster), *self._silent(roster, now)):
            yield supervisor, cause + self._say_standstill(now)
        if self._pulse.is_due(now):
            for supervisor in self._remote:
                self._link.send(supervisor_peer(supervisor), Beat(supervisor, kept=self._stays))

    def _cut_off(self, roster: Roster) -> Iterator[tuple[int, str]]:
        for peer in self._link.take_lost():
            supervisor = int(peer[1:]) if peer.startswith("s") else -1
            self._there.discard(supervisor)
            if supervisor in self._remote:
                yield self._lose(supervisor, f"{roster.name_host(supervisor)} is lost: the connection to it ended")

    def _silent(self, roster: Roster, now: float) -> Iterator[tuple[int, str]]:
        for supervisor, silent_s in self._pulse.silent(now).items():
            name = roster.name_host(supervisor)
            yield self._lose(supervisor, f"{name} is lost: it has not answered for {silent_s:.0f} s")

    def _say_standstill(self, now: float) -> str:
        """Describe a suspension of this process that was long enough for hosts to end because of it; empty if there was none."""
        lasted_s = self._standstill.recall(now)
        if lasted_s < self._timeout_s or not self._elsewhere:
            return ""
        said = f"\n  this notebook stood still for {lasted_s:.0f} s (suspended, or its machine slept)"
        if self._stays:
            return said
        return (
            f"{said}: hosts that hear nothing of it for {PATIENCE * self._timeout_s:.0f} s end their ranks; "
            "those of %mhjax start --keep wait for it"
        )

    def _ended(self, roster: Roster) -> Iterator[tuple[int, str]]:
        for host in [host for host in self._hosts if host.has_exited()]:
            self._hosts.remove(host)
            # Now, before another process can reuse their ids: what ranks have started outlives a killed supervisor.
            host.wait(tuple(pid for k in host.supervisors for pid in roster.pids_of(k)))
            cause = host.explain()
            for supervisor in host.supervisors:
                yield self._lose(supervisor, cause)

    def _lose(self, supervisor: int, cause: str) -> tuple[int, str]:
        self._pulse.forget(supervisor)
        self._remote.discard(supervisor)
        self._unsure.discard(supervisor)
        return supervisor, cause


def _say_halted(pid: int, ranks: Sequence[int]) -> str:
    held = (
        f"{say_ranks(ranks)} run on without it, and this notebook signals them itself" if ranks else "it holds the hub"
    )
    return (
        f"the supervisor of this machine (pid {pid}) is halted, by SIGSTOP or in a debugger: {held}\n"
        f"  Fix: kill -CONT {pid}, or %mhjax restart --replay"
    )


def find_board(run_dir: Path, process_count: int) -> Board | None:
    """Open the shared board of a cluster whose ranks are all on this machine; None if it has none (an engine-only profile)."""
    try:
        return Board(run_dir, process_count)
    except (OSError, ValueError):
        return None


def say_left(roster: Roster, supervisors: Sequence[int]) -> str:
    """Describe what may live on at supervisors that could not be ordered to end; empty if there are none."""
    if not supervisors:
        return ""
    return (
        f"{', '.join(roster.name_host(k) for k in supervisors)} could not be told to end: "
        "what was started there with --keep may live on, and waits for a notebook\n"
        "  when the machine can be reached again, end it there (and all of yours there): pkill -f mhnb.rank.host"
    )
