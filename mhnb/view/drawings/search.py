"""The meshes of a search as points: memory against time.

The picture is an image, as in `curves`, whose sizes and quiet text it has; the table beside it has every value.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from mhnb.view.drawings.curves import HEIGHT, WIDTH
from mhnb.view.html import QUIET_STYLE

_MARGIN = 10
_BEST = 3
"""How many of the best points are filled and numbered."""
_COLOR = "#2a78d6"


@dataclass(frozen=True, slots=True)
class SearchPoint:
    """One mesh; the points are in order, the best first."""

    memory: float
    seconds: float
    label: str


def format_points(points: Sequence[SearchPoint], memory_ends: tuple[str, str], time_ends: tuple[str, str]) -> str:
    """Format the picture with its axes.

    Args:
        points: at least two.
        memory_ends: the smallest and the largest memory, as text.
        time_ends: the shortest and the longest time.
    """
    uri = base64.b64encode(_draw(points).encode()).decode()
    named = ", ".join(f"{at} {point.label}" for at, point in enumerate(points[:_BEST], 1))
    alt = f"{len(points)} meshes by memory and time; the best: {named}"
    between = "display:flex;justify-content:space-between"
    left = "".join(f"<div>{escape(text, quote=False)}</div>" for text in reversed(time_ends))
    below = "".join(f"<div>{escape(text, quote=False)}</div>" for text in memory_ends)
    return (
        f'<div style="display:flex;max-width:100%;margin:4px 0;line-height:16px"><div style="height:{HEIGHT}px;{between};'
        f'flex-direction:column;text-align:right;padding-right:4px;white-space:nowrap;{QUIET_STYLE}">{left}</div>'
        f'<div style="min-width:0"><img alt="{escape(alt)}" src="data:image/svg+xml;base64,{uri}" '
        f'style="display:block;margin:0;width:{WIDTH}px;max-width:100%;height:{HEIGHT}px">'
        f'<div style="{between};{QUIET_STYLE}">{below}</div></div></div>'
    )


def _draw(points: Sequence[SearchPoint]) -> str:
    memory, seconds = [point.memory for point in points], [point.seconds for point in points]
    parts = [f'<path fill="none" stroke="#888" d="M.5 0V{HEIGHT - 0.5}H{WIDTH}"/>']
    # The best are drawn last, above the others.
    for at, point in reversed(list(enumerate(points, 1))):
        x = _place(point.memory, memory, WIDTH)
        y = HEIGHT - _place(point.seconds, seconds, HEIGHT)
        if at > _BEST:
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="none" stroke="#888"/>')
            continue
        # The number is on the side with more room.
        side, anchor = (7, "start") if x < WIDTH / 2 else (-7, "end")
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="4" fill="{_COLOR}"/><text x="{x + side}" y="{y + 4}" text-anchor="{anchor}" '
            f'font-family="sans-serif" font-size="12" fill="{_COLOR}">{at}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'
    )


def _place(value: float, values: Sequence[float], length: int) -> int:
    low, high = min(values), max(values)
    share = (value - low) / (high - low) if high > low else 0.5
    return round(_MARGIN + share * (length - 2 * _MARGIN))
