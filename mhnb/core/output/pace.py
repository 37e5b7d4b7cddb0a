"""Rate limiter for view updates: a few at once after a quiet moment, and at most ten in any second."""

from __future__ import annotations

__all__ = ["Pace"]


class Pace:
    """Token bucket: `burst` updates at once, then `rate` per second; so in any second at most their sum.

    The first line is therefore shown at once on every rank, not only on the fastest rank.
    """

    __slots__ = ("_at_s", "_burst", "_gap_s", "_left", "_rate")

    def __init__(self, *, burst: int = 3, rate: int = 7, gap_s: float = 0.03) -> None:
        self._burst, self._rate, self._gap_s = burst, rate, gap_s
        self._left, self._at_s = float(burst), float("-inf")

    def wait_s(self, now: float) -> float:
        """Return how long to wait until the next update; 0 if it may be sent now.

        >>> Pace().wait_s(5.0)
        0.0
        """
        left = self._left_at(now)
        soon = self._at_s + self._gap_s - now
        return max(0.0, soon, 0.0 if left >= 1 else (1 - left) / self._rate)

    def take(self, now: float) -> None:
        """Count an update that is sent now."""
        self._left, self._at_s = self._left_at(now) - 1, now

    def idle_s(self, now: float) -> float:
        """Return how long ago the last update was sent; infinite before the first.

        >>> Pace().idle_s(5.0)
        inf
        """
        return now - self._at_s

    def _left_at(self, now: float) -> float:
        if self._at_s == float("-inf"):
            return self._left
        return min(float(self._burst), self._left + (now - self._at_s) * self._rate)
