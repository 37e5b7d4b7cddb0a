"""Draw each rank's delay at each launch, as SVG without scripts.

A table beside it has the same facts for those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from mhnb.core.ranks import pluralize
from mhnb.core.stragglers import Stragglers
from mhnb.view.html import format_delay

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 420, 96, 48, 16
_MAX_POINTS = 200


def draw_delays(stragglers: Stragglers) -> str:
    """Draw each rank's delays as a line, and color the stragglers."""
    most = max((delay for own in stragglers.delays_s.values() for delay in own if delay == delay), default=0.0)  # noqa: PLR0124
    if most <= 0:
        return ""
    count = stragglers.agreement_count
    ordered = sorted(stragglers.delays_s, key=lambda rank: rank in stragglers.named)
    lines = "".join(
        _draw_line(stragglers.delays_s[rank], most, rank=rank, is_named=rank in stragglers.named) for rank in ordered
    )
    label = f"Delay of each rank at {pluralize(count, 'launch')}, from 0 to {format_delay(most)}. The table above has the sums."
    axis = (
        f'<text x="{_LEFT - 4}" y="10" text-anchor="end">{format_delay(most)}</text>'
        f'<text x="{_LEFT - 4}" y="{_HEIGHT - _BOTTOM}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 2}">launch 1</text>'
        f'<text x="{_WIDTH - 4}" y="{_HEIGHT - 2}" text-anchor="end">{count}</text>'
        f'<path d="M{_LEFT} 2V{_HEIGHT - _BOTTOM}H{_WIDTH - 4}" fill="none" stroke="currentColor" stroke-opacity=".4"/>'
    )
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'style="max-width:100%;font:10px sans-serif" fill="currentColor">{axis}{lines}</svg>'
    )


def _draw_line(delays: Sequence[float], most: float, *, rank: int, is_named: bool) -> str:
    step = math.ceil(len(delays) / _MAX_POINTS)
    # Of a long cell the longest delay of each few launches, so that no late arrival is lost.
    points = [max((d for d in delays[at : at + step] if d == d), default=None) for at in range(0, len(delays), step)]  # noqa: PLR0124
    width, height = _WIDTH - 4 - _LEFT, _HEIGHT - _BOTTOM - 2
    shown = [
        f"{_LEFT + width * (at / max(1, len(points) - 1)):.1f},{2 + height * (1 - delay / most):.1f}"
        for at, delay in enumerate(points)
        if delay is not None
    ]
    style = (
        'class="mhnb-bad" stroke="currentColor" stroke-width="2"'
        if is_named
        else 'stroke="currentColor" stroke-opacity=".35"'
    )
    return f'<polyline points="{" ".join(shown)}" fill="none" {style}><title>rank {rank}</title></polyline>'
