"""Collect figures that only a front end can draw: their ranks, equal figures once, and a short description.

Such a figure is data for a script of the front end. It cannot be part of other HTML, so it needs an output of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mhnb.core.output.results import RankResult

__all__ = ["Figure", "collect_figures", "describe_figure", "find_figure_type"]

_FIGURE_KINDS = {
    "application/vnd.plotly.": "plotly",
    "application/vnd.vegalite.": "Vega-Lite",
    "application/vnd.vega.": "Vega",
}
"""By the prefix of the MIME type, which ends in a version."""
_RENDERED_TYPES = ("text/html", "image/png", "image/svg+xml", "image/jpeg")
_TITLE_CHARS, _KINDS_NAMED = 80, 8


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, and the ranks that made it."""

    ranks: tuple[int, ...]
    mime: str
    content: Any
    """The JSON value."""
    nbytes: int
    """Its stored size."""


def find_figure_type(data: Mapping[str, Any]) -> str | None:
    """Return the MIME type of a figure that has no other representation; None for any other output.

    >>> find_figure_type({"application/vnd.plotly.v1+json": {}, "text/plain": "Figure()"})
    'application/vnd.plotly.v1+json'
    """
    if any(mime in data for mime in _RENDERED_TYPES):
        return None
    return next((mime for mime in data if mime.startswith(tuple(_FIGURE_KINDS))), None)


def describe_figure(mime: str, content: Any) -> str:
    """Describe a figure's kind, and its contents if they are easy to determine.

    >>> describe_figure("application/vnd.plotly.v1+json", {"data": [{"type": "bar"}], "layout": {"title": {"text": "loss"}}})
    'a plotly figure “loss”: bar'
    """
    kind = next(word for start, word in _FIGURE_KINDS.items() if mime.startswith(start))
    parts = content if isinstance(content, dict) else {}
    title = _title(parts)
    traces = parts.get("data") if kind == "plotly" else None
    # A rank can show any value under this MIME type: it need not be a figure.
    listed = [trace for trace in traces if isinstance(trace, dict)] if isinstance(traces, list) else []
    kinds = Counter(str(trace.get("type", "scatter"))[:_TITLE_CHARS] for trace in listed)
    inside = ", ".join(word if count == 1 else f"{count} {word}" for word, count in list(kinds.items())[:_KINDS_NAMED])
    return f"a {kind} figure" + (f" “{title}”" if title else "") + (f": {inside}" if inside else "")


def _title(parts: Mapping[str, Any]) -> str:
    layout = parts.get("layout")
    title = layout.get("title") if isinstance(layout, dict) else parts.get("title")
    text = title.get("text") if isinstance(title, dict) else title
    return text[:_TITLE_CHARS] if isinstance(text, str) else ""


def collect_figures(ranks: Iterable[RankResult]) -> tuple[Figure, ...]:
    """Collect the figures of a cell, ordered by their position in a rank's outputs, then by rank; equal figures once.

    Args:
        ranks: each rank's result, in rank order.

    >>> shown = {"output_type": "display_data", "data": {"application/vnd.vega.v5+json": {}}, "metadata": {}}
    >>> [figure.ranks for figure in collect_figures(RankResult(rank, "ok", (shown,)) for rank in (0, 1))]
    [(0, 1)]
    """
    found: dict[tuple[int, str], tuple[list[int], str, Any]] = {}
    for rank in ranks:
        figures = ((find_figure_type(data), data) for output in rank.outputs if (data := output.get("data")))
        for at, (mime, data) in enumerate((mime, data) for mime, data in figures if mime is not None):
            text = json.dumps([mime, data[mime]], sort_keys=True)
            found.setdefault((at, text), ([], mime, data[mime]))[0].append(rank.rank)
    in_order = sorted(found.items(), key=lambda one: one[0][0])
    return tuple(Figure(tuple(whose), mime, content, len(text)) for (_, text), (whose, mime, content) in in_order)
