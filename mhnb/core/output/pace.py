"""How often a view is told something new: a few times at once after a quiet moment, and at most ten times in any second."""

from __future__ import annotations

__all__ = ["Pace"]


class Pace:
    """Counts what may be sent: `burst` at once, `rate` a second after that; so in any second at most their sum.

    A first line is then seen at once on every rank, not only on the rank that was quickest.
    """

    __slots__ = ("_at_s", "_burst", "_gap_s", "_left", "_rate")

    def __init__(self, *, burst: int = 3, rate: int = 7, gap_s: float = 0.03) -> None:
        self._burst, self._rate, self._gap_s = burst, rate, gap_s
        self._left, self._at_s = float(burst), float("-inf")

    def wait_s(self, now: float) -> float:
        """Say how long to wait until the next one; 0 for not at all.

        >>> Pace().wait_s(5.0)
        0.0
        """
        left = self._left_at(now)
        soon = self._at_s + self._gap_s - now
        return max(0.0, soon, 0.0 if left >= 1 else (1 - left) / self._rate)

    def take(self, now: float) -> None:
        """Count one that is sent now."""
        self._left, self._at_s = self._left_at(now) - 1, now

    def idle_s(self, now: float) -> float:
        """Say how long ago the last one was sent; infinite before the first.

        >>> Pace().idle_s(5.0)
        inf
        """
        return now - self._at_s

    def _left_at(self, now: float) -> float:
        if self._at_s == float("-inf"):
            return self._left
        return min(float(self._burst), self._left + (now - self._at_s) * self._rate)
