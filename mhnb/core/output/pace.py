"""Rate limiter for view updates: a few at once after a quiet moment, and at most ten in any second."""

from __future__ import annotations

__all__ = ["RateLimiter"]


class RateLimiter:
    """Token bucket: `burst` updates at once, then `rate` per second; so in any second at most their sum.

    The first line is therefore shown at once on every rank, not only on the fastest rank.
    """

    __slots__ = ("_burst", "_gap_s", "_last_s", "_rate", "_tokens")

    def __init__(self, *, burst: int = 3, rate: int = 7, gap_s: float = 0.03) -> None:
        self._burst, self._rate, self._gap_s = burst, rate, gap_s
        self._tokens, self._last_s = float(burst), float("-inf")

    def wait_s(self, now: float) -> float:
        """Return how long to wait until the next update; 0 if it may be sent now.

        >>> RateLimiter().wait_s(5.0)
        0.0
        """
        tokens = self._tokens_at(now)
        spacing = self._last_s + self._gap_s - now
        return max(0.0, spacing, 0.0 if tokens >= 1 else (1 - tokens) / self._rate)

    def record_sent(self, now: float) -> None:
        """Count an update that is sent now."""
        self._tokens, self._last_s = self._tokens_at(now) - 1, now

    def idle_s(self, now: float) -> float:
        """Return how long ago the last update was sent; infinite before the first.

        >>> RateLimiter().idle_s(5.0)
        inf
        """
        return now - self._last_s

    def _tokens_at(self, now: float) -> float:
        if self._last_s == float("-inf"):
            return self._tokens
        return min(float(self._burst), self._tokens + (now - self._last_s) * self._rate)
