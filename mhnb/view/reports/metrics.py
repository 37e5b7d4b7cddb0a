"""The metrics of all cells of a cluster, as HTML and as text."""

from __future__ import annotations

from html import escape

from mhnb.core.cell_name import format_cell_names
from mhnb.core.metrics import Metrics
from mhnb.core.ranks import describe_ranks, pluralize
from mhnb.view.cell.metrics import MetricCard, build_card, format_card_html, format_card_lines
from mhnb.view.html import QUIET_STYLE, wrap_html

NO_POINTS = "mhjax · no cell has logged a metric; log one in a %%mhjax cell with mhnb.log(step, loss=loss)"
_MAX_CHARTS = 48


def format_metrics_html(metrics: Metrics) -> str:
    """Format a chart of each metric over the steps of all cells."""
    if not metrics:
        return wrap_html(f"<div>{escape(NO_POINTS, quote=False)}</div>")
    heading = f'<div style="{QUIET_STYLE}">{escape(_format_heading(metrics), quote=False)}</div>'
    return wrap_html(heading + format_card_html(_build_card(metrics)))


def format_metrics_text(metrics: Metrics, *, each: bool = False) -> str:
    """Format a line for each metric; with `each` also a line for each rank."""
    if not metrics:
        return NO_POINTS
    return "\n".join([_format_heading(metrics), *format_card_lines(_build_card(metrics), each=each)])


def _build_card(metrics: Metrics) -> MetricCard:
    # Whether a cell still runs is not known here: its ranks may be on different steps.
    return build_card(metrics, done=False, max_charts=_MAX_CHARTS)


def _format_heading(metrics: Metrics) -> str:
    cells = dict.fromkeys((series.cell, series.execution_count) for series in metrics.series)
    ranks = describe_ranks(sorted({series.rank for series in metrics.series}))
    parts = [pluralize(len(metrics.names), "metric"), ranks, pluralize(len(metrics), "point"), format_cell_names(cells)]
    return " · ".join(filter(None, parts))
