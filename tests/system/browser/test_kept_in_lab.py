"""Panels, figures and log links of a saved notebook in a real JupyterLab, live and later without the kernel.

The results are recorded ones, because these tests concern the front end and need no rank.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nbformat
import pytest

from tests.support.lab import Lab, LabPage, open_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser"), pytest.mark.timeout(600)]

SET_UP = """
from pathlib import Path
from mhnb.core.output.events import DisplayData
from mhnb.core.output.outputs import accumulate_events
from mhnb.view.live.view import CellView
from mhnb.view.live.results_panel import ResultPanel
from mhnb.view.html import RankLocations
from tests.support.view_samples import cell, out
"""
PANEL = "ResultPanel(cell(*[[out(f'loss {0.7 if r == 2 else 0.3}\\n')] for r in range(4)]), RankLocations()).open()"
# JupyterLab draws this type without a third-party extension, which plotly's type needs.
FIGURES = """
def figure(rank):
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json", "mark": "bar", "title": "loss", "width": 200, "height": 80,
        "data": {"values": [{"step": step, "loss": step + rank // 2} for step in range(4)]},
        "encoding": {"x": {"field": "step", "type": "ordinal"}, "y": {"field": "loss", "type": "quantitative"}},
    }
    return accumulate_events([DisplayData({"application/vnd.vegalite.v5+json": spec}, {})])[0]
CellView().finish(cell(*[[figure(rank)] for rank in range(4)]))
"""
PLOTLY = """
import json, plotly.graph_objects as go
content = json.loads(go.Figure(go.Bar(y=[1, 2])).to_json())
CellView().finish(cell(*[accumulate_events([DisplayData({"application/vnd.plotly.v1+json": content}, {})])] * 4))
"""
LOG = """
folder = Path.cwd()
(folder / "logs").mkdir()
(folder / "logs" / "rank0.log").write_text("all that rank 0 said")
locations = RankLocations(logs={0: str(folder / "logs" / "rank0.log")}, notebook_dir=str(folder))
CellView(locations=locations).finish(cell([out("a line\\n" * 90_000)]))
"""
# The cell runs for a while and has no output yet.
RUNNING = "view = CellView()\nfor wall_s in (0.2, 1.1):\n    view.update(cell([], [], done=False, wall_s=wall_s))"
PLAN = "%load_ext mhnb\n%mhjax plan --hosts 4"
SOURCES = (SET_UP, PANEL, FIGURES, PLOTLY, LOG, RUNNING, PLAN)
PANEL_TEXT = "mhjax · panel over cell 12 · ranks 0-3 · 0.21 s · "


@dataclass(frozen=True, slots=True)
class Kept:
    """A notebook that was run in a page that is still open, and a server without any kernel for later."""

    browser: Browser
    live: LabPage
    later: Lab


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """Run every cell, save, and make the file available without a kernel, as after a month."""
    root = tmp_path_factory.mktemp("kept")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(source) for source in SOURCES]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), root / "kept.ipynb")
    with open_chromium() as browser, Lab(root) as lab, lab.page(browser) as page:
        page.open("kept.ipynb")
        page.run_all(limit_s=150)
        page.cell(SOURCES.index(PANEL)).locator(".mhnb-panel").wait_for(timeout=60_000)
        page.save()
        # The file stays on this server, because the server's own signature makes the notebook trusted.
        shutil.copy(root / "kept.ipynb", root / "later.ipynb")
        _trust(lab, "later.ipynb")
        yield Kept(browser, page, lab)


def _trust(lab: Lab, name: str) -> None:
    request = urllib.request.Request(  # noqa: S310 - a server of this test
        f"{lab.url}/api/contents/{lab.find(name)}/trust", method="POST", headers={"Authorization": f"token {lab.token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
        assert reply.status in (200, 201, 204)


def test_live_panel_has_no_closing_text(kept: Kept) -> None:
    """A live panel shows no text about its end, and has one heading with the ranks and the duration."""
    area = kept.live.cell(SOURCES.index(PANEL)).locator(".jp-Cell-outputArea")
    assert PANEL_TEXT not in area.inner_text()
    assert area.inner_text().count("ranks 0-3 ·") == 1


def test_panel_without_kernel_is_text(kept: Kept) -> None:
    """Without its kernel a panel is a text with the command to reopen it; all output is a click away, without a widget error."""
    with kept.later.page(kept.browser) as page:
        page.open("later.ipynb", kernel=False)
        area = page.cell(SOURCES.index(PANEL)).locator(".jp-Cell-outputArea")
        area.get_by_text(PANEL_TEXT).wait_for(timeout=60_000)
        assert "in a new kernel, run the cell again first, then %mhjax show" in area.inner_text()
        assert "widget" not in area.inner_text()
        assert "loss 0.7 ← 0.3 elsewhere" in page.readable(SOURCES.index(PANEL))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("source", "living", "left"),
    [
        (RUNNING, ".mhnb-panel", "ranks 0-1 · running 1.1 s"),
        (PLAN, ".mhnb-form", "plan · 4 hosts × 2 devices"),
    ],
)
def test_saved_widgets_leave_no_error(kept: Kept, source: str, living: str, left: str) -> None:
    """A cell saved while it ran, and the controls of plan, are visible live and leave no widget error without the kernel."""
    assert kept.live.cell(SOURCES.index(source)).locator(living).is_visible()
    with kept.later.page(kept.browser) as page:
        page.open("later.ipynb", kernel=False)
        area = page.cell(SOURCES.index(source)).locator(".jp-Cell-outputArea")
        area.get_by_text(left).first.wait_for(timeout=60_000)
        # With a kernel it is an error, without one it stays at loading.
        page.page.get_by_text("Loading widget").first.wait_for(state="attached", timeout=60_000)
        assert "widget" not in area.inner_text()


def test_figures_are_drawn_per_rank_group(kept: Kept) -> None:
    """Two different figures of four ranks are drawn, each after the names of its ranks, live and from the file alone."""
    _assert_figures_drawn(kept.live)
    with kept.later.page(kept.browser) as page:
        page.open("later.ipynb", kernel=False)
        _assert_figures_drawn(page)


def _assert_figures_drawn(page: LabPage) -> None:
    area = page.cell(SOURCES.index(FIGURES)).locator(".jp-Cell-outputArea")
    area.locator(".vega-embed").nth(1).wait_for(timeout=60_000)
    assert area.locator(".vega-embed").count() == 2
    lines = area.inner_text().splitlines()
    first, second = (lines.index(f"{ranks} · a Vega-Lite figure “loss”") for ranks in ("ranks 0-1", "ranks 2-3"))
    assert first < second


def test_a_plotly_figure_of_all_ranks_is_drawn_once(kept: Kept) -> None:
    """The extension of plotly draws one figure for all ranks, live and from the file alone."""
    _assert_plotly_drawn(kept.live)
    with kept.later.page(kept.browser) as page:
        page.open("later.ipynb", kernel=False)
        _assert_plotly_drawn(page)


def _assert_plotly_drawn(page: LabPage) -> None:
    area = page.cell(SOURCES.index(PLOTLY)).locator(".jp-Cell-outputArea")
    # The extension may have saved a picture of the figure, and shows it until the pointer is over it.
    area.locator(".jp-RenderedPlotly :is(.bars, .plot-img)").first.wait_for(state="attached", timeout=60_000)
    assert area.locator(".jp-RenderedPlotly").count() == 1
    area.get_by_text("ranks 0-3 · a plotly figure: bar", exact=True).wait_for()


def test_a_log_opens_in_lab(kept: Kept) -> None:
    """A click on the path of a log below the notebook's directory opens the log."""
    kept.live.cell(SOURCES.index(LOG)).get_by_role("link", name="rank0.log").click()
    page = kept.live.page
    page.locator(".jp-FileEditor").get_by_text("all that rank 0 said").wait_for(timeout=60_000)
    kept.live.command("application:close")
    page.wait_for_function("() => jupyterapp.shell.currentWidget?.content?.widgets?.length > 1")


def test_file_has_each_figure_once(kept: Kept) -> None:
    """The file has the data of each different figure once; JupyterLab itself adds a picture of what it drew."""
    cells = json.loads((kept.later.root / "later.ipynb").read_text())["cells"]
    html_and_text, *shown = [set(output["data"]) for output in cells[SOURCES.index(FIGURES)]["outputs"]]
    assert html_and_text == {"text/html", "text/plain"}
    assert ["application/vnd.vegalite.v5+json" in data for data in shown] == [False, True, False, True]
