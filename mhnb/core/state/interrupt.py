"""Interrupt escalation: ask ranks to stop, signal them, disconnect them, kill them.

Requests between cells are interrupted by signals alone, and no rank is killed for one.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import NamedTuple

from mhnb.core.ranks import describe_ranks
from mhnb.core.state.events import Command, DisconnectRanks, KillRanks, SignalRanks, StopBeforeLaunch

INTERRUPT_AGREE_S = 0.2
"""How long ranks in lockstep have to stop before the same launch, until each is signalled."""
INTERRUPT_DISCONNECT_S = 2.0
"""When ranks that signals cannot get out of a collective are freed by closing the connections between all ranks."""
INTERRUPT_KILL_S = 4.0
"""A rank that has not ended its cell this long after an interrupt is killed, with all others, unless some handle theirs."""

SECOND_INTERRUPT_AFTER_S = 1.0
"""An interrupt this long after the first counts as a second one; an earlier one counts as a double press."""

KILLED_AFTER_INTERRUPT = "did not stop after the interrupt and was killed"

_SIGNAL_INTERVAL_S = 0.5


@dataclass(slots=True)
class InterruptEscalation:
    """The stop of one cell, from the first request on."""

    seq: int
    requested_at: float
    started_at: float
    """Start of the time from which the steps are due: the first request, delayed by as long as the escalation was paused."""
    next_signal_at: float
    can_disconnect: bool
    """Whether connections can be closed here: the ranks have found which of their connections carry collectives."""
    is_automatic: bool = False
    """Whether no one asked for it: the ranks hang in a collective that can no longer complete. Then no rank is killed."""
    is_forced: bool = False
    """Whether the cell's interrupt handlers get no extra time any more."""
    disconnected: tuple[int, ...] = ()
    """The ranks for which the connections were closed."""
    is_killed: bool = False
    """Whether the last step was taken."""
    paused_since: float | None = None
    """Since when every running rank handles its interrupt; the escalation is paused for as long."""
    was_paused: bool = False
    """Whether it was ever paused, or spared ranks because of others."""

    @classmethod
    def begin(cls, seq: int, now: float, *, can_agree: bool, can_disconnect: bool) -> InterruptEscalation:
        """Begin; with `can_agree`, delay signals so lockstep ranks can stop together."""
        return cls(seq, now, now, now + (INTERRUPT_AGREE_S if can_agree else 0.0), can_disconnect)

    def next_commands(
        self, now: float, running: tuple[int, ...], stuck: tuple[int, ...] = (), handling: tuple[int, ...] = ()
    ) -> list[Command]:
        """Return the commands now due for ranks that still run the cell.

        Args:
            now: seconds, on the same clock as at the start.
            running: ranks that have not ended it.
            stuck: those of them that have been in a collective since then, according to their samples.
            handling: those of them whose code has received the interrupt, and still runs.
        """
        commands: list[Command] = [StopBeforeLaunch(self.seq)] if now == self.requested_at else []
        if self._pause_while_handling(now, running, stuck, handling):
            return commands
        elapsed_s = now - self.started_at
        if elapsed_s > INTERRUPT_KILL_S and not self.is_automatic and not self._spares_handlers(stuck, handling):
            self.is_killed = True
            return [KillRanks(running)]
        is_due = self.is_automatic or elapsed_s >= INTERRUPT_DISCONNECT_S
        if stuck and self.can_disconnect and not self.disconnected and is_due:
            self.disconnected = stuck
            commands.append(DisconnectRanks())
        signalled = running if self.is_forced else tuple(rank for rank in running if rank not in handling)
        if now < self.next_signal_at or not signalled:
            return commands
        # Repeat it, because a signal may have arrived when the rank could not handle it.
        self.next_signal_at = now + _SIGNAL_INTERVAL_S
        return [*commands, SignalRanks(signalled, int(signal.SIGINT))]

    def is_due_to_kill(self, now: float) -> bool:
        """Check whether ranks that do not handle the interrupt may be killed."""
        return self.paused_since is None and now - self.started_at > INTERRUPT_KILL_S

    def _pause_while_handling(
        self, now: float, running: tuple[int, ...], stuck: tuple[int, ...], handling: tuple[int, ...]
    ) -> bool:
        """Pause while all ranks handle the interrupt; return whether it is paused.

        It does not pause if all these ranks are in a collective, because no other rank is left that could reach it.
        """
        is_handling = set(running) <= set(handling) and not set(running) <= set(stuck)
        if is_handling and not self.is_forced:
            self.paused_since = now if self.paused_since is None else self.paused_since
            self.was_paused = True
            return True
        if self.paused_since is not None:
            self.started_at += now - self.paused_since
            self.paused_since = None
        return False

    def _spares_handlers(self, stuck: tuple[int, ...], handling: tuple[int, ...]) -> bool:
        """Check whether a kill would cut off ranks that handle the interrupt."""
        spares = not self.is_forced and not set(handling) <= set(stuck)
        self.was_paused |= spares
        return spares

    def record_second_interrupt(self, now: float) -> None:
        """Signal now, and force the stop unless it was a double press."""
        self.next_signal_at = min(self.next_signal_at, now)
        if now - self.requested_at >= SECOND_INTERRUPT_AFTER_S:
            self.force(now)

    def force(self, now: float) -> None:
        """Stop waiting for handlers; restart a paused escalation, which had no deadline."""
        if self.is_forced:
            return
        self.is_forced = True
        if self.was_paused:
            self.started_at = self.next_signal_at = now
            self.paused_since = None

    def notes(self) -> tuple[str, ...]:
        """Format the note on what disconnecting ranks has cost.

        >>> InterruptEscalation(1, 0.0, 0.0, 0.0, can_disconnect=True, disconnected=(0, 2)).notes()[0].splitlines()[0]
        'ranks 0,2 were stuck in a collective that cannot be interrupted, so mhnb closed all connections between the ranks'
        """
        if not self.disconnected:
            return ()
        ranks = describe_ranks(self.disconnected)
        verb = "was" if len(self.disconnected) == 1 else "were"
        reason = f"{ranks} {verb} stuck in a collective that cannot be interrupted, so mhnb closed all connections between the ranks"
        return (f"{reason}\n  new collectives will fail; variables are intact (%mhjax pull NAME)",)


# -- requests between cells


_TYPING_HELP = ("complete", "inspect")
"""Requests that nobody waits for once the user has run the cell."""
_WITHOUT_NOTE = (*_TYPING_HELP, "release", "pip")
"""Requests whose silence tells the user nothing: they are not awaited, or take as long as another program."""

SILENCE_NOTE_AFTER_S = 5.0
"""How long a rank may take to answer until the user gets a note with the reason."""
_LOOK_AFTER_S = 2.0
"""How long a rank may take to answer until its supervisor is asked whether it is halted."""


class _Request(NamedTuple):
    rank: int
    handler: str
    sent_at: float


@dataclass(slots=True)
class PendingRequests:
    """Unanswered requests by number; each rank answers its requests in order.

    A cell that is submitted waits for those that were sent before it. Otherwise a rank that does not answer could not begin
    the cell, and the escalation of an interrupt would kill it.
    """

    _pending: dict[int, _Request] = field(default_factory=dict)
    _awaited: set[int] = field(default_factory=set)
    """Those for which a cell waits."""
    _interrupted: set[int] = field(default_factory=set)
    _next_signal_at: float = 0.0
    _noted_ranks: set[int] = field(default_factory=set)
    """Ranks that have been silent since the user got a note about them."""

    @property
    def is_empty(self) -> bool:
        """Whether every request was answered."""
        return not self._pending

    @property
    def has_awaited(self) -> bool:
        """Whether a cell waits for a request."""
        return bool(self._awaited)

    def add(self, number: int, rank: int, handler: str, now: float) -> None:
        """Record a request that was sent."""
        self._pending[number] = _Request(rank, handler, now)

    def remove(self, number: int) -> None:
        """Record that a request was answered, or never will be."""
        removed = self._pending.pop(number, None)
        self._awaited.discard(number)
        if removed is not None and removed.rank not in {request.rank for request in self._pending.values()}:
            self._noted_ranks.discard(removed.rank)
        if number in self._interrupted:
            self._interrupted.discard(number)
            # The rank begins the next one, which may be as endless.
            self._next_signal_at = 0.0

    def await_all(self, now: float) -> None:
        """Make the submitted cell wait for all, and interrupt completions and inspections."""
        self._awaited.update(self._pending)
        abandoned = {number for number, request in self._pending.items() if request.handler in _TYPING_HELP}
        if abandoned - self._interrupted:
            self._interrupted |= abandoned
            self._next_signal_at = now

    def interrupt_all(self, now: float) -> None:
        """Interrupt all; the ranks are signalled until they have answered."""
        self._interrupted.update(self._pending)
        self._next_signal_at = now

    def next_commands(self, now: float, last_seq: int) -> list[Command]:
        """Return commands due between cells; `last_seq` is the last cell's number."""
        # A rank is at its first request, and a signal would end that one.
        current = {request.rank: number for number, request in reversed(self._pending.items())}
        ranks = tuple(sorted(rank for rank, number in current.items() if number in self._interrupted))
        if not ranks or now < self._next_signal_at:
            return []
        self._next_signal_at = now + _SIGNAL_INTERVAL_S
        # The number shows the next cell that a signal which comes too late is not meant for it.
        return [StopBeforeLaunch(last_seq), SignalRanks(ranks, int(signal.SIGINT))]

    def has_slow(self, now: float) -> bool:
        """Check whether a request takes long enough to look for the reason."""
        return any(now - request.sent_at >= _LOOK_AFTER_S for request in self._pending.values())

    def take_silent(self, now: float) -> tuple[int, ...]:
        """Return ranks whose answer is overdue, each once until it has answered.

        >>> pending = PendingRequests()
        >>> pending.add(7, 1, "vars", now=3.0)
        >>> pending.take_silent(now=7.9), pending.take_silent(now=8.0), pending.take_silent(now=9.0)
        ((), (1,), ())
        """
        silent = {
            request.rank
            for number, request in self._pending.items()
            if now - request.sent_at >= SILENCE_NOTE_AFTER_S
            and number not in self._interrupted
            and request.handler not in _WITHOUT_NOTE
        }
        new = tuple(sorted(silent - self._noted_ranks))
        self._noted_ranks |= silent
        return new

    @property
    def awaited_ranks(self) -> tuple[int, ...]:
        """Ranks whose answer a cell waits for."""
        return tuple(sorted({self._pending[number].rank for number in self._awaited}))

    def describe_wait(self, now: float) -> str:
        """Describe what cells wait for; empty if they wait for no request.

        >>> pending = PendingRequests()
        >>> pending.add(7, 1, "vars", now=3.0)
        >>> pending.await_all(now=3.0)
        >>> pending.describe_wait(now=8.0)
        "waiting for rank 1 to answer 'vars' (5 s)"
        """
        if not self._awaited:
            return ""
        first = self._pending[min(self._awaited)]
        return f"waiting for {describe_ranks(self.awaited_ranks)} to answer {first.handler!r} ({now - first.sent_at:.0f} s)"
