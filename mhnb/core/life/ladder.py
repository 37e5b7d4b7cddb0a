"""Interrupt escalation: ask the ranks to stop before the same launch, signal them repeatedly, disconnect them, kill them."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from mhnb.core.life.events import AskInterrupt, Command, FreeRanks, KillRanks, SignalRanks
from mhnb.core.ranks import say_ranks

__all__ = ["AGAIN_AFTER_S", "INTERRUPT_AGREE_S", "INTERRUPT_FREE_S", "INTERRUPT_KILL_S", "Ladder", "TOO_SLOW"]

INTERRUPT_AGREE_S = 0.2
"""How long ranks in lockstep have to stop before the same launch, until each is signalled."""
INTERRUPT_FREE_S = 2.0
"""When ranks that signals cannot get out of a collective are freed by closing the connections between all ranks."""
INTERRUPT_KILL_S = 4.0
"""A rank that has not ended its cell this long after an interrupt is killed, with all others, unless some handle theirs."""

AGAIN_AFTER_S = 1.0
"""An interrupt this long after the first counts as a second one; an earlier one counts as a double press."""

TOO_SLOW = "did not end after the interrupt and was killed"

_SIGNAL_AGAIN_S = 0.5


@dataclass(slots=True)
class Ladder:
    """The stop of one cell, from the first request on."""

    seq: int
    asked_at: float
    rungs_from: float
    """Start of the time from which the steps are due: the first request, delayed by as long as the escalation was paused."""
    next_signal_at: float
    frees: bool
    """Whether connections can be closed here: the ranks have found which of their connections carry collectives."""
    insists: bool = False
    """Whether the cell's interrupt handlers get no extra time any more."""
    freed: tuple[int, ...] = ()
    """The ranks for which the connections were closed."""
    killed: bool = False
    """Whether the last step was taken."""
    still_since: float | None = None
    """Since when every running rank handles its interrupt; the escalation is paused for as long."""
    stood_still: bool = False
    """Whether it was ever paused, or spared ranks because of others."""

    @classmethod
    def begin(cls, seq: int, now: float, *, agrees: bool, frees: bool) -> Ladder:
        """Begin; `agrees` if the ranks are in lockstep, and may stop before the same launch by themselves."""
        return cls(seq, now, now, now + (INTERRUPT_AGREE_S if agrees else 0.0), frees)

    def climb(
        self, now: float, running: tuple[int, ...], stuck: tuple[int, ...] = (), handling: tuple[int, ...] = ()
    ) -> list[Command]:
        """Return the commands that are now due for the ranks that still run the cell.

        Args:
            now: seconds, on the same clock as at the start.
            running: ranks that have not ended it.
            stuck: those of them that have been in a collective since then, according to their samples.
            handling: those of them whose code has received the interrupt, and still runs.
        """
        asked: list[Command] = [AskInterrupt(self.seq)] if now == self.asked_at else []
        if self._stands_still(now, running, stuck, handling):
            return asked
        height_s = now - self.rungs_from
        if height_s > INTERRUPT_KILL_S and not self._spares(stuck, handling):
            self.killed = True
            return [KillRanks(running)]
        if stuck and self.frees and not self.freed and height_s >= INTERRUPT_FREE_S:
            self.freed = stuck
            asked.append(FreeRanks())
        signalled = running if self.insists else tuple(rank for rank in running if rank not in handling)
        if now < self.next_signal_at or not signalled:
            return asked
        # Repeat it, because a signal may have arrived when the rank could not handle it.
        self.next_signal_at = now + _SIGNAL_AGAIN_S
        return [*asked, SignalRanks(signalled, int(signal.SIGINT))]

    def is_due_to_kill(self, now: float) -> bool:
        """Check whether the last step is due, for ranks that do not handle the interrupt."""
        return self.still_since is None and now - self.rungs_from > INTERRUPT_KILL_S

    def _stands_still(
        self, now: float, running: tuple[int, ...], stuck: tuple[int, ...], handling: tuple[int, ...]
    ) -> bool:
        """Check whether only the cell's own handling of the interrupt goes on, for which the escalation pauses.

        It does not pause if all these ranks are in a collective, because no other rank is left that could reach it.
        """
        works = set(running) <= set(handling) and not set(running) <= set(stuck)
        if works and not self.insists:
            self.still_since = now if self.still_since is None else self.still_since
            self.stood_still = True
            return True
        if self.still_since is not None:
            self.rungs_from += now - self.still_since
            self.still_since = None
        return False

    def _spares(self, stuck: tuple[int, ...], handling: tuple[int, ...]) -> bool:
        """Check whether some ranks handle an interrupt that others have not received: the kill would end what they save, too."""
        spares = not self.insists and not set(handling) <= set(stuck)
        self.stood_still |= spares
        return spares

    def hurry(self, now: float) -> None:
        """Record a second interrupt: stop waiting for an agreement and, unless it was a double press, for the cell's handlers."""
        self.next_signal_at = min(self.next_signal_at, now)
        if now - self.asked_at >= AGAIN_AFTER_S:
            self.insist(now)

    def insist(self, now: float) -> None:
        """Stop waiting for handlers. An escalation that was paused restarts, because the ranks had no deadline before."""
        if self.insists:
            return
        self.insists = True
        if self.stood_still:
            self.rungs_from = self.next_signal_at = now
            self.still_since = None

    def notes(self) -> tuple[str, ...]:
        """Format the note on what disconnecting ranks has cost.

        >>> Ladder(1, 0.0, 0.0, 0.0, frees=True, freed=(0, 2)).notes()[0].splitlines()[0]
        'ranks 0,2 sat in a collective that no signal ends, so all connections between the ranks were closed'
        """
        if not self.freed:
            return ()
        who = say_ranks(self.freed)
        why = f"{who} sat in a collective that no signal ends, so all connections between the ranks were closed"
        return (f"{why}\n  collectives raise errors from now on; variables are there, and %mhjax pull brings them",)
