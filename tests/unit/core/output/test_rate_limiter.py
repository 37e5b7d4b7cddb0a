"""How often a view is updated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mhnb.core.output.results import RateLimiter


@given(st.lists(st.floats(0, 0.2), max_size=200))
def test_at_most_ten_updates_per_second(pauses: list[float]) -> None:
    """The limit holds whenever new output arrives, and however often the view asks."""
    limiter, now, sent = RateLimiter(), 0.0, []
    for pause in pauses:
        now += pause
        if limiter.wait_s(now) <= 0:
            limiter.record_sent(now)
            sent.append(now)
    assert all(sum(1 for at in sent if start <= at < start + 0.999) <= 10 for start in sent)


def test_first_updates_after_a_pause_are_immediate() -> None:
    """The outputs of three ranks that print within a tenth of a second are all sent within it."""
    limiter, sent = RateLimiter(), []
    for now in (1.0, 1.04, 1.08, 1.12, 1.16):
        if limiter.wait_s(now) <= 0:
            limiter.record_sent(now)
            sent.append(now)
    assert sent[:3] == [1.0, 1.04, 1.08]


def test_the_wait_is_long_enough() -> None:
    """A caller that waits as long as `wait_s` returns may send."""
    limiter = RateLimiter()
    for at in range(3):
        limiter.record_sent(at * 0.03)
    now = 0.06
    assert limiter.wait_s(now + limiter.wait_s(now) + 1e-9) <= 1e-9
