"""Charts of the metrics that ranks have logged.

Decides how points of different steps are brought together, and what is said beside a chart.
The median and the band at a step are of the ranks that have logged it, and a rank's line goes from one of its points to the next.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

from mhnb.core.cell_name import format_cell_names
from mhnb.core.metrics import Metrics, MetricSeries, format_number, is_equal
from mhnb.core.ranks import describe_ranks, pluralize
from mhnb.view.document import Document, Drawing, Drawn, InText, Line
from mhnb.view.drawings.curves import (
    Curve,
    Samples,
    build_curve,
    draw_braille,
    format_curve_text,
    shorten_numbers,
)
from mhnb.view.drawings.metrics import COLUMNS, MAX_DRAWN_RANKS, MetricCard, MetricChart, RankRow, draw_card

MAX_CHARTS = 12
"""Metrics of a cell that have a chart; of others, a line says how many points there are."""
LIVE_POINTS = 6_000
"""Points that are read for the charts of a cell that runs, which are drawn several times a second."""
STORED_POINTS = 200_000
_MIN_ROWS, _MAX_GRID = 64, 40_000
"""Steps that are drawn at least, and values of all ranks at most."""
_LOG_FACTOR = 1000.0
"""Positive values that span more than this are drawn on a logarithmic scale."""
_MAX_TITLE_CHARS = 40
_LAST_STEPS = 10
"""A rank's last steps, whose largest distance says when it will log again."""


NO_CARD = MetricCard()


def build_card(
    metrics: Metrics, *, done: bool, max_charts: int = MAX_CHARTS, points: int = STORED_POINTS
) -> MetricCard:
    """Build the charts of metrics.

    Args:
        metrics: of one cell, or of several: where two have logged a step, the later one counts.
        done: whether all of these cells have ended, so that a rank that has not logged the last steps has stopped.
        max_charts: charts that there is room for.
        points: points that may be read; of more, some in regular distances are read, and the last of each rank.
    """
    if not metrics:
        return NO_CARD
    by_name: dict[str, list[MetricSeries]] = {}
    for series in metrics.series:
        by_name.setdefault(series.name, []).append(series)
    shown = list(by_name.items())[:max_charts]
    each = max(1, points // max(1, len(shown)))
    charts = tuple(_try_chart(name, series, done=done, points=each) for name, series in shown)
    more = tuple(
        f"{format_name(name)} ({pluralize(sum(one.count for one in series), 'point')})"
        for name, series in list(by_name.items())[max_charts:]
    )
    return MetricCard(charts, more, tuple(map(_clean, metrics.all_notes)), len(metrics.differences))


def format_name(name: str) -> str:
    r"""Format a name, which may be any text, in one line.

    >>> format_name("loss"), format_name("a\nb")
    ('loss', 'a\\nb')
    """
    shown = _clean(name) if name.strip() else repr(name)
    return shown if len(shown) <= _MAX_TITLE_CHARS else f"{shown[: _MAX_TITLE_CHARS - 1]}…"


def _clean(text: str) -> str:
    """Replace unprintable characters by their Python escapes."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


_Points: TypeAlias = Mapping[int, Mapping[float, float]]
"""The value of each step, by rank."""
_Row: TypeAlias = Sequence[float | None]


def _try_chart(name: str, series: Sequence[MetricSeries], *, done: bool, points: int) -> MetricChart:
    """Build one metric's chart, or a remark why it cannot be drawn."""
    try:
        return build_chart(name, series, done=done, points=points)
    except (ArithmeticError, ValueError) as error:
        return MetricChart(format_name(name), None, (f"cannot be drawn ({type(error).__name__}: {error})",), ())


def build_chart(name: str, series: Sequence[MetricSeries], *, done: bool, points: int = STORED_POINTS) -> MetricChart:
    """Build the chart of one metric; the arguments are those of `build_card`."""
    values = _read_points(series, points)
    ranks, all_steps = tuple(sorted(values)), sorted({step for by_step in values.values() for step in by_step})
    steps = _pick(all_steps, max(_MIN_ROWS, _MAX_GRID // len(ranks)))
    is_logarithmic = _spans_decades(values)
    rows = _build_grid([values[rank] for rank in ranks], steps)
    texts = [["" if value is None else format_number(value) for value in row] for row in rows]
    drawn = [[_to_height(value, is_logarithmic=is_logarithmic) for value in row] for row in rows]
    ends = format_number(steps[0]), format_number(steps[-1])
    title, curve = format_name(name), build_curve(Samples(ranks, drawn, texts, "step", ends, _positions(steps, steps)))
    if curve is not None:
        curve = replace(
            curve,
            title=title,
            unit="step" if len(all_steps) == 1 else "steps",
            count=len(all_steps),
            last=curve.last if any(value is not None for value in drawn[-1]) else next(filter(None, texts[-1])),
            # Ranks that have no step in common cannot be said to agree.
            differs=any(map(_differ, rows)) or all(None in row for row in rows),
            is_logarithmic=is_logarithmic,
        )
    return MetricChart(
        title,
        curve,
        (
            *_describe_end(curve, rows[-1]),
            *_describe_not_finite(values),
            *(_describe_stopped(values) if done else ()),
        ),
        _build_rows(values, series, steps, curve),
    )


def _read_points(series: Sequence[MetricSeries], points: int) -> dict[int, dict[float, float]]:
    """Return each rank's values by step, thinned if there are too many."""
    stride = -(-sum(one.count for one in series) // points)
    values: dict[int, dict[float, float]] = {}
    for one in series:
        by_step = values.setdefault(one.rank, {})
        by_step.update(zip(one.steps[::stride], one.values[::stride], strict=True))
        if one.count:
            by_step[one.steps[-1]] = one.values[-1]
    return {rank: by_step for rank, by_step in values.items() if by_step}


def _pick(steps: Sequence[float], limit: int) -> Sequence[float]:
    """Return at most about `limit` steps at equal distances, with both ends."""
    stride = -(-len(steps) // limit)
    return steps if stride == 1 else [*steps[:-1:stride], steps[-1]]


def _positions(steps: Sequence[float], all_steps: Sequence[float]) -> list[float]:
    """Return the steps' positions between the ends, from 0 to 1."""
    first, span = all_steps[0], all_steps[-1] / 2 - all_steps[0] / 2
    return [(step / 2 - first / 2) / span if span else 0.5 for step in steps]


def _spans_decades(values: _Points) -> bool:
    finite = [value for by_step in values.values() for value in by_step.values() if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > _LOG_FACTOR


def _to_height(value: float | None, *, is_logarithmic: bool) -> float | None:
    """Return the number to draw for a value; None for nothing."""
    if value is None or not math.isfinite(value):
        return None
    return math.log10(value) if is_logarithmic else value


def _build_grid(columns: Sequence[Mapping[float, float]], steps: Sequence[float]) -> list[list[float | None]]:
    """Return ranks' values by step; values between steps move to the next."""
    rows: list[list[float | None]] = [[None] * len(columns) for _ in steps]
    for at, by_step in enumerate(columns):
        for step in sorted(by_step):
            rows[bisect_left(steps, step)][at] = by_step[step]
    return rows


def _differ(row: _Row) -> bool:
    """Return whether two ranks have logged different values."""
    logged = [value for value in row if value is not None]
    return any(not is_equal(value, logged[0]) for value in logged[1:])


# -- what the picture does not show


def _describe_end(curve: Curve | None, last: _Row) -> Iterator[str]:
    """Describe the scale, and the ranks' range at the end."""
    values = [value for value in last if value is not None and math.isfinite(value)]
    if curve is not None and curve.is_logarithmic:
        yield "logarithmic scale"
    ends = [format_number(min(values)), format_number(max(values))] if values else []
    if curve is not None and len(set(ends)) > 1:
        between = " to ".join(shorten_numbers(ends))
        yield between if curve.count == 1 else f"{between} at the end"


def _describe_not_finite(values: _Points) -> Iterator[str]:
    """Describe where values are NaN or infinite."""
    groups: dict[tuple[str, float, str], list[int]] = {}
    for rank, by_step in values.items():
        steps = sorted(by_step)
        bad = [step for step in steps if not math.isfinite(by_step[step])]
        if bad:
            is_until_end = bad == steps[-len(bad) :]
            how = "at" if len(bad) == 1 else "from" if is_until_end else "first at"
            groups.setdefault((format_number(by_step[bad[0]]), bad[0], how), []).append(rank)
    for (text, step, how), ranks in sorted(groups.items(), key=lambda group: group[1]):
        on = f" on {describe_ranks(ranks)}" if len(values) > 1 else ""
        yield f"{text}{on} {how} step {format_number(step)}"


def _describe_stopped(values: _Points) -> Iterator[str]:
    """Describe ranks that stopped logging earlier than their step distance explains."""
    end = max(max(by_step) for by_step in values.values())
    groups: dict[float, list[int]] = {}
    for rank, by_step in values.items():
        steps = sorted(by_step)[-_LAST_STEPS:]
        if end - steps[-1] > max((after - before for before, after in pairwise(steps)), default=0.0):
            groups.setdefault(steps[-1], []).append(rank)
    for step, ranks in sorted(groups.items(), key=lambda group: group[1]):
        yield f"{describe_ranks(ranks)} stopped at step {format_number(step)}"


def _build_rows(
    values: _Points, series: Sequence[MetricSeries], all_steps: Sequence[float], curve: Curve | None
) -> tuple[RankRow, ...]:
    if len(values) < 2:
        return ()
    counts: dict[int, int] = {}
    for one in series:
        counts[one.rank] = counts.get(one.rank, 0) + one.count
    rows: list[RankRow] = []
    for rank in sorted(values):
        by_step = values[rank]
        steps = sorted(by_step)
        finite = [value for value in by_step.values() if math.isfinite(value)] or [math.nan]
        numbers = (by_step[steps[0]], by_step[steps[-1]], min(finite), max(finite))
        between = format_number(steps[0]) + (f" to {format_number(steps[-1])}" if len(steps) > 1 else "")
        own = None if curve is None or len(rows) >= MAX_DRAWN_RANKS else _draw_rank(rank, by_step, all_steps, curve)
        rows.append(RankRow(rank, (str(counts[rank]), between, *map(format_number, numbers)), own))
    return tuple(rows)


def _draw_rank(rank: int, by_step: Mapping[float, float], all_steps: Sequence[float], curve: Curve) -> Curve | None:
    """Build one rank's curve, on the scale of all."""
    steps = sorted(by_step)
    rows = [[_to_height(by_step[step], is_logarithmic=curve.is_logarithmic)] for step in steps]
    texts = [[format_number(by_step[step])] for step in steps]
    ends = format_number(steps[0]), format_number(steps[-1])
    own = build_curve(Samples((rank,), rows, texts, "step", ends, _positions(steps, all_steps)))
    if own is None:
        return None
    title = f"{curve.title} of rank {rank}"
    return replace(own, title=title, unit=curve.unit, bounds=curve.bounds, is_logarithmic=curve.is_logarithmic)


# -- as text


def format_card_lines(card: MetricCard, *, each: bool = False) -> Iterator[str]:
    """Format charts as text, a line with remarks for each metric.

    Args:
        card: the charts.
        each: whether each rank has a line too.
    """
    width = max((len(chart.title) for chart in card.charts), default=0)
    for chart in card.charts:
        yield _format_chart_line(chart, width)
        if each:
            yield from _format_rank_lines(chart)
    if card.more:
        yield f"{pluralize(len(card.more), 'more metric')}: {', '.join(card.more)}"
    yield from (f"≠ {note}" if at < card.difference_count else note for at, note in enumerate(card.notes))


def _format_chart_line(chart: MetricChart, width: int) -> str:
    remarks = "; ".join(chart.remarks)
    if chart.curve is None:
        return f"{chart.title:<{width}}  {remarks}"
    if chart.curve.count == 1:
        where = f", {describe_ranks(chart.curve.ranks)}" if len(chart.curve.ranks) > 1 else ""
        line = f"{chart.title}  {chart.curve.last}   {chart.curve.word}at step {chart.curve.begin}{where}"
    else:
        line = format_curve_text(chart.curve)
    line = f"{chart.title:<{width}}{line.removeprefix(chart.title)}"
    return f"{line}; {remarks}" if remarks else line


def _format_rank_lines(chart: MetricChart) -> Iterator[str]:
    rows = [COLUMNS, *((str(row.rank), *row.texts) for row in chart.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for at, row in enumerate(rows if chart.rows else ()):
        curve = chart.rows[at - 1].curve if at else None
        drawn = f"  {draw_braille(curve.medians, *curve.bounds)}" if curve is not None else ""
        yield "  " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) + drawn


# -- the metrics of all cells


NO_POINTS = "mhjax · no cell has logged a metric; log one in a %%mhjax cell with mhnb.log(step, loss=loss)"
_MAX_CHARTS = 48


def build_metrics(metrics: Metrics, *, each: bool = False) -> Document:
    """Build a chart of each metric over the steps of all cells.

    `each` adds a line for each rank to the text.
    """
    if not metrics:
        return [Line(NO_POINTS)]
    # Whether a cell still runs is not known here: its ranks may be on different steps.
    card = build_card(metrics, done=False, max_charts=_MAX_CHARTS)
    lines = [*map(Line, format_card_lines(card, each=each))]
    return [Line(_format_heading(metrics), "quiet"), InText(lines), Drawn(lambda: [Drawing(draw_card(card))])]


def _format_heading(metrics: Metrics) -> str:
    cells = dict.fromkeys((series.cell, series.execution_count) for series in metrics.series)
    ranks = describe_ranks(sorted({series.rank for series in metrics.series}))
    parts = [pluralize(len(metrics.names), "metric"), ranks, pluralize(len(metrics), "point"), format_cell_names(cells)]
    return " · ".join(filter(None, parts))
