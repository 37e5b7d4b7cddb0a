"""Shardings in a real JupyterLab: the controls of the explorer, sliders and keys of a layout, and headings of a table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.lab import Lab, LabPage, open_chromium, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser"), pytest.mark.timeout(480)]

PLAN = "%load_ext mhnb\n%mhjax plan --hosts 4"
LAYOUT = (
    'import mhnb\nmhnb.layout((8, 4, 6), {"data": 4, "model": 2}, "P(\'data\', None, \'model\')", devices_per_host=2)'
)
TABLE = """\
from mhnb.layouts import DisplayableTree
from mhnb.sharding.layout import LayoutRow
sizes = {"small": 64, "large": 4096, "middle": 512}
DisplayableTree(tuple(LayoutRow(name, mhnb.layout((size, 8), {"data": 8}, "P('data')")) for name, size in sizes.items()))"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPage]:
    """A notebook with an explorer, a layout and a table, all run."""
    root = tmp_path_factory.mktemp("lab")
    empty: dict[str, object] = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells = [{**empty, "id": f"cell-{at}", "source": source} for at, source in enumerate((PLAN, LAYOUT, TABLE))]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    (root / "nb.ipynb").write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
    with open_chromium() as browser, Lab(root) as lab, lab.page(browser) as opened:
        opened.open("nb.ipynb")
        opened.run_all()
        if folder := os.environ.get("MHNB_WRITE_LOOKS"):
            opened.page.set_viewport_size({"width": 1280, "height": 2000})
            for cell in range(3):
                opened.screenshot(Path(folder) / f"sharding-{cell}.png", cell=cell)
        yield opened


def type_into(field: Locator, text: str) -> None:
    """Replace a field's text and press Enter, as a user does."""
    field.fill(text)
    field.press("Enter")


def wait_for(page: LabPage, text: str) -> None:
    """Wait until the explorer shows the text."""
    area = page.cell(0).locator(".jp-Cell-outputArea")
    try:
        area.get_by_text(text).first.wait_for(timeout=60_000)
    except Exception as error:
        raise AssertionError(f"the explorer does not say {text!r}: {area.inner_text()[-1500:]}") from error


def test_the_explorer_answers_each_change(page: LabPage) -> None:
    """The explorer answers each change of its fields, and the last answer is in the stored notebook.

    An invalid spec is refused beside its array in JAX's words and drawn once it is fixed; a program shows its collectives.
    """
    wait_for(page, "plan · 4 hosts × 2 devices · mesh (data 4, model 2) on 8 of 8")
    row = page.cell(0).locator(".mhnb-plan .widget-vbox .widget-hbox").first
    shape = row.get_by_placeholder("shape")
    type_into(shape, "6, 8")
    wait_for(page, "implies that array axis 0 is partitioned 4 times, but the dimension size is 6")
    type_into(shape, "8, 8")
    wait_for(page, "f32[8,8] P('data', None)")
    type_into(shape, "1024, 1024")
    type_into(page.cell(0).get_by_placeholder("program:"), "lambda x, w: (x @ w).sum()")
    wait_for(page, "all-reduce")
    type_into(page.cell(0).get_by_placeholder("program:"), "")
    type_into(page.cell(0).get_by_label("hosts"), "128")
    type_into(page.cell(0).get_by_label("devices"), "8")
    type_into(page.cell(0).get_by_label("mesh"), "data 128, model 8")
    wait_for(page, "mesh (data 128, model 8) on 1024 of 1024")
    page.save()
    stored = json.loads((page.lab.root / "nb.ipynb").read_text())["cells"][0]["outputs"]
    assert "mesh (data 128, model 8) on 1024 of 1024" in "".join(stored[1]["data"]["text/html"])


def test_slider_selects_a_pane(page: LabPage) -> None:
    """Arrow keys move the slider and JupyterLab does not intercept them; one pane is open at a time."""
    output = page.outputs(1)
    panes, slider = output.locator("details.pane"), output.locator("input[type=range]")
    assert panes.count() == 4
    slider.focus()
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    wait_until(lambda: panes.nth(2).get_attribute("open") is not None, "the third pane is open", limit_s=30)
    assert [panes.nth(at).get_attribute("open") is not None for at in range(4)] == [False, False, True, False]
    assert slider.input_value() == "2"


def test_focused_tile_shows_its_details(page: LabPage) -> None:
    """A tile can get the focus and then shows its index range, bytes and owners."""
    panes = page.outputs(1).locator("details.pane")
    opened = next(pane for pane in panes.all() if pane.get_attribute("open") is not None)
    tile = opened.locator("td[tabindex]").first
    tile.focus()
    tooltip = tile.evaluate("e => getComputedStyle(e, '::after').content")
    assert "· 96 B ·" in tooltip
    assert tooltip.strip('"') == tile.get_attribute("title")


def test_a_heading_sorts_the_table(page: LabPage) -> None:
    """A click or Enter on a heading sorts numbers as numbers; another one reverses the order."""
    output = page.outputs(2)

    def paths() -> list[str]:
        return [row.locator("td").first.inner_text() for row in output.locator("tbody tr").all()]

    assert paths() == ["small", "large", "middle"]
    heading = output.get_by_role("button", name="bytes", exact=True)
    heading.click()
    assert paths() == ["small", "middle", "large"]
    heading.focus()
    heading.press("Enter")
    assert paths() == ["large", "middle", "small"]
    output.get_by_role("button", name="path").click()
    assert paths() == ["large", "middle", "small"]
