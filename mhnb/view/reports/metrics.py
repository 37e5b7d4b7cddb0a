"""The metrics of all cells of a cluster."""

from __future__ import annotations

from mhnb.core.cell_name import format_cell_names
from mhnb.core.metrics import Metrics
from mhnb.core.ranks import describe_ranks, pluralize
from mhnb.view.cell.metrics import build_card, format_card_html, format_card_lines
from mhnb.view.document import Document, Drawing, InHtml, InText, Line

NO_POINTS = "mhjax · no cell has logged a metric; log one in a %%mhjax cell with mhnb.log(step, loss=loss)"
_MAX_CHARTS = 48


def build_metrics(metrics: Metrics, *, each: bool = False) -> Document:
    """Build a chart of each metric over the steps of all cells; as text a line, and with `each` also a line for each rank."""
    if not metrics:
        return [Line(NO_POINTS)]
    # Whether a cell still runs is not known here: its ranks may be on different steps.
    card = build_card(metrics, done=False, max_charts=_MAX_CHARTS)
    lines = [*map(Line, format_card_lines(card, each=each))]
    return [Line(_format_heading(metrics), "quiet"), InText(lines), InHtml([Drawing(format_card_html(card))])]


def _format_heading(metrics: Metrics) -> str:
    cells = dict.fromkeys((series.cell, series.execution_count) for series in metrics.series)
    ranks = describe_ranks(sorted({series.rank for series in metrics.series}))
    parts = [pluralize(len(metrics.names), "metric"), ranks, pluralize(len(metrics), "point"), format_cell_names(cells)]
    return " · ".join(filter(None, parts))
