"""Which hosts have fallen silent: a host that lost its power, or the way to it, says nothing and closes nothing."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BEAT_S", "PATIENCE", "Pulse", "Standstill"]

BEAT_S = 2.0
"""How often each host is asked for a sign of life."""
PATIENCE = 2
"""A host gives its notebook up after so many times the limit that the notebook gives it: who reports a loss first is who names it."""
_STANDSTILL_S = 5.0
"""Between two looks a tenth of a second passes. After so long it was this process that stood still."""
_RECALL_S = 45.0
"""Long enough for a host that was cut off meanwhile to be found silent."""


class Pulse:
    """Watches supervisors on other machines.

    Args:
        limit_s: a host that is silent for longer is lost.

    >>> pulse = Pulse(20)
    >>> pulse.hear(0, now=1.0)
    >>> pulse.silent(now=20.0), pulse.silent(now=22.0)
    ({}, {0: 21.0})
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._heard_at: dict[int, float] = {}
        self._allowed_s: dict[int, float] = {}
        self._asked_at = 0.0

    def hear(self, supervisor: int, now: float, *, busy_s: float = 0.0) -> None:
        """A supervisor gave a sign of life. One that was never heard of is the start's business.

        Args:
            supervisor: its number.
            now: seconds on the owner's clock.
            busy_s: how much longer than others it may be silent until the next sign.
        """
        self._heard_at[supervisor], self._allowed_s[supervisor] = now, self._limit_s + busy_s

    def forget(self, supervisor: int) -> None:
        """It is known to be gone."""
        self._heard_at.pop(supervisor, None)

    def allow(self, missed_s: float) -> None:
        """So long nobody was asked, and so nobody could answer: it is not held against the hosts."""
        self._heard_at = {k: at + missed_s for k, at in self._heard_at.items()}

    def hurry(self, now: float, limit_s: float) -> None:
        """Give each host only so long for its next sign: it was told to end ranks, and that must not be waited for in vain."""
        for k, at in self._heard_at.items():
            self._allowed_s[k] = min(self._allowed_s[k], now - at + limit_s)

    def is_due(self, now: float) -> bool:
        """Whether to ask now; the question counts as asked."""
        if not self._heard_at or now - self._asked_at < BEAT_S:
            return False
        self._asked_at = now
        return True

    def silent(self, now: float) -> Mapping[int, float]:
        """Give the hosts that are lost, and for how many seconds each has said nothing."""
        return {k: now - at for k, at in self._heard_at.items() if now - at > self._allowed_s[k]}


class Standstill:
    """Notices that this process itself stood still: it was suspended, or its machine slept.

    >>> still = Standstill()
    >>> still.look(1.0, 501.0), still.look(2.0, 502.0), still.look(2.5, 552.0), still.look(52.0, 602.0)
    (0.0, 0.0, 0.5, 49.5)
    >>> still.recall(60.0), still.recall(110.0)
    (50.0, 0.0)
    """

    def __init__(self) -> None:
        self._looked: tuple[float, float] | None = None
        self._lasted_s = self._woke_at = 0.0

    def look(self, now: float, real_now: float) -> float:
        """Return how many seconds of the owner's clock were missed; 0 where none were.

        Args:
            now: seconds on the owner's clock, which may stand still while the machine sleeps.
            real_now: seconds on one that does not.
        """
        before, self._looked = self._looked or (now, real_now), (now, real_now)
        if real_now - before[1] < _STANDSTILL_S:
            return 0.0
        self._lasted_s, self._woke_at = real_now - before[1], now
        return now - before[0]

    def recall(self, now: float) -> float:
        """Return how long it lasted, in real seconds, where that may be why a host is found gone now; else 0."""
        return self._lasted_s if now - self._woke_at < _RECALL_S else 0.0
