"""Charts of metrics: median, band, outliers, each rank on demand, and words for what a picture does not show."""

from __future__ import annotations

import base64
import math
import re
from dataclasses import replace
from xml.dom import minidom

import pytest

from mhnb.core.metrics import Metrics
from mhnb.core.output.results import CellResult
from mhnb.view.cell.html import MAX_CELL_NBYTES, format_cell_html
from mhnb.view.cell.text import format_cell_text
from mhnb.view.drawings.curves import draw_svg
from mhnb.view.drawings.metrics import MetricChart, draw_card
from mhnb.view.live.frame import build_frame, format_running_text, frame_parts
from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text
from mhnb.view.reports import metrics as metrics_view
from mhnb.view.reports.metrics import (
    MAX_CHARTS,
    NO_POINTS,
    build_card,
    build_metrics,
    format_card_lines,
)
from tests.support.metric_samples import log_curve, log_points, training_cell
from tests.support.view_samples import StrictPage, cell, failed, out


def _chart(metrics: Metrics, *, done: bool = True) -> MetricChart:
    (chart,) = build_card(metrics, done=done).charts
    return chart


def _text(metrics: Metrics) -> list[str]:
    return list(format_card_lines(build_card(metrics, done=True)))


def _with_metrics(metrics: Metrics, *, ranks: int = 4, done: bool = True) -> CellResult:
    return replace(cell(*[[] for _ in range(ranks)], done=done), added=(metrics,))


def test_text_has_a_line_per_metric() -> None:
    """A line has the first and the last median, a curve, the outlier, and how far the ranks are apart."""
    lines = format_cell_text(training_cell(4)).splitlines()
    assert lines[0] == "ranks 0-3 · 21 s"
    assert re.fullmatch(
        r"  loss       2\.4\d* [\u2800-\u28ff]{20} 0\.2\d*   median over 200 steps, ranks 0-3; rank 2 0\.\d+ at the end;"
        r" 0\.\d+ to 0\.\d+ at the end",
        lines[1],
    )
    assert lines[2].startswith("  grad norm  ")
    assert lines[2].endswith("; rank 2 stopped at step 248")
    assert lines[-1] == "  ≠ lr differs at step 300 (50 steps differ): ranks 0-1,3 0.001 · rank 2 0.0005"


def test_page_says_all_that_the_text_says() -> None:
    """Each remark and each note is text beside the picture, visible without a click."""
    result = training_cell(4)
    page = StrictPage(format_cell_html(result))
    assert page.unclosed == []
    for words in ("rank 2 stopped at step 248", "≠ lr differs at step 300", "logarithmic scale", "loss"):
        assert words in page.visible


def test_each_rank_is_on_demand() -> None:
    """A fold has a table with a row for each rank: its points, steps, first, last, lowest and highest value, and its curve."""
    page = StrictPage(draw_card(build_card(log_curve([[3.0, 1.0, 2.0], [5.0, 4.0, math.nan]]), done=True)))
    assert "loss of each rank" in page.visible
    assert "points" not in page.visible
    assert "rankpointsstepsfirstlastlowesthighest030 to 23213130 to 25nan45" in page.text
    heads = [attributes.get("scope") for tag, attributes in page.tags if tag == "th"]
    assert heads == ["col"] * 7 + ["row"] * 2
    (table,) = (attributes for tag, attributes in page.tags if tag == "table")
    assert "mhnb-table" in str(table["class"])
    assert "font" not in str(table["style"]), "it has the look of all tables"
    alts = [str(attributes["alt"]) for tag, attributes in page.tags if tag == "img"]
    assert alts[1:] == [
        "loss of rank 0 over 3 steps, step 0 to 2: from 3 to 2, lowest 1, highest 3",
        "loss of rank 1 over 3 steps, step 0 to 2: from 5 to 4, lowest 4, highest 5",
    ]


def test_pictures_are_images_with_a_description() -> None:
    """Each picture is valid SVG in an image of its own, and its description has the words of the text."""
    page = StrictPage(format_cell_html(training_cell(4)))
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 3 * (1 + 4)
    for image in images:
        assert image["alt"]
        uri = str(image["src"])
        minidom.parseString(base64.b64decode(uri.partition(",")[2]))  # noqa: S318  # our own picture


def test_fold_is_reached_by_keyboard() -> None:
    """Folds are `details` with a summary, and the table inside scrolls by keyboard."""
    page = StrictPage(draw_card(build_card(log_curve([[1.0, 2.0]] * 3), done=True)))
    assert [tag for tag, _ in page.tags if tag in ("details", "summary")] == ["details", "summary"]
    assert any(attributes.get("tabindex") == "0" for tag, attributes in page.tags if tag == "div")


# -- what is drawn


def test_steps_have_their_distance() -> None:
    """A point is drawn where its step is, also if the steps' distances grow."""
    curve = _chart(log_points(lambda _: [("a", step, step) for step in (0, 1, 10, 100)], 1)).curve
    assert curve is not None
    assert curve.positions == (0.0, 0.01, 0.1, 1.0)


def test_ranks_that_agree_where_they_meet_have_no_band() -> None:
    """A rank that logs every 25th step agrees with the others if it does on these steps."""
    metrics = log_points(lambda rank: [("a", s, s / 4) for s in range(rank, 101, 1 + 24 * (rank > 0))], 2)
    chart = _chart(metrics)
    assert chart.curve is not None
    assert not chart.curve.has_band
    assert chart.remarks == ()
    assert "all over 101 steps, ranks 0-1" in _text(metrics)[0]


def test_step_is_of_the_ranks_that_have_logged_it() -> None:
    """There is no band on other steps, but the line of a rank that logs every tenth step has no gap."""
    curve = _chart(log_points(lambda r: [("a", s, 1.0 + (r == 3)) for s in range(0, 40, 10 if r == 3 else 1)])).curve
    assert curve is not None
    assert curve.highs == tuple(1.0 if step % 10 else 2.0 for step in range(40))
    assert set(curve.medians) == {1.0}
    assert [(one.rank, one.last) for one in curve.outliers] == [(3, "2")]
    dashed = minidom.parseString(draw_svg(curve)).getElementsByTagName("path")[-1]  # noqa: S318  # our own picture
    assert dashed.getAttribute("stroke-dasharray")
    assert dashed.getAttribute("d").count("M") == 1


@pytest.mark.parametrize("count", [100, 4000])
def test_ranks_without_a_step_in_common_are_all_in_the_band(count: int) -> None:
    """Steps that share a point have the values of all their ranks, and nothing says that these agree."""
    chart = _chart(log_points(lambda r: [("a", 4 * step + r, 1.0 + r) for step in range(count)]))
    assert chart.curve is not None
    assert chart.curve.word == "median "
    middle = len(chart.curve.lows) // 2
    assert (chart.curve.lows[middle], chart.curve.highs[middle]) == (1.0, 4.0)


def test_chart_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place says why, and the other charts are drawn."""

    def fail(name: str, *arguments: object, **options: object) -> MetricChart:
        if name == "bad":
            raise OverflowError("too large")
        return build(name, *arguments, **options)  # type: ignore[arg-type]

    build = metrics_view.build_chart
    monkeypatch.setattr(metrics_view, "build_chart", fail)
    first, second = _text(log_points(lambda _: [("bad", 1, 1.0), ("good", 1, 2.0)], 1))
    assert first == "bad   cannot be drawn (OverflowError: too large)"
    assert second == "good  2   at step 1"


def test_one_point_is_a_line_of_text() -> None:
    """One step has no curve, neither in the text nor on a page; of each rank it is a dot, which round ends make visible."""
    metrics = log_points(lambda rank: [("a", 5, 0.5 + rank)])
    assert _text(metrics) == ["a  1.5   median at step 5, ranks 0-3; 0.5 to 3.5"]
    assert _text(log_points(lambda _: [("a", 5, 0.5)], 1)) == ["a  0.5   at step 5"]
    page = StrictPage(draw_card(build_card(metrics, done=False)))
    assert "amedian 1.5 at step 50.5 to 3.5" in page.visible
    assert "alt" not in [name for _, attributes in page.tags[:6] for name in attributes]
    curve = _chart(metrics).curve
    assert curve is not None
    assert 'stroke-linecap="round"' in draw_svg(curve)


def test_constant_metric_is_drawn() -> None:
    """A metric that never changes is worth a line."""
    assert re.search(r"^a  1 [\u2800-\u28ff]+ 1   all over 9 steps", _text(log_curve([[1.0] * 9] * 2, "a"))[0])


def test_rounding_noise_is_a_flat_line() -> None:
    """Values that are printed the same are drawn the same, and no rank is an outlier among them."""
    noise = 6e-8
    chart = _chart(log_curve([[0.9992169 + noise * ((at + rank) % 3 == 0) for at in range(30)] for rank in range(4)]))
    assert chart.curve is not None
    assert (chart.curve.low, chart.curve.high, chart.curve.has_band) == ("0.999217", "0.999217", False)
    assert len(set(chart.curve.medians)) == 1
    assert re.search(r'd="M4 120(h\d+)+"', draw_svg(chart.curve))
    assert (chart.curve.outliers, chart.remarks) == ((), ())


def test_wide_spread_is_logarithmic() -> None:
    """Positive values over more than three decades are drawn as logarithms, and the words say so."""
    curve = _chart(log_curve([[10.0**-at for at in range(6)]] * 2)).curve
    assert curve is not None
    assert curve.is_logarithmic
    assert (curve.low, curve.high) == ("1e-05", "1")
    assert curve.medians == tuple(-float(at) for at in range(6))
    zero = _chart(log_curve([[0.0, 1.0, 1e9]])).curve
    assert zero is not None
    assert not zero.is_logarithmic


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([[1, 2, math.nan], [1, 2, 3], [1, 2, 3]], "nan on rank 1 at step 2"),
        ([[1, math.nan, math.nan], [1, 2, 3], [1, 2, 3]], "nan on rank 1 from step 1"),
        ([[1, math.inf, 2, math.nan, 1], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], "inf on rank 1 first at step 1"),
    ],
)
def test_values_that_are_not_finite_are_named(values: list[list[float]], said: str) -> None:
    """NaN and infinity leave a gap in the curve; the words have the ranks and the first step."""
    values = [values[1], values[0], *values[2:]]
    assert said in _text(log_curve(values))[0]


def test_metric_without_a_finite_value_is_words() -> None:
    """There is nothing to draw, and the value at the end of a curve that ends with NaN is NaN."""
    assert _text(log_curve([[math.nan] * 3] * 2)) == ["loss  nan on ranks 0-1 from step 0"]
    assert re.search(r" nan   all over 3 steps", _text(log_curve([[1.0, 2.0, math.nan]] * 2))[0])
    page = StrictPage(draw_card(build_card(log_curve([[math.nan] * 3] * 2), done=True)))
    assert "nan on ranks 0-1 from step 0" in page.visible


def test_rank_that_stopped_is_named_when_the_cell_has_ended() -> None:
    """While it runs a rank may be behind. A rank that logs every tenth step has not stopped at step 90 of 99."""
    metrics = log_points(lambda r: [("a", s, 1.0) for s in range(0, 40 if r == 3 else 100, 10 if r == 1 else 1)])
    assert _chart(metrics).remarks == ("rank 3 stopped at step 39",)
    assert _chart(metrics, done=False).remarks == ()


def test_odd_rank_is_drawn_and_named() -> None:
    """A rank that is far from the others has its own dashed line, and its last value."""
    chart = _chart(log_curve([[1.0 + at / 100 + (rank == 1) for at in range(50)] for rank in range(4)]))
    assert chart.curve is not None
    assert [one.rank for one in chart.curve.outliers] == [1]
    assert (
        "rank 1 2.49"
        in StrictPage(
            draw_card(
                build_card(
                    log_curve([[1.0 + at / 100 + (rank == 1) for at in range(50)] for rank in range(4)]), done=True
                )
            )
        ).visible
    )


def test_huge_and_tiny_numbers_are_drawn() -> None:
    """The span of two finite numbers may not be finite."""
    chart = _chart(log_curve([[-1.7e308, 1.7e308, 5e-324], [1.0, 2.0, 3.0]]))
    assert chart.curve is not None
    assert all(value is None or math.isfinite(value) for value in chart.curve.medians)


@pytest.mark.slow
def test_many_points_of_many_ranks_are_bounded() -> None:
    """A card of 64 ranks with 12 metrics of 3,000 points stays small, and each metric beyond the charts is named."""
    metrics = log_points(
        lambda rank: ((f"m{at}", step, rank + at) for at in range(15) for step in range(0, 3000, 30)), 64
    )
    result = _with_metrics(metrics, ranks=64)
    html = format_cell_html(result)
    assert len(html) < 3 * MAX_CELL_NBYTES
    card = build_card(metrics, done=True)
    assert len(card.charts) == MAX_CHARTS
    assert card.more == tuple(f"m{at} (6400 points)" for at in range(12, 15))
    assert "3 more metrics" in StrictPage(html).visible


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "a\nb", "\x1b[31mred", "", " ", "x" * 500, "\u202egnp", "'\""]
)
def test_hostile_name_is_text(name: str) -> None:
    """Keywords given with ** can be any text: it is shown in one line, without tags and escape sequences."""
    result = _with_metrics(log_points(lambda _: [(name, 1, 1.0), (name, 2, 2.0)]))
    html, text = format_cell_html(result), format_cell_text(result)
    page = StrictPage(html)
    assert page.unclosed == []
    assert "script" not in {tag for tag, _ in page.tags}
    assert "\x1b" not in text + html
    assert "\u202e" not in text + html
    assert len(text.splitlines()) == 2
    assert all(len(line) < 200 for line in text.splitlines())


# -- where it is shown


def test_a_cell_with_metrics_only_is_shown() -> None:
    """A cell that prints nothing and logs a point is not silent."""
    result = _with_metrics(log_curve([[1.0, 2.0]] * 4))
    assert not result.is_silent
    assert "loss" in format_cell_html(result)
    assert format_cell_html(cell([], [])) == ""


def test_a_cell_that_failed_keeps_its_points() -> None:
    """The charts follow the failure report, and the output stays above them."""
    result = replace(cell([out("begun\n")], failed(1, said=[out("begun\n")])), added=(log_curve([[1.0, 2.0]] * 2),))
    text = format_cell_text(result)
    assert text.index("ValueError") < text.index("begun") < text.index("loss")
    page = StrictPage(format_cell_html(result))
    assert page.visible.index("ValueError") < page.visible.index("begun") < page.visible.index("loss")


@pytest.mark.parametrize("view", ["tabs", "grid"])
def test_other_views_have_the_charts(view: str) -> None:
    """Also if each rank has a tab or a card."""
    result = replace(cell([out("a\n")], [out("b\n")]), added=(log_curve([[1.0, 2.0]] * 2),))
    assert "loss of each rank" in StrictPage(format_cell_html(result, view=view)).text  # type: ignore[arg-type]


def test_live_view_has_a_part_for_the_charts() -> None:
    """A running cell has charts, with the numbers of each rank and without their pictures, in a part of its own."""
    frame = build_frame(training_cell(4, done=False))
    part = frame_parts(frame)["charts"]
    page = StrictPage(part)
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 3
    assert "loss of each rank" in page.visible
    assert "stopped" not in page.text
    assert len(part) < 24_000
    assert frame_parts(build_frame(cell([out("a\n")], done=False)))["charts"] == ""


def test_terminal_shows_the_lines_while_the_cell_runs() -> None:
    """The text of a running cell has a line for each metric."""
    lines = format_running_text(training_cell(4, done=False), height=20).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["loss", "grad", "lr"]


# -- `%mhjax metrics`


def test_command_shows_all_cells() -> None:
    """The heading counts metrics, ranks, points and cells; with each rank there is a line for it."""
    metrics = training_cell(4).metrics
    lines = print_text(build_metrics(metrics, each=True)).splitlines()
    assert lines[0] == f"3 metrics · ranks 0-3 · {len(metrics)} points · cell 12"
    assert [line.split()[0] for line in lines[2:7]] == ["rank", "0", "1", "2", "3"]
    assert "3 metrics · ranks 0-3" in StrictPage(print_html(build_metrics(metrics))).visible


def test_later_cell_counts_where_two_have_a_step() -> None:
    """A cell that is run again replaces the points of its steps in the chart; the others stay."""
    first = log_points(lambda _: [("a", step, 1.0) for step in (1, 2)], 1, seq=1)
    again = log_points(lambda _: [("a", step, 2.0) for step in (2, 3)], 1, seq=2)
    (line,) = _text(Metrics((*first.series, *again.series)))
    assert re.match(r"a  1 [\u2800-\u28ff]+ 2   over 3 steps", line)


def test_no_metric_says_how_to_log_one() -> None:
    """Without any point the command says which call makes one."""
    assert print_text(build_metrics(Metrics())) == NO_POINTS
    assert "mhnb.log(step, loss=loss)" in StrictPage(print_html(build_metrics(Metrics()))).visible
