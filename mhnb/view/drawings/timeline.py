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

_GREY: Final = "#8c8c8c"
"""Visible on white and on black."""
FILLS: Final[dict[State, str]] = {
    "compute": "#0072b2",
    "communication": "#009e73",
    "waiting": "#c8c8c8",
    "host": "#cc79a7",
    "not recorded": "",
}
"""Of Okabe and Ito, which color-blind users can distinguish. Waiting is light and hatched, what is not recorded is empty."""
_HATCHES: Final = (
    '<defs><pattern id="waiting" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<path fill="{FILLS["waiting"]}" d="M0 0h6v6H0z"/><path stroke="{_GREY}" stroke-width="2" d="M0 0v6"/></pattern></defs>'
)


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
        f'<span style="margin-right:1em"><span style="display:inline-block;width:.8em;height:.8em;{_format_swatch(state)};'
        f'margin-right:.3em" aria-hidden="true"></span>{state}</span>'
        for state in states
    )
    return f"<div>{items}</div>"


def _format_swatch(state: State) -> str:
    # An untrusted notebook keeps a border, but not a hatched background.
    color = f"background-color:{FILLS[state]};" if FILLS[state] else ""
    return (
        f"{color}border:1px {'dashed' if state == 'waiting' else 'solid'} {FILLS[state] if state in _SOLID else _GREY}"
    )


_SOLID: Final[tuple[State, ...]] = ("compute", "communication", "host")
_WIDTH, _LEFT, _ROW, _GAP, _AXIS = 640, 34, 16, 3, 18


def _draw_picture(rows: Sequence[RankTimes], label: str, span_s: float) -> str:
    height = len(rows) * (_ROW + _GAP) + _AXIS
    count = max(len(row.states) for row in rows)
    bars = "".join(_draw_bar(row, at, count) for at, row in enumerate(rows))
    axis = (
        f'<text x="{_LEFT}" y="{height - 3}">0</text>'
        f'<text x="{_WIDTH}" y="{height - 3}" text-anchor="end">{format_seconds(span_s)}</text>'
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        f' font-family="sans-serif" font-size="12" fill="{_GREY}">{_HATCHES}{bars}{axis}</svg>'
    )
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return f'<img alt="{escape(label)}" src="{source}" style="max-width:100%;display:block;margin:3px 0">'


def _draw_bar(row: RankTimes, at: int, count: int) -> str:
    top, step = at * (_ROW + _GAP), (_WIDTH - _LEFT) / count
    parts = [f'<text x="{_LEFT - 5}" y="{top + _ROW - 4}" text-anchor="end">{row.rank}</text>']
    position = 0
    for state, same in groupby(row.states):
        length = len(list(same))
        if state is not None:
            parts.append(
                f'<rect x="{_LEFT + position * step:.1f}" y="{top}" width="{length * step:.1f}" height="{_ROW}"'
                f" {_format_fill(state)}/>"
            )
        position += length
    return "".join(parts)


def _format_fill(state: State) -> str:
    if not FILLS[state]:
        return f'fill="none" stroke="{_GREY}"'
    return f'fill="{"url(#waiting)" if state == "waiting" else FILLS[state]}"'
