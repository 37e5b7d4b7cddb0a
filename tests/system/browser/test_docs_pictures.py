"""The pictures of the documentation, from the views themselves; MHNB_WRITE_PICTURES=1 saves them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mhnb.core.trace import TraceReport, build_timeline, match_collectives, measure_ranks
from mhnb.system.trace import write_timeline
from mhnb.view.reports.trace import format_trace_page
from tests.support.lab import open_chromium
from tests.support.source import ROOT
from tests.support.view_gallery import open_page, trace_sources

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser")]

FOLDER = ROOT / "docs" / "img"
WIDTH, MAX_NBYTES = 860, 150_000
VIEWS = {
    "collectives": "collectives",
    "hang": "a hang",
    "layout": "layout",
    "memory": "memory",
    "metrics": "metrics",
    "order-mismatch": "different launches",
    "panel": "live: panel as tabs",
    "stragglers": "stragglers",
    "trace": "trace",
}
"""The file of each picture, and the view of the gallery that it shows."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all pictures."""
    with open_chromium() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def gallery(browser: Browser) -> Page:
    """Every view of four ranks, at the width of a page of the documentation."""
    page = open_page(browser, 4, width=WIDTH)
    page.add_style_tag(content=".jp-OutputArea-output { padding: 8px 12px !important; background: white }")
    return page


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_picture_of_a_view(gallery: Page, name: str, tmp_path: Path) -> None:
    """The picture shows a whole view, and is small enough for a page."""
    from PIL import Image

    folder = FOLDER if os.environ.get("MHNB_WRITE_PICTURES") == "1" else tmp_path
    folder.mkdir(exist_ok=True)
    picture = folder / f"{name}.png"
    cells = gallery.locator(".jp-CodeCell").all()
    [cell] = [c for c in cells if c.locator(".jp-InputArea-editor").inner_text().strip() == f"# 4 ranks: {VIEWS[name]}"]
    cell.locator(".jp-OutputArea-output").screenshot(path=picture)
    assert picture.stat().st_size < MAX_NBYTES
    with Image.open(picture) as image:
        colours = image.convert("RGB").getcolors(maxcolors=image.width * image.height)
        assert image.width > WIDTH / 2
        assert colours is not None
        assert len(colours) > 20  # letters are smoothed; a blank picture has one


def test_picture_of_a_timeline(browser: Browser, tmp_path: Path) -> None:
    """The picture shows the page of a timeline, with a collective that waits for a late rank."""
    sources = trace_sources(3)
    runs = match_collectives(sources)
    code = {2: "batch = next(batches)", 3: "params = step(params, batch)"}
    write_timeline(tmp_path / "t.json.gz", build_timeline(sources, runs, cell_name="In [7]", code=code))
    ranks, span_s = measure_ranks(sources, runs)
    report = TraceReport(12, "In [7]", "", "", ranks, (), span_s)
    (tmp_path / "t.html").write_text(format_trace_page(report, (tmp_path / "t.json.gz").read_bytes()))
    folder = FOLDER if os.environ.get("MHNB_WRITE_PICTURES") == "1" else tmp_path
    page = browser.new_page(viewport={"width": 1000, "height": 470})
    page.goto((tmp_path / "t.html").as_uri())
    page.get_by_text("3 ranks, 12 tracks").wait_for()
    page.get_by_label("find").fill("waits for")
    page.get_by_role("button", name="next").click()
    page.get_by_role("button", name="all").click()
    page.screenshot(path=folder / "timeline.png")
    page.close()
    assert (folder / "timeline.png").stat().st_size < MAX_NBYTES


@pytest.mark.parametrize("name", sorted([*VIEWS, "timeline"]))
def test_picture_is_kept(name: str) -> None:
    """Each picture is in docs/img, for the pages that show it."""
    assert (FOLDER / f"{name}.png").stat().st_size < MAX_NBYTES
