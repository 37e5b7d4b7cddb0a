"""How a cell is stopped: the ranks are asked to stop before the same launch, then signalled again and again, then killed."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from mhnb.core.events import AskInterrupt, Command, KillRanks, SignalRanks

__all__ = ["INTERRUPT_AGREE_S", "INTERRUPT_KILL_S", "Ladder"]

INTERRUPT_AGREE_S = 0.2
"""How long ranks in lockstep have to stop before the same launch, until each is signalled."""
INTERRUPT_KILL_S = 4.0
"""A rank that has not ended its cell so long after an interrupt is killed."""

_SIGNAL_AGAIN_S = 0.5


@dataclass(slots=True)
class Ladder:
    """The stop of one cell, from the first request on."""

    seq: int
    began_at: float
    next_signal_at: float

    @classmethod
    def begin(cls, seq: int, now: float, *, agrees: bool) -> Ladder:
        """Begin; `agrees` where the ranks are in lockstep, and may stop before the same launch by themselves."""
        return cls(seq, now, now + (INTERRUPT_AGREE_S if agrees else 0.0))

    def climb(self, now: float, running: tuple[int, ...]) -> list[Command]:
        """Say what is to be done now about the ranks that still run the cell."""
        asked: list[Command] = [AskInterrupt(self.seq)] if now == self.began_at else []
        if now - self.began_at > INTERRUPT_KILL_S:
            return [KillRanks(running)]
        if now < self.next_signal_at:
            return asked
        # Again and again: one may have come in a moment in which nobody could take it.
        self.next_signal_at = now + _SIGNAL_AGAIN_S
        return [*asked, SignalRanks(running, int(signal.SIGINT))]

    def hurry(self, now: float) -> None:
        """The user asks a second time: no more waiting for an agreement."""
        self.next_signal_at = min(self.next_signal_at, now)
