"""Draw each rank's delay at each launch, as SVG without scripts.

A table beside it has the same facts for those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from mhnb.core.ranks import describe_many_ranks, pluralize
from mhnb.core.stragglers import Stragglers
from mhnb.view.html import format_delay

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM, _LABEL = 500, 120, 56, 104, 18, 14
_MAX_POINTS = 200


def draw_delays(stragglers: Stragglers) -> str:
    """Draw each rank's delays as a line, and label the stragglers.

    Empty if no rank stands out.
    """
    delays_s, named = stragglers.delays_s, stragglers.named
    most = max((delay for own in delays_s.values() for delay in own if not math.isnan(delay)), default=0.0)
    if most <= 0 or not named:
        return ""
    count, bottom, right = stragglers.agreement_count, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    ordered = sorted(delays_s, key=lambda rank: rank in named)
    lines = "".join(_draw_line(delays_s[rank], most, rank=rank, is_named=rank in named) for rank in ordered)
    label = f"Delay of each rank at {pluralize(count, 'launch')}, from 0 to {format_delay(most)}. The table above has the sums."
    axis = (
        f'<text x="{_LEFT - 4}" y="12" text-anchor="end">{format_delay(most)}</text>'
        f'<text x="{_LEFT - 4}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">launch 1</text>'
        f'<text x="{right}" y="{_HEIGHT - 4}" text-anchor="end">{count}</text>'
        f'<path d="M{_LEFT} 2V{bottom}H{right}" fill="none" stroke="currentColor" stroke-opacity=".4"/>'
    )
    return (
        f'<svg class="mhnb-small" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'style="max-width:100%;font-family:sans-serif" fill="currentColor">{axis}{lines}{_label_lines(stragglers, most)}</svg>'
    )


def _label_lines(stragglers: Stragglers, most: float) -> str:
    """Label the stragglers beside their lines, and the others below."""
    own = stragglers.delays_s[stragglers.named[0]]
    last = next((delay for delay in reversed(own) if not math.isnan(delay)), 0.0)
    left, bottom = _WIDTH - _RIGHT + 4, _HEIGHT - _BOTTOM
    height = max(_LABEL - 2, min(_height_of(last, most) + 4, bottom - _LABEL))
    named = f'<text x="{left}" y="{height:.1f}" fill="currentColor" class="mhnb-bad">{describe_many_ranks(stragglers.named)}</text>'
    has_others = len(stragglers.named) < len(stragglers.delays_s)
    return named + (f'<text x="{left}" y="{bottom}" fill="currentColor">the others</text>' if has_others else "")


def _height_of(delay: float, most: float) -> float:
    return 2 + (_HEIGHT - _BOTTOM - 2) * (1 - delay / most)


def _draw_line(delays: Sequence[float], most: float, *, rank: int, is_named: bool) -> str:
    step = math.ceil(len(delays) / _MAX_POINTS)
    # Of a long cell the longest delay of each few launches, so that no late arrival is lost.
    points = [
        max((d for d in delays[at : at + step] if not math.isnan(d)), default=None)
        for at in range(0, len(delays), step)
    ]
    width = _WIDTH - _RIGHT - _LEFT
    shown = [
        f"{_LEFT + width * (at / max(1, len(points) - 1)):.1f},{_height_of(delay, most):.1f}"
        for at, delay in enumerate(points)
        if delay is not None
    ]
    style = (
        'class="mhnb-bad" stroke="currentColor" stroke-width="2"'
        if is_named
        else 'stroke="currentColor" stroke-opacity=".35"'
    )
    return f'<polyline points="{" ".join(shown)}" fill="none" {style}><title>rank {rank}</title></polyline>'
