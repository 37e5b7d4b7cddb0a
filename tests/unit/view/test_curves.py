"""A curve has the median, the band and the outliers of many steps, and its drawing is small and well-formed."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from xml.dom import minidom

import pytest

from mhnb.view.drawings.curves import (
    Curve,
    Samples,
    build_curve,
    draw_braille,
    draw_svg,
    format_curve_html,
    format_curve_text,
)


def _curve(rows: Sequence[Sequence[float | None]]) -> Curve:
    """Return the curve of ranks that have a value at each step."""
    texts = [["nan" if value is None else str(value) for value in row] for row in rows]
    positions = [at / (len(rows) - 1) for at in range(len(rows))]
    curve = build_curve(Samples(tuple(range(len(rows[0]))), rows, texts, "step", ("0", str(len(rows) - 1)), positions))
    assert curve is not None
    return curve


def test_size_does_not_depend_on_the_number_of_steps() -> None:
    """A picture of 2,000 steps has no more points than one of 200."""
    short, long = (_curve([[1 / (1 + at), 1.1 / (1 + at)] for at in range(count)]) for count in (200, 2000))
    assert len(draw_svg(long)) < 1.2 * len(draw_svg(short))
    assert len(draw_svg(short)) < 2000
    assert len(long.medians) == len(short.medians)


def test_band_keeps_a_single_peak() -> None:
    """Steps that share a point keep their lowest and their highest value: one bad step of a thousand is still seen."""
    rows = [[1.5 + at % 3 * 0.1 + rank * 0.01 for rank in range(4)] for at in range(1000)]
    rows[501][1] = 99.5
    curve = _curve(rows)
    assert max(value for value in curve.highs if value is not None) == 99.5
    assert curve.high == "99.5"
    assert curve.outliers == ()


def test_line_of_agreeing_ranks_has_both_ends_and_every_peak() -> None:
    """Where all ranks agree there is no band: the line begins and ends at the values of both ends, and shows a peak."""
    rows = [[1 / (1 + at)] * 4 for at in range(200)]
    falling = _curve(rows)
    assert not falling.has_band
    assert (falling.medians[0], falling.medians[-1]) == (1.0, 0.005)
    assert draw_svg(falling).count("<path") == 1
    assert re.search(r"1\.0 ⠱⣀+ 0\.005", format_curve_text(falling))
    rows[101] = [99.5] * 4
    assert 99.5 in _curve(rows).medians


def test_odd_ranks_are_far_from_all_others() -> None:
    """A rank that leaves the others is an outlier, ranks that are spread evenly are not, and of two ranks neither is."""
    left = _curve([[1 / (1 + at) + rank / 1000 + (rank == 3 and at > 9) for rank in range(4)] for at in range(20)])
    assert [one.rank for one in left.outliers] == [3]
    assert len(minidom.parseString(draw_svg(left)).getElementsByTagName("path")) == 3  # noqa: S318  # our own
    assert _curve([[at / 7 + 1.01 * rank for rank in range(5)] for at in range(20)]).outliers == ()
    assert _curve([[at + 0.1, at + 5.1] for at in range(20)]).outliers == ()
    two = _curve([[10.1 - at / 3, 10.2 - at / 3, 10.1 - at / 3, 11.5, 12.5] for at in range(20)])
    assert [one.rank for one in two.outliers] == [3, 4]


def test_rank_without_finite_values_is_odd() -> None:
    """A rank whose loss became nan is named, its curve ends where its numbers do, and the others keep their scale."""
    curve = _curve([[1.5 + at, 1.6 + at, None if at > 12 else 1.4 + at] for at in range(20)])
    assert [(one.rank, one.last) for one in curve.outliers] == [(2, "nan")]
    assert curve.outliers[0].values[12:14] == (13.4, None)
    assert "rank 2 nan at the end" in format_curve_text(curve)
    assert "nan" not in draw_svg(curve)


def test_pointer_shows_the_values_of_a_point() -> None:
    """Each point has its step and its values; what is drawn on a logarithmic scale is told as it is."""
    curve = _curve([[10.0 - at, 10.5 - at, 10.25 - at, 30.0 - at] for at in range(9)])
    titles = re.findall(r'data-v="([^"]+)"', format_curve_html(curve))
    assert len(titles) == 9
    assert titles[4] == "step 4: median 6.25, 6.0 to 26.0, rank 3 26.0"
    logarithms = replace(curve, medians=(0.0, -3.0) * 4 + (2.0,), lows=(None,) * 9, is_logarithmic=True, outliers=())
    assert [title.split(": ")[1] for title in re.findall(r'data-v="([^"]+)"', format_curve_html(logarithms))][:2] == [
        "median 1.0",
        "median 0.001",
    ]
    assert "data-v=" not in format_curve_html(curve, has_points=False)


def test_values_near_each_other_have_more_digits() -> None:
    """Three digits would be the same at each point, and the middle below the lowest."""
    html = format_curve_html(_curve([[0.69128 - at * 1e-5] for at in range(9)]))
    assert re.findall(r"<div>([^<]*)</div>", html)[:3] == ["0.69128", "0.69124", "0.6912"]
    assert len(set(re.findall(r': ([^"]+)"></i>', html))) == 9


def test_pointer_is_where_the_point_is() -> None:
    """A column reaches half the way to the points beside it, whose steps may be at any distance."""
    curve = replace(_curve([[float(at)] for at in range(4)]), positions=(0.0, 0.1, 0.5, 1.0))
    assert re.findall(r'<i style="flex:(\d+)', format_curve_html(curve)) == ["50", "250", "450", "250"]


def test_axis_of_the_largest_numbers() -> None:
    """The logarithm of the largest number would be too large to go back."""
    largest = math.log10(sys.float_info.max)
    curve = replace(_curve([[1.0], [largest]]), is_logarithmic=True)
    assert "e+30" in format_curve_html(curve)


def test_axis_has_three_digits() -> None:
    """The highest, the middle and the lowest value, and one value where there is no other."""
    rows = [[1 / (3 + at)] for at in range(90)]
    assert re.findall(r"<div>([^<]*)</div>", format_curve_html(_curve(rows)))[:3] == ["0.333", "0.172", "0.0109"]
    assert re.findall(r"<div>([^<]*)</div>", format_curve_html(_curve([[2.5]] * 9)))[:3] == ["", "2.5", ""]


@pytest.mark.parametrize(("count", "steps"), [(61, ["step 0", "30", "60"]), (60, ["step 0", "29.5", "59"])])
def test_axis_has_the_middle_step(count: int, steps: list[str]) -> None:
    """The first, the middle and the last step are below the picture, and faint lines are at the labelled heights."""
    curve = _curve([[1 / (1 + at)] for at in range(count)])
    assert re.findall(r"text-align:(?:left|center|right)\">([^<]+)", format_curve_html(curve)) == steps
    assert 'd="M0 4H640M0 120H640"' in draw_svg(curve, has_axes=True)


def test_braille_has_no_gaps() -> None:
    """A steep step is joined, a place without a value is blank, and a constant is a line at the bottom."""
    assert draw_braille([0, 0, 3, 3], 0, 3, 2) == "⣀⠏"
    assert draw_braille([0, 0, None, None, 3, 3], 0, 3, 3) == "⣀⠀⠉"
    assert draw_braille([1.5, 1.5], 1.5, 1.5) == "⣀"


def test_numbers_near_the_largest_have_a_curve() -> None:
    """The median of two numbers is finite, also where their sum is not."""
    curve = _curve([[1.6e308 + at % 2 * 1e307, 1.5e308 + at % 2 * 1e307] for at in range(20)])
    assert (curve.low, curve.high) == ("1.5e+308", "1.7e+308")
    assert draw_svg(curve)
