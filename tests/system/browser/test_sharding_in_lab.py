"""Shardings in a real JupyterLab: the form of the explorer, sliders and keys of a layout, and headings of a table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.axe import violations
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


@pytest.fixture
def form(page: LabPage) -> Locator:
    """The explorer's form, as new."""
    page.start_cell(0)
    page.wait_idle()
    return page.cell(0).locator(".mhnb-form")


def press(page: LabPage, *keys: str) -> None:
    """Press keys one after the other, wherever the focus is."""
    for key in keys:
        page.page.keyboard.press(key)


def assert_shows(form: Locator, text: str) -> None:
    """Wait until the form shows the text."""
    try:
        form.get_by_text(text).first.wait_for(timeout=60_000)
    except Exception as error:
        raise AssertionError(f"the form does not say {text!r}: {form.inner_text()[-1500:]}") from error


def focused(page: LabPage) -> str:
    """Return the name of the focused control."""
    name: str = page.page.evaluate("document.activeElement.getAttribute('data-field')")
    return name


def test_a_plan_is_made_by_keyboard(page: LabPage, form: Locator) -> None:
    """Without a mouse: a mesh by arrows, a spec, memory and code; the focus stays, and the file has the same plan."""
    assert_shows(form, "mesh (data 4, model 2) on 8 of 8")
    form.get_by_label("Devices per host").focus()
    press(page, "Tab")
    page.page.keyboard.type("0.01")
    press(page, "Tab")
    assert focused(page) == "program"
    assert_shows(form, "3.0 MiB of 10.2 MiB (29.3 %)")
    press(page, "Tab", "ArrowRight")
    assert_shows(form, "mesh (data 2, model 4) on 8 of 8")
    assert focused(page) == "sizes"
    assert form.get_by_label("2 × 4").is_checked()
    outline = form.locator("label:has(:checked)").evaluate("node => getComputedStyle(node).outlineStyle")
    assert outline == "solid"
    form.get_by_label("Shape").first.focus()
    press(page, "Tab", "Tab", "Tab", "Tab", "m")
    assert focused(page) == "array.0.dim1"
    assert_shows(form, "P('data', 'model') · 512.0 KiB per device")
    assert form.get_by_label("Dim 0 of 1024").first.locator("option:disabled").all_inner_texts() == [
        "model: 'model' divides dim 1",
        "data, model: 'model' divides dim 1",
    ]
    code = "x_sharding = NamedSharding(mesh, P('data', 'model'))  # f32[1024,1024]"
    assert code in form.locator("pre").inner_text()
    form.get_by_role("button", name="Copy").press("Enter")
    assert page.page.evaluate("getSelection().toString()").strip() == form.locator("pre").inner_text().strip()
    assert form.get_by_role("button", name="Copied").is_visible()
    page.save()
    stored = json.loads((page.lab.root / "nb.ipynb").read_text())["cells"][0]["outputs"]
    [plan] = [output["data"] for output in stored if "text/html" in output.get("data", {})]
    assert code in "".join(plan["text/plain"])
    assert "mesh (data 2, model 4) on 8 of 8" in "".join(plan["text/html"])
    assert violations(page.page, ".mhnb-form") == []


def test_drawing_follows_the_pointer(page: LabPage, form: Locator) -> None:
    """Over a device, its part of each array stands out; over a part, the devices that hold it; both say so in words."""

    def outlined(selector: str) -> list[str]:
        return [
            node.inner_text()
            for node in form.locator(selector).all()
            if node.evaluate("node => getComputedStyle(node).outlineStyle") == "solid"
        ]

    form.get_by_label("4 × 2").check()
    form.get_by_label("Dim 1 of 1024").first.select_option("")
    assert_shows(form, "P('data', None) · 1.0 MiB per device")
    device = form.locator("td.on").nth(3)
    device.hover()
    assert outlined("td.part") == ["1:0 1:1 ×2", "0:1 1:1 2:1 3:1 ×4"]
    assert device.evaluate("node => getComputedStyle(node, '::after').content") == (
        '"1:1 on host1 · x[256:512, 0:1024], w[0:1024, 512:1024]"'
    )
    form.locator("td.part").nth(1).hover()
    assert outlined("td.on") == ["1:0", "1:1"]


def test_invalid_text_is_kept(page: LabPage, form: Locator) -> None:
    """A shape that JAX refuses is refused in its words beside its field; text that is no shape stays until it is corrected."""
    shape = form.get_by_label("Shape").first
    shape.fill("6, 8")
    shape.press("Enter")
    assert_shows(form, "implies that array axis 0 is partitioned 4 times, but the dimension size is 6")
    shape.fill("6 by 8")
    shape.press("Enter")
    assert_shows(form, "'6 by 8' is not a shape")
    assert shape.input_value() == "6 by 8"
    assert focused(page) == "array.0.shape"
    shape.fill("1024, 1024")
    shape.press("Enter")
    assert_shows(form, "P('data', None) · 1.0 MiB per device")


def test_a_program_shows_its_collectives(form: Locator) -> None:
    """A program is compiled, and its collectives are a table."""
    program = form.get_by_label("Program")
    program.fill("lambda x, w: (x @ w).sum()")
    program.press("Enter")
    assert_shows(form, "all-reduce")
    program.fill("")
    program.press("Enter")
    form.get_by_text("all-reduce").first.wait_for(state="detached", timeout=60_000)


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
