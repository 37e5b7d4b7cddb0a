"""How a cell is stopped: the ranks are asked to stop before the same launch, signalled again and again, freed, killed."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from mhnb.core.life.events import AskInterrupt, Command, FreeRanks, KillRanks, SignalRanks
from mhnb.core.ranks import say_ranks

__all__ = ["AGAIN_AFTER_S", "INTERRUPT_AGREE_S", "INTERRUPT_FREE_S", "INTERRUPT_KILL_S", "Ladder", "TOO_SLOW"]

INTERRUPT_AGREE_S = 0.2
"""How long ranks in lockstep have to stop before the same launch, until each is signalled."""
INTERRUPT_FREE_S = 2.0
"""When ranks that no signal gets out of a collective are freed by closing the connections of all ranks to each other."""
INTERRUPT_KILL_S = 4.0
"""A rank that has not ended its cell so long after an interrupt is killed, with all others, unless some handle theirs."""

AGAIN_AFTER_S = 1.0
"""An interrupt that comes so long after the first is a second one; two at once are one that was pressed twice."""

TOO_SLOW = "did not end after the interrupt and was killed"

_SIGNAL_AGAIN_S = 0.5


@dataclass(slots=True)
class Ladder:
    """The stop of one cell, from the first request on."""

    seq: int
    asked_at: float
    rungs_from: float
    """From when the times of the rungs are counted: when it was asked, and later by as long as the ladder stood still."""
    next_signal_at: float
    frees: bool
    """Whether connections can be closed here: the ranks have found which ones are meant."""
    insists: bool = False
    """What the cell's code makes of the interrupt has no more time than the rest."""
    freed: tuple[int, ...] = ()
    """The ranks for whose sake they were closed."""
    killed: bool = False
    """The last rung was climbed."""
    still_since: float | None = None
    """Since when every rank that runs handles its interrupt; the ladder stands still as long."""
    stood_still: bool = False
    """Whether it ever did, or spared ranks for the sake of others."""

    @classmethod
    def begin(cls, seq: int, now: float, *, agrees: bool, frees: bool) -> Ladder:
        """Begin; `agrees` where the ranks are in lockstep, and may stop before the same launch by themselves."""
        return cls(seq, now, now, now + (INTERRUPT_AGREE_S if agrees else 0.0), frees)

    def climb(
        self, now: float, running: tuple[int, ...], stuck: tuple[int, ...] = (), handling: tuple[int, ...] = ()
    ) -> list[Command]:
        """Say what is to be done now about the ranks that still run the cell.

        Args:
            now: seconds, of the clock that it began with.
            running: who has not ended it.
            stuck: those of them that have sat in a collective since then, as far as is seen.
            handling: those of them whose code has got the interrupt, and runs on.
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
        # Again and again: one may have come in a moment in which nobody could take it.
        self.next_signal_at = now + _SIGNAL_AGAIN_S
        return [*asked, SignalRanks(signalled, int(signal.SIGINT))]

    def is_due_to_kill(self, now: float) -> bool:
        """Whether the time of the last rung has come, for ranks that handle nothing."""
        return self.still_since is None and now - self.rungs_from > INTERRUPT_KILL_S

    def _stands_still(
        self, now: float, running: tuple[int, ...], stuck: tuple[int, ...], handling: tuple[int, ...]
    ) -> bool:
        """Whether all that goes on is the cell's own handling of the interrupt: it is not hurried.

        Not where all of them sit in a collective: nobody is left who could come to it.
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
        """Whether some handle the interrupt that others have not got: what these save would end with the others' processes."""
        spares = not self.insists and not set(handling) <= set(stuck)
        self.stood_still |= spares
        return spares

    def hurry(self, now: float) -> None:
        """The user asks again: no more waiting for an agreement; and nor, unless he pressed twice, for what the cell makes of it."""
        self.next_signal_at = min(self.next_signal_at, now)
        if now - self.asked_at >= AGAIN_AFTER_S:
            self.insist(now)

    def insist(self, now: float) -> None:
        """Wait for nothing any more. Where the ladder stood still it begins anew: nobody had been asked to hurry."""
        if self.insists:
            return
        self.insists = True
        if self.stood_still:
            self.rungs_from = self.next_signal_at = now
            self.still_since = None

    def notes(self) -> tuple[str, ...]:
        """Say what freeing ranks has cost.

        >>> Ladder(1, 0.0, 0.0, 0.0, frees=True, freed=(0, 2)).notes()[0].splitlines()[0]
        'ranks 0,2 sat in a collective that no signal ends, so all connections between the ranks were closed'
        """
        if not self.freed:
            return ()
        who = say_ranks(self.freed)
        why = f"{who} sat in a collective that no signal ends, so all connections between the ranks were closed"
        return (f"{why}\n  collectives raise errors from now on; variables are there, and %mhjax pull brings them",)
