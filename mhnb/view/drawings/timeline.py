"""Draw a bar of what each rank did in a traced cell.

The picture is an image of its own, because an untrusted notebook drops elements of SVG from HTML. It does not know the page's theme,
so its colors are visible on both white and black; the table beside it has the sums.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Final

from mhnb.core.trace import RankTimes, State
from mhnb.view.html import format_seconds

COLORS: Final[dict[State, str]] = {
    "compute": "#0072b2",
    "communication": "#e69f00",
    "waiting": "#d55e00",
    "host": "#8c8c8c",
    "not recorded": "#cfcfcf",
}
"""Of Okabe and Ito, which color-blind users can distinguish; the same order everywhere."""


def draw_timeline(rows: Sequence[RankTimes], states: Sequence[State], label: str, span_s: float) -> str:
    """Draw the states of ranks over time, below a legend.

    Args:
        rows: of the ranks that are drawn.
        states: those that the legend names.
        label: what the picture shows, for users who do not see it.
        span_s: the time that it covers, in seconds.
    """
    return _format_legend(states) + _draw_picture(rows, label, span_s)


def _format_legend(states: Sequence[State]) -> str:
    items = "".join(
        f'<span style="margin-right:1em"><span style="display:inline-block;width:.8em;height:.8em;background:{COLORS[state]};'
        f'margin-right:.3em" aria-hidden="true"></span>{state}</span>'
        for state in states
    )
    return f"<div>{items}</div>"


_WIDTH, _LEFT, _ROW, _GAP, _AXIS = 640, 34, 14, 3, 16


def _draw_picture(rows: Sequence[RankTimes], label: str, span_s: float) -> str:
    height = len(rows) * (_ROW + _GAP) + _AXIS
    count = max(len(row.states) for row in rows)
    bars = "".join(_draw_bar(row, at, count) for at, row in enumerate(rows))
    # A color that is visible on white and on black.
    axis = (
        f'<text x="{_LEFT}" y="{height - 3}">0</text>'
        f'<text x="{_WIDTH}" y="{height - 3}" text-anchor="end">{format_seconds(span_s)}</text>'
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        f' font-family="sans-serif" font-size="10" fill="#8c8c8c">{bars}{axis}</svg>'
    )
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return f'<img alt="{escape(label)}" src="{source}" style="max-width:100%;display:block;margin:3px 0">'


def _draw_bar(row: RankTimes, at: int, count: int) -> str:
    top, step = at * (_ROW + _GAP), (_WIDTH - _LEFT) / count
    parts = [f'<text x="{_LEFT - 5}" y="{top + _ROW - 3}" text-anchor="end">{row.rank}</text>']
    position = 0
    for state, same in groupby(row.states):
        length = len(list(same))
        if state is not None:
            parts.append(
                f'<rect x="{_LEFT + position * step:.1f}" y="{top}" width="{length * step:.1f}" height="{_ROW}"'
                f' fill="{COLORS[state]}"/>'
            )
        position += length
    return "".join(parts)
