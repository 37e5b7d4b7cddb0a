"""Which hosts have fallen silent: a host that lost its power, or the way to it, says nothing and closes nothing."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BEAT_S", "Pulse"]

BEAT_S = 2.0
"""How often each host is asked for a sign of life."""


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

    def is_due(self, now: float) -> bool:
        """Whether to ask now; the question counts as asked."""
        if not self._heard_at or now - self._asked_at < BEAT_S:
            return False
        self._asked_at = now
        return True

    def silent(self, now: float) -> Mapping[int, float]:
        """Give the hosts that are lost, and for how many seconds each has said nothing."""
        return {k: now - at for k, at in self._heard_at.items() if now - at > self._allowed_s[k]}
