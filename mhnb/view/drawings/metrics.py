"""Draw charts of metrics side by side, with ranks in folds."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from mhnb.core.ranks import pluralize
from mhnb.view.drawings.curves import CHART_CSS, Curve, format_curve_html, format_curve_image
from mhnb.view.html import QUIET_STYLE, format_fold, format_sign, wrap_in_scroller

MAX_DRAWN_RANKS = 16
"""Ranks that have a picture of their own; all have their numbers."""
COLUMNS = ("rank", "points", "steps", "first", "last", "lowest", "highest")
"""Of the table of ranks."""
_RANK_PX = 108, 16
_CHARTS_STYLE = "display:flex;flex-wrap:wrap;align-items:flex-start;margin:4px 0 2px"
_TABLE_STYLE = "border-collapse:collapse;border:0;margin:2px 0"


@dataclass(frozen=True, slots=True)
class RankRow:
    """What one rank has logged of a metric."""

    rank: int
    texts: tuple[str, ...]
    """In the order of the table's columns, from the number of points on."""
    curve: Curve | None
    """None if it has no finite value, or if too many ranks have one."""


@dataclass(frozen=True, slots=True)
class MetricChart:
    """One metric, as it is shown."""

    title: str
    curve: Curve | None
    """None if no rank has logged a finite value."""
    remarks: tuple[str, ...]
    """What the picture does not show, or not well enough."""
    rows: tuple[RankRow, ...]
    """Each rank; empty if only one has logged."""


@dataclass(frozen=True, slots=True)
class MetricCard:
    """The charts of one or several cells, and the sentences below."""

    charts: tuple[MetricChart, ...] = ()
    more: tuple[str, ...] = ()
    """Metrics without a chart, each with its number of points."""
    notes: tuple[str, ...] = ()
    difference_count: int = 0
    """How many of the notes, the first ones, say that ranks differ which should not."""

    def __bool__(self) -> bool:
        return bool(self.charts or self.notes)


def draw_card(card: MetricCard, *, brief: bool = False) -> str:
    """Draw charts side by side, and the sentences below them.

    `brief` leaves out the pictures of the ranks and what the pointer shows, because it is sent several times a second.
    """
    charts = "".join(_format_chart_html(chart, brief=brief) for chart in card.charts)
    css = "" if brief else f"<style>{CHART_CSS}</style>"
    parts = [f'{css}<div class="mhnb-metrics" style="{_CHARTS_STYLE}">{charts}</div>'] if charts else []
    if card.more:
        label = escape(pluralize(len(card.more), "more metric"), quote=False)
        parts.append(format_fold(label, f"<div>{escape(', '.join(card.more), quote=False)}</div>"))
    for at, note in enumerate(card.notes):
        text = escape(note, quote=False)
        parts.append(
            f"<div><b>{format_sign('≠')} {text}</b></div>"
            if at < card.difference_count
            else f'<div style="{QUIET_STYLE}">{text}</div>'
        )
    return "".join(parts)


def _format_chart_html(chart: MetricChart, *, brief: bool) -> str:
    title, curve = escape(chart.title, quote=False), chart.curve
    if curve is not None and curve.count > 1:
        drawn = format_curve_html(curve, has_points=not brief)
    else:
        # One point is no line: its chart would be a dot in an empty frame.
        value = (
            ""
            if curve is None
            else f"<div>{curve.word if curve.differs else ''}{curve.last} at {curve.axis} {curve.begin}</div>"
        )
        drawn = f'<div><b class="mhnb-title">{title}</b></div>{value}'
    remarks = "".join(f"<div>{escape(remark, quote=False)}</div>" for remark in chart.remarks)
    quiet = f'<div style="{QUIET_STYLE}">{remarks}</div>' if remarks else ""
    ranks = format_fold(f"{title} of each rank", _format_rank_table(chart, brief=brief)) if chart.rows else ""
    return f'<div style="max-width:100%;margin:0 .5em 4px 0">{drawn}{quiet}{ranks}</div>'


def _format_rank_table(chart: MetricChart, *, brief: bool) -> str:
    shown = chart.rows[:MAX_DRAWN_RANKS] if brief else chart.rows
    heads = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    body = []
    for row in shown:
        cells = "".join(f"<td>{escape(text, quote=False)}</td>" for text in row.texts)
        drawn = (
            ""
            if row.curve is None or brief
            else format_curve_image(row.curve, width=_RANK_PX[0], height=_RANK_PX[1], has_axes=False)
        )
        body.append(f'<tr><th scope="row">{row.rank}</th>{cells}{f"<td>{drawn}</td>" if drawn else ""}</tr>')
    left_out = len(chart.rows) - len(shown)
    more = f"<div>{pluralize(left_out, 'more rank')} when the cell ends</div>" if left_out else ""
    table = f'<table class="mhnb-table mhnb-run" style="{_TABLE_STYLE}"><tr>{heads}</tr>{"".join(body)}</table>'
    return wrap_in_scroller(table) + more
