"""Curves of metrics over steps: median, band and outliers of ranks.

Decides which ranks are outliers, and how a curve is drawn, as a picture and in one line of text. A picture is an
image of its own, because an untrusted notebook drops elements of SVG from HTML. It does not know the page's theme, so its colours are
visible on both white and black. All text is beside it, and says what the picture shows.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import median_high, median_low
from typing import TypeAlias

from mhnb.core.output.template import parse_number
from mhnb.core.ranks import describe_ranks
from mhnb.view.html import QUIET_STYLE

_MAX_POINTS = 64
"""Of more steps, successive ones share a point, except the first and the last step.

Where ranks differ, the point's band has the lowest and the highest of these steps. Where all agree there is no band: the line goes
through the value that is farthest from the others, so that a peak is still seen.
"""
_MAX_OUTLIERS = 2
"""Maximum number of outliers with a curve of their own."""
_OUTLIER_FACTOR = 4.0
"""How many times further from the median than any other rank an outlier is."""
_OUTLIER_SHARE = 0.02
"""The smallest distance of an outlier, as a share of the curve's height: less cannot be seen."""

_Series: TypeAlias = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class OutlierRank:
    """A rank that is far from the others."""

    rank: int
    values: tuple[float | None, ...]
    """By point; None where it has no value."""
    last: str
    """Its last value, as it was printed."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What the ranks have at each step."""

    ranks: tuple[int, ...]
    rows: Sequence[_Series]
    """By step, the value of each rank. None where a rank has no finite value."""
    texts: Sequence[Sequence[str]]
    """The same as texts; empty where a rank has no value at all."""
    axis: str
    """The name of the steps, such as `step`."""
    ends: tuple[str, str]
    """The first and the last step."""
    positions: Sequence[float]
    """Where the steps are, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric."""

    title: str
    """Its name; may be empty."""
    count: int
    """Number of steps."""
    ranks: tuple[int, ...]
    lows: tuple[float | None, ...]
    """By point, the lowest of all ranks, or the median where they agree; None where no rank has a finite value."""
    medians: tuple[float | None, ...]
    highs: tuple[float | None, ...]
    low: str
    """The lowest value, as it was printed."""
    high: str
    bounds: tuple[float, float]
    """The lowest and the highest value, as they are drawn."""
    first: str
    """The first median, as it was printed."""
    last: str
    axis: str
    """The name of the steps, such as `step`."""
    begin: str
    """The first step, and the last one below."""
    end: str
    differs: bool
    """Whether the ranks have different values."""
    outliers: tuple[OutlierRank, ...]
    positions: tuple[float, ...]
    """Where the points are, from 0 to 1."""
    unit: str = "steps"
    """What is counted."""
    is_logarithmic: bool = False
    """Whether the logarithms of the values are drawn."""

    @property
    def has_band(self) -> bool:
        """Whether the ranks differ at any point."""
        return self.lows != self.highs

    @property
    def word(self) -> str:
        """What the line shows of several ranks: `median`, or `all` if equal."""
        return "" if len(self.ranks) == 1 else "median " if self.differs else "all "


def build_curve(samples: Samples) -> Curve | None:
    """Build a curve; None if no rank has a finite value."""
    rows, texts, ranks = samples.rows, samples.texts, samples.ranks
    known = [(value, text) for row, line in zip(rows, texts, strict=True) for value, text in _known(row, line)]
    if not known:
        return None
    low, high = min(known), max(known)
    if low[1].strip() == high[1].strip():
        # What is printed as one number is drawn as one: rounding noise would fill the whole height.
        rows = [[None if value is None else low[0] for value in row] for row in rows]
        high = low
    medians = [(row, line) for row, line in zip(rows, texts, strict=True) if any(value is not None for value in row)]
    shared = tuple(zip(*rows, strict=True))
    outliers = tuple(
        OutlierRank(ranks[at], thin(shared[at]), _last_text([line[at] for line in texts]))
        for at in find_outliers(rows, texts)
    )
    cuts = list(pairwise(_cuts(len(rows), min(len(rows), _MAX_POINTS))))
    lows, middles, highs = zip(*(_build_point(rows[slice(*ends)]) for ends in cuts), strict=True)
    return Curve(
        title="",
        count=len(rows),
        ranks=ranks,
        lows=lows,
        medians=middles,
        highs=highs,
        low=low[1].strip(),
        high=high[1].strip(),
        bounds=(low[0], high[0]),
        first=_median_text(*medians[0]),
        last=_median_text(*medians[-1]),
        axis=samples.axis,
        begin=samples.ends[0],
        end=samples.ends[1],
        differs=any(len(set(line)) > 1 for line in texts),
        outliers=outliers,
        positions=tuple(_mean(samples.positions[slice(*ends)]) for ends in cuts),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _build_point(rows: Sequence[_Series]) -> tuple[float | None, float | None, float | None]:
    """Merge successive rows into low, median and high; equal if ranks agree."""
    given = [row for row in rows if any(value is not None for value in row)]
    if not given:
        return None, None, None
    known = [_only(row) for row in given]
    # A rank that has a value on each line shows that the others agree. If all lack some, their lines may be apart.
    has_witness = any(None not in column for column in zip(*given, strict=True))
    if has_witness and all(min(values) == max(values) for values in known):
        value = _farthest([values[0] for values in known])
        return value, value, value
    return min(map(min, known)), _middle([_middle(values) for values in known]), max(map(max, known))


def _farthest(values: Sequence[float]) -> float:
    """Return the least or the most, whichever is farther from the middle."""
    middle, low, high = _middle(values), min(values), max(values)
    return high if high / 2 - middle / 2 >= middle / 2 - low / 2 else low


def _finite(text: str) -> float | None:
    number = parse_number(text) if text else None
    return number if number is not None and math.isfinite(number) else None


def _only(row: _Series) -> list[float]:
    return [value for value in row if value is not None]


def _known(row: _Series, line: Sequence[str]) -> Iterator[tuple[float, str]]:
    return ((value, text) for value, text in zip(row, line, strict=True) if value is not None)


def _middle(values: Sequence[float]) -> float:
    return median_low(values)


def _middle_or_none(row: _Series) -> float | None:
    values = _only(row)
    # Halved, because the sum of two finite numbers may not be finite.
    return median_low(values) / 2 + median_high(values) / 2 if values else None


def _median_text(row: _Series, line: Sequence[str]) -> str:
    """Return the lower median as it was printed."""
    known = sorted(_known(row, line))
    return known[(len(known) - 1) // 2][1].strip()


def _last_text(texts: Sequence[str]) -> str:
    return next((text.strip() for text in reversed(texts) if text), "")


def thin(values: _Series) -> tuple[float | None, ...]:
    """Merge successive values until there are at most as many as points."""
    if len(values) <= _MAX_POINTS:
        return tuple(values)
    parts = [_only(values[slice(*ends)]) for ends in pairwise(_cuts(len(values), _MAX_POINTS))]
    return tuple(_middle(part) if part else None for part in parts)


def _cuts(count: int, parts: int) -> list[int]:
    """Return cuts for about equal parts, with both end values alone.

    >>> _cuts(10, 4), _cuts(4, 4)
    ([0, 1, 5, 9, 10], [0, 1, 2, 3, 4])
    """
    if parts < 3:
        return [count * at // parts for at in range(parts + 1)]
    return [0, *(1 + (count - 2) * at // (parts - 2) for at in range(parts - 1)), count]


def find_outliers(rows: Sequence[Sequence[float | None]], texts: Sequence[Sequence[str]]) -> list[int]:
    """Return the positions of the few ranks far from the median.

    All others are near it. A rank counts as far if it is for half of all steps, or for half of the last quarter. A rank
    without a finite value where others have one counts too.

    Args:
        rows: by step, the value of each rank; None where it has no finite value.
        texts: the same as texts; empty where a rank has no value at all.
    """
    width, known = len(rows[0]), [value for row in rows for value in row if value is not None]
    if width < 3 or not known:
        return []
    # Halved, because the difference of two finite numbers may not be finite.
    half_span = max(known) / 2 - min(known) / 2
    last_quarter = len(rows) - max(1, len(rows) // 4)
    ends = rows[last_quarter:]
    not_finite = [
        at
        for at in range(width)
        if any(row[at] is None and line[at] for row, line in zip(ends, texts[last_quarter:], strict=True))
    ]
    if 0 < len(not_finite) <= min(_MAX_OUTLIERS, (width - 1) // 2):
        return not_finite
    middles = [_middle_or_none(row) for row in rows]
    far = [[_distance(row[at], middle) for row, middle in zip(rows, middles, strict=True)] for at in range(width)]
    distances = sorted(
        ((max(_typical(values), _typical(values[last_quarter:])), at) for at, values in enumerate(far)), reverse=True
    )
    for count in range(min(_MAX_OUTLIERS, (width - 1) // 2), 0, -1):
        nearest, farthest_other = distances[count - 1][0], distances[count][0]
        if nearest > _OUTLIER_FACTOR * farthest_other and nearest > 2 * _OUTLIER_SHARE * half_span:
            return sorted(at for _, at in distances[:count])
    return []


def _distance(value: float | None, middle: float | None) -> float | None:
    # Halved, because the difference of two finite numbers may not be finite.
    return None if value is None or middle is None else abs(value / 2 - middle / 2)


def _typical(values: _Series) -> float:
    return median_low(_only(values) or [0.0])


# -- in one line of text


_CELLS = 20
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""The bits of a Braille character's dots: its two columns, from the lowest dot up."""


def draw_braille(values: _Series, low: float, high: float, cells: int = _CELLS) -> str:
    """Draw a curve in Braille characters, each two points by four.

    >>> draw_braille([0, 1, 2, 3, 3, 2, 1, 0], 0, 3, 4)
    '⡠⠊⠑⢄'
    """
    columns = min(2 * cells, len(values))
    parts = [_only(values[slice(*ends)]) for ends in pairwise(_cuts(len(values), columns))]
    span = high / 2 - low / 2
    levels = [round((_middle(part) / 2 - low / 2) / (span or 1.0) * 3) if part else None for part in parts]
    bits = [0] * -(-columns // 2)
    before: int | None = None
    for at, level in enumerate(levels):
        if level is not None:
            # A steep step is joined, so that the line has no gaps.
            start = level if before is None or abs(before - level) < 2 else before + (1 if level > before else -1)
            for dot in range(min(start, level), max(start, level) + 1):
                bits[at // 2] |= _DOTS[at % 2][dot]
        before = level
    return "".join(chr(0x2800 + dots) for dots in bits)


def format_curve_text(curve: Curve) -> str:
    """Format a curve in one line, with end values and outliers."""
    low, high = curve.bounds
    where = f", {describe_ranks(curve.ranks)}" if len(curve.ranks) > 1 else ""
    texts = [curve.first, curve.last, *(one.last for one in curve.outliers)]
    first, last, *lasts = shorten_numbers(texts, _count_digits(curve))
    outliers = "".join(f"; rank {one.rank} {text} at the end" for one, text in zip(curve.outliers, lasts, strict=True))
    drawn = draw_braille(curve.medians, low, high)
    return f"{curve.title}  {first} {drawn} {last}   {curve.word}over {curve.count} {curve.unit}{where}{outliers}"


# -- as a picture


WIDTH, HEIGHT = 320, 120
_SCALE = 2
"""Units of the drawing per pixel, so that its coordinates are whole numbers."""
_MARGIN = 4
_LABEL_PX = 14
_MAX_HEIGHT = math.log10(sys.float_info.max) - 1e-12
_SHORT_CHARS = 5
"""A number of so few characters stays as it is."""
_LINE_COLOR = "#4a86d8"
_OUTLIER_COLORS = ("#d55e00", "#b565b5")
_AXES = (
    f'<path fill="none" stroke="#8c8c8c" stroke-width="2" d="M1 0V{HEIGHT * _SCALE - 1}H{WIDTH * _SCALE}"/>'
    # Beside the labels of the highest and the middle value.
    f'<path stroke="#8c8c8c" stroke-opacity=".35" d="M0 {_MARGIN}H{WIDTH * _SCALE}M0 {HEIGHT * _SCALE // 2}H{WIDTH * _SCALE}"/>'
)
_POINTER_CLASS = "mhnb-points"
CHART_CSS = (
    f".mhnb-chart{{position:relative}}.{_POINTER_CLASS}{{position:absolute;inset:0;display:flex}}"
    f".{_POINTER_CLASS}>i:hover{{background:rgba(128,128,128,.25)}}"
    # Above the picture, at the right: the browser's own tooltip comes late, and covers the curve.
    f".{_POINTER_CLASS}>i:hover::after{{content:attr(data-v);position:absolute;right:0;bottom:100%;padding:0 0 3px 8px;"
    "font-style:normal;white-space:nowrap;pointer-events:none;background:var(--jp-layout-color0,Canvas)}"
)
"""Places the points, which have their values, over the picture. Without it they have no size."""


def format_curve_html(curve: Curve, *, has_points: bool = True) -> str:
    """Format a curve as a picture, with values and steps beside it.

    Args:
        curve: what is drawn.
        has_points: whether the pointer shows the values of a point.
    """
    image, between = format_curve_image(curve, has_axes=True), "display:flex;justify-content:space-between"
    # The middle of a label is beside its line.
    height, above = HEIGHT - _MARGIN + _LABEL_PX, (_MARGIN - _LABEL_PX) // 2
    left = (
        f'<div style="height:{height}px;margin:{above}px 0;{between};flex-direction:column;text-align:right;padding-right:4px;'
        f'min-width:3.5em;{QUIET_STYLE}">{"".join(f"<div>{_text(text)}</div>" for text in _list_heights(curve))}</div>'
    )
    points = _format_points(curve) if has_points else ""
    steps = "".join(
        f'<div style="flex:1;text-align:{side}">{_text(text)}</div>'
        for side, text in zip(("left", "center", "right"), _list_steps(curve), strict=True)
    )
    axis = f'<div style="display:flex;{QUIET_STYLE}">{steps}</div>'
    picture = f'<div style="min-width:0"><div class="mhnb-chart">{image}{points}</div>{axis}</div>'
    # Not a gap between curves, which an untrusted notebook drops.
    small = f"display:flex;line-height:{_LABEL_PX}px;white-space:nowrap;margin-top:4px"
    return (
        f'<div style="margin:0 1.5em 2px 0;max-width:100%"><b class="mhnb-title">{_text(curve.title)}</b>'
        f'<div class="mhnb-small" style="{small}">{left}{picture}{_format_ends(curve)}</div></div>'
    )


def shorten_numbers(texts: Sequence[str], digits: int = 3) -> list[str]:
    """Shorten numbers to a few digits, as long as different ones differ.

    >>> shorten_numbers(["9.57998e-14", "1344.82", "1.0", "nan"]), shorten_numbers(["0.61912", "0.61945"])
    (['9.58e-14', '1345', '1.0', 'nan'], ['0.61912', '0.61945'])
    """
    shortened = [_shorten_number(text, digits) for text in texts]
    return shortened if len(set(shortened)) == len(set(texts)) else list(texts)


def _shorten_number(text: str, digits: int = 3) -> str:
    value = _finite(text)
    if value is None or len(text) <= _SHORT_CHARS:
        return text
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e6 else f"{value:.{digits}g}"


def _count_digits(curve: Curve) -> int:
    """Return the digits that tell values of the curve apart."""
    low, high = curve.bounds
    span = high / 2 - low / 2
    if curve.is_logarithmic or not span:
        return 3
    # At most 17, which tell any two numbers apart.
    return min(17, 3 + max(0, int(math.log10(max(abs(low), abs(high)) / 2 / span))))


def _list_heights(curve: Curve) -> list[str]:
    """Return the axis labels, from the highest value to the lowest."""
    if curve.low == curve.high:
        return ["", _shorten_number(curve.high), ""]
    high, low = shorten_numbers([curve.high, curve.low], _count_digits(curve))
    middle = _format_height(curve, curve.bounds[0] / 2 + curve.bounds[1] / 2)
    return [high, middle if middle not in (high, low) else "", low]


def _list_steps(curve: Curve) -> list[str]:
    """Return the first, the middle and the last step."""
    begin, end = _finite(curve.begin), _finite(curve.end)
    middle = "" if begin is None or end is None or begin == end else _shorten_number(repr(begin / 2 + end / 2))
    return [f"{curve.axis} {curve.begin}", middle.removesuffix(".0"), curve.end]


def _format_height(curve: Curve, height: float) -> str:
    # The logarithm of the largest number is rounded up.
    value = 10 ** min(height, _MAX_HEIGHT) if curve.is_logarithmic else height
    return _shorten_number(repr(value), _count_digits(curve))


def _format_points(curve: Curve) -> str:
    """Format an invisible column over each point, which shows its values."""
    begin, end = _finite(curve.begin), _finite(curve.end)
    between = [0.0, *((left + right) / 2 for left, right in pairwise(curve.positions)), 1.0]
    columns = []
    for at, (position, middle) in enumerate(zip(curve.positions, curve.medians, strict=True)):
        where = f"{curve.axis} "
        if begin is not None and end is not None:
            where += _shorten_step(begin + position * (end - begin))
        share = round(1000 * (between[at + 1] - between[at]))
        columns.append(
            f'<i style="flex:{share}" data-v="{escape(where)}: {escape(_describe_point(curve, at, middle))}"></i>'
        )
    return f'<div class="{_POINTER_CLASS}">{"".join(columns)}</div>'


def _shorten_step(step: float) -> str:
    return f"{step:.0f}" if abs(step) >= 10 else f"{step:.3g}"


def _describe_point(curve: Curve, at: int, middle: float | None) -> str:
    parts = [f"{curve.word if curve.differs else ''}{_format_height(curve, middle)}"] if middle is not None else []
    low, high = curve.lows[at], curve.highs[at]
    if low is not None and high is not None and low != high:
        parts.append(f"{_format_height(curve, low)} to {_format_height(curve, high)}")
    values = ((one.rank, one.values[at]) for one in curve.outliers)
    parts += [f"rank {rank} {_format_height(curve, value)}" for rank, value in values if value is not None]
    return ", ".join(parts) or "no value"


def format_curve_image(curve: Curve, *, width: int = WIDTH, height: int = HEIGHT, has_axes: bool) -> str:
    """Format only the picture of a curve; its size is in pixels."""
    uri = base64.b64encode(draw_svg(curve, has_axes=has_axes).encode()).decode()
    return (
        f'<img alt="{escape(describe_curve(curve))}" src="data:image/svg+xml;base64,{uri}" '
        f'style="display:block;margin:0;width:{width}px;max-width:100%;height:{height}px">'
    )


def _text(text: str) -> str:
    return escape(text, quote=False)


def _format_ends(curve: Curve) -> str:
    """Format the last values, each near the end of its line."""
    low, high = curve.bounds
    last, *lasts = shorten_numbers([curve.last, *(one.last for one in curve.outliers)], _count_digits(curve))
    ends = [(_last(curve.medians), f"{curve.word if curve.differs else ''}{last}", f"solid {_LINE_COLOR}")]
    for one, text, color in zip(curve.outliers, lasts, _OUTLIER_COLORS, strict=False):
        # A value that is not finite is above all others, as it is drawn.
        is_finite = _finite(one.last) is not None
        ends.append((_last(one.values) if is_finite else high, f"rank {one.rank} {text}", f"dashed {color}"))
    ends.sort(key=lambda end: -end[0])
    labels, used = [], 0
    for at, (value, text, border) in enumerate(ends):
        wanted = round(_height_of(value, low, high) / _SCALE) - _LABEL_PX // 2
        top = max(used, min(wanted, HEIGHT - _LABEL_PX * (len(ends) - at)))
        # Lying, because a standing line before a number looks like another digit.
        key = f'<span style="display:inline-block;width:10px;vertical-align:middle;border-top:2px {border}"></span>'
        labels.append(f'<div style="margin-top:{top - used}px">{key} {_text(text)}</div>')
        used = top + _LABEL_PX
    return f'<div style="padding-left:4px">{"".join(labels)}</div>'


def _last(values: _Series) -> float:
    return _only(values)[-1] if _only(values) else 0.0


def describe_curve(curve: Curve) -> str:
    """Describe a curve in a sentence, for readers without the picture."""
    of = f"{curve.word}of {describe_ranks(curve.ranks)} " if len(curve.ranks) > 1 else ""
    outliers = "".join(f"; rank {one.rank} ends at {one.last}" for one in curve.outliers)
    scale = ", on a logarithmic scale" if curve.is_logarithmic else ""
    return (
        f"{curve.title} over {curve.count} {curve.unit}, {curve.axis} {curve.begin} to {curve.end}: {of}"
        f"from {curve.first} to {curve.last}, lowest {curve.low}, highest {curve.high}{outliers}{scale}"
    )


def draw_svg(curve: Curve, *, has_axes: bool = False) -> str:
    """Draw the ranks' band, the median, and each outlier, dashed and coloured."""
    low, high = curve.bounds
    parts = [_AXES] if has_axes else []
    if curve.has_band:
        parts.append(f'<path fill="{_LINE_COLOR}" fill-opacity=".3" d="{_draw_band(curve, low, high)}"/>')
    median = _points(curve.medians, curve.positions, low, high)
    lines: list[tuple[Sequence[tuple[int, int] | None], str, str]] = [(median, _LINE_COLOR, "")]
    for one, color in zip(curve.outliers, _OUTLIER_COLORS, strict=False):
        # Joined, because a rank that has few of the points would be dots otherwise.
        points = [point for point in _points(one.values, curve.positions, low, high) if point is not None]
        lines.append((points, color, ' stroke-dasharray="8 4"'))
    parts += [
        f'<path fill="none" stroke="{color}" stroke-width="2" stroke-linejoin="round" stroke-linecap="round" '
        f'vector-effect="non-scaling-stroke"{dashes} '
        f'd="{_draw_line(points)}"/>'
        for points, color, dashes in lines
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH * _SCALE} {HEIGHT * _SCALE}" '
        f'preserveAspectRatio="none">{"".join(parts)}</svg>'
    )


def _height_of(value: float, low: float, high: float) -> int:
    """Return the distance from the picture's top, in units of the drawing."""
    span = high / 2 - low / 2
    share = (value / 2 - low / 2) / span if span else 0.5
    return round(_MARGIN + (1 - share) * (HEIGHT * _SCALE - 2 * _MARGIN))


def _points(values: _Series, positions: Sequence[float], low: float, high: float) -> list[tuple[int, int] | None]:
    width = WIDTH * _SCALE - 2 * _MARGIN
    return [
        None if value is None else (_MARGIN + round(position * width), _height_of(value, low, high))
        for value, position in zip(values, positions, strict=True)
    ]


def _draw_line(points: Sequence[tuple[int, int] | None]) -> str:
    """Draw a line with a gap where there is no value."""
    drawn, before = [], None
    for point in points:
        if point is not None:
            drawn.append(f"M{point[0]} {point[1]}h0" if before is None else _draw_step(before, point))
        before = point
    return "".join(drawn)


def _draw_step(before: tuple[int, int], point: tuple[int, int]) -> str:
    """Draw to a point by relative coordinates, because these are shorter."""
    right, down = point[0] - before[0], point[1] - before[1]
    return f"l{right} {down}".replace(" -", "-") if down else f"h{right}"


def _draw_band(curve: Curve, low: float, high: float) -> str:
    top = [point for point in _points(curve.highs, curve.positions, low, high) if point is not None]
    bottom = [point for point in _points(curve.lows, curve.positions, low, high) if point is not None]
    outline = [*top, *reversed(bottom)]
    return f"M{outline[0][0]} {outline[0][1]}{''.join(_draw_step(*ends) for ends in pairwise(outline))}z"
