"""How a cell is stopped: the ranks are asked to stop before the same launch, signalled again and again, freed, killed."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from mhnb.core.events import AskInterrupt, Command, FreeRanks, KillRanks, SignalRanks
from mhnb.core.ranks import say_ranks

__all__ = ["INTERRUPT_AGREE_S", "INTERRUPT_FREE_S", "INTERRUPT_KILL_S", "Ladder", "TOO_SLOW"]

INTERRUPT_AGREE_S = 0.2
"""How long ranks in lockstep have to stop before the same launch, until each is signalled."""
INTERRUPT_FREE_S = 2.0
"""When ranks that no signal gets out of a collective are freed by closing the connections of all ranks to each other."""
INTERRUPT_KILL_S = 4.0
"""A rank that has not ended its cell so long after an interrupt is killed."""

TOO_SLOW = "did not end after the interrupt and was killed"

_SIGNAL_AGAIN_S = 0.5


@dataclass(slots=True)
class Ladder:
    """The stop of one cell, from the first request on."""

    seq: int
    began_at: float
    next_signal_at: float
    frees: bool
    """Whether connections can be closed here: the ranks have found which ones are meant."""
    freed: tuple[int, ...] = ()
    """The ranks for whose sake they were closed."""
    killed: bool = False
    """The last rung was climbed."""

    @classmethod
    def begin(cls, seq: int, now: float, *, agrees: bool, frees: bool) -> Ladder:
        """Begin; `agrees` where the ranks are in lockstep, and may stop before the same launch by themselves."""
        return cls(seq, now, now + (INTERRUPT_AGREE_S if agrees else 0.0), frees)

    def climb(self, now: float, running: tuple[int, ...], stuck: tuple[int, ...] = ()) -> list[Command]:
        """Say what is to be done now about the ranks that still run the cell.

        Args:
            stuck: those of them that have sat in a collective since then, as far as is seen.
        """
        asked: list[Command] = [AskInterrupt(self.seq)] if now == self.began_at else []
        if now - self.began_at > INTERRUPT_KILL_S:
            self.killed = True
            return [KillRanks(running)]
        if stuck and self.frees and not self.freed and now - self.began_at >= INTERRUPT_FREE_S:
            self.freed = stuck
            asked.append(FreeRanks())
        if now < self.next_signal_at:
            return asked
        # Again and again: one may have come in a moment in which nobody could take it.
        self.next_signal_at = now + _SIGNAL_AGAIN_S
        return [*asked, SignalRanks(running, int(signal.SIGINT))]

    def hurry(self, now: float) -> None:
        """The user asks a second time: no more waiting for an agreement."""
        self.next_signal_at = min(self.next_signal_at, now)

    def notes(self) -> tuple[str, ...]:
        """Say what freeing ranks has cost.

        >>> Ladder(1, 0.0, 0.0, True, freed=(0, 2)).notes()[0].splitlines()[0]
        'ranks 0,2 sat in a collective that no signal ends, so all connections between the ranks were closed'
        """
        if not self.freed:
            return ()
        who = say_ranks(self.freed)
        why = f"{who} sat in a collective that no signal ends, so all connections between the ranks were closed"
        return (f"{why}\n  collectives raise errors from now on; variables are there, and %mhjax pull brings them",)
