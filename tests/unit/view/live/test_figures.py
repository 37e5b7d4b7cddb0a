"""Figures that only a front end can draw: separate outputs below the cell, each different figure once."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest

from mhnb.core.output.events import DisplayData
from mhnb.core.output.outputs import accumulate_events
from mhnb.core.output.results import CellResult, RankResult
from mhnb.types import Output
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.text import format_cell_text
from mhnb.view.live import view as live
from mhnb.view.live.screen import TextScreen
from mhnb.view.live.view import MAX_FIGURES, CellView, build_figure_bundles
from tests.support.view_samples import RecordingScreen, StrictPage, cell, out

PLOTLY = "application/vnd.plotly.v1+json"


def _figure(*points: int) -> Output:
    """Return a figure as the notebook receives it from a rank."""
    content = {"data": [{"type": "scatter", "y": list(points)}], "layout": {"title": {"text": "loss"}}}
    ((made),) = accumulate_events([DisplayData({PLOTLY: content}, {})])
    return made


def _drawn_points(bundles: list[Mapping[str, Any]]) -> list[list[int]]:
    return [bundle[PLOTLY]["data"][0]["y"] for bundle in bundles if PLOTLY in bundle]


def _captions(bundles: list[Mapping[str, Any]]) -> list[str]:
    return [bundle["text/plain"] for bundle in bundles if PLOTLY not in bundle]


def test_equal_figures_are_drawn_once() -> None:
    """Each figure follows a line that names its ranks."""
    bundles = build_figure_bundles(cell([_figure(1)], [_figure(2)], [_figure(1)]))
    assert _drawn_points(bundles) == [[1], [2]]
    assert _captions(bundles) == [
        "ranks 0,2 · a plotly figure “loss”: scatter",
        "rank 1 · a plotly figure “loss”: scatter",
    ]
    assert [PLOTLY in bundle for bundle in bundles] == [False, True, False, True]


def test_figures_are_in_the_order_of_display() -> None:
    """The first figure of every rank comes before the second figure of every rank."""
    result = cell([_figure(1), _figure(2)], [_figure(3), _figure(2)])
    assert _drawn_points(build_figure_bundles(result)) == [[1], [3], [2]]


def test_many_different_figures_are_drawn_up_to_a_limit() -> None:
    """A browser is slow with hundreds of figures; a line counts the figures that are not drawn, so that none seems lost."""
    bundles = build_figure_bundles(cell(*[[_figure(rank)] for rank in range(64)]))
    assert _drawn_points(bundles) == [[rank] for rank in range(MAX_FIGURES)]
    assert _captions(bundles)[-1].startswith("ranks 8-63 · 56 more, only 8 different figures are drawn: ")
    assert "%%mhjax --ranks 8 draws one rank's" in _captions(bundles)[-1]


def test_too_large_figure_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure above the limit is not stored; a line reports its size and how to show it as an image."""
    monkeypatch.setattr(live, "MAX_RICH_NBYTES", 1000)
    bundles = build_figure_bundles(cell([_figure(*range(1000))], [_figure(1)]))
    assert _drawn_points(bundles) == [[1]]
    assert _captions(bundles)[-1].startswith("rank 0 · a figure of ")
    assert "fig.show('png')" in _captions(bundles)[-1]


def test_figure_with_an_image_is_shown_as_the_image() -> None:
    """A figure that also has an image is shown as the image in the rank's block."""
    both: dict[str, Any] = {PLOTLY: {"data": []}, "image/png": "AAAA"}
    outputs = accumulate_events([DisplayData(both, {})])
    assert build_figure_bundles(cell(outputs)) == []
    assert "data:image/png" in format_cell_html(cell(outputs))


def test_output_of_the_cell_says_where_the_figure_is() -> None:
    """HTML and text say where the figure is drawn; text alone also says why it is not drawn there."""
    result = cell([_figure(1)], [_figure(2)])
    page = StrictPage(format_cell_html(result))
    assert page.visible.count("a plotly figure “loss”: scatter · drawn below its cell") == 2
    text = format_cell_text(result)
    assert text.count("a plotly figure “loss”: scatter") == 2
    assert "shown as text: only a notebook's front end can draw this" in text


def test_a_cell_shows_its_figures_below_its_own_output() -> None:
    """The cell's own output comes first, then a line and an output for each figure."""
    screen = RecordingScreen()
    CellView(screen=screen, uid="u").finish(cell([out("a\n"), _figure(1)]))
    assert [set(data) for _, data, _ in screen.calls] == [
        {"text/html", "text/plain"},
        {"text/html", "text/plain"},
        {PLOTLY, "text/plain"},
    ]
    assert len({display_id for _, _, display_id in screen.calls}) == 3


def test_late_figure_is_added_without_redrawing_earlier_ones() -> None:
    """A figure that a thread shows after the cell's end is added, and earlier figures are not drawn again."""
    screen = RecordingScreen()
    view = CellView(screen=screen, uid="u")
    view.finish(cell([_figure(1)]))
    before = len(screen.calls)
    view.show_late(cell([_figure(1), _figure(2)]))
    assert [(how, PLOTLY in data) for how, data, _ in screen.calls[before:] if "figure" in str(data)][-2:] == [
        ("show_late", False),
        ("show_late", True),
    ]
    assert sum(PLOTLY in data for _, data, _ in screen.calls) == 2


def test_cleared_figure_is_removed() -> None:
    """A figure is removed if a thread clears the cell's output after the cell's end."""
    screen = RecordingScreen()
    view = CellView(screen=screen, uid="u")
    view.finish(cell([_figure(1)]))
    view.show_late(cell([out("gone\n")]))
    last = {display_id: data for _, data, display_id in screen.calls}
    assert [data for display_id, data in last.items() if "figure" in display_id] == [
        {"text/html": "", "text/plain": ""}
    ] * 2


@pytest.mark.parametrize("content", [{"data": 5}, {"data": True}, {"data": [5, {"type": ["x"]}]}, [], 5, None])
def test_malformed_figure_is_named_without_description(content: object) -> None:
    """A malformed figure is accepted and named, because a rank may display any content."""
    made = accumulate_events([DisplayData({PLOTLY: content}, {})])
    assert "a plotly figure" in format_cell_text(cell(made))


def test_a_quiet_cell_shows_no_figure() -> None:
    """A quiet cell shows no figure."""
    screen = RecordingScreen()
    CellView(screen=screen, quiet=True).finish(cell([_figure(1)]))
    assert screen.calls == []


def test_a_terminal_prints_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal prints the figure's description."""
    result: CellResult = cell(RankResult(0, "ok", (_figure(1),)))
    CellView(screen=TextScreen(io.StringIO())).finish(result)
    assert capsys.readouterr().out.count("a plotly figure") == 1
