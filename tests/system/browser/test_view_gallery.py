"""Every view of sample results in a real browser: axe finds nothing, nothing is wider than the page, and pictures on request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.axe import violations
from tests.support.lab import open_chromium
from tests.support.view_gallery import Theme, open_page, stored_views

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser")]

PICTURES = os.environ.get("MHNB_GALLERY", "")
"""The folder for pictures of the pages; none are taken if it is empty."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    with open_chromium() as browser:
        yield browser


@pytest.mark.parametrize(
    ("count", "theme", "width"),
    [
        (4, "light", 700), (4, "dark", 1600), (64, "light", 1600),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in [(1, "light", 1600), (16, "dark", 700)]),
        *([(4, "light", 1600), (4, "dark", 700), (16, "light", 1600), (64, "dark", 700), (64, "light", 700)] if PICTURES else []),
    ],
)  # fmt: skip
@pytest.mark.sample(2)
def test_views_are_accessible_and_fit_the_page(browser: Browser, count: int, theme: Theme, width: int) -> None:
    """axe finds nothing of any severity in the views, stored and live, and none of them makes the page scroll sideways."""
    page = open_page(browser, count, theme=theme, width=width)
    if PICTURES:
        _take_pictures(page, Path(PICTURES) / f"{count:02d}-{theme}-{width}")
    overflow = page.evaluate(
        """() => [...document.querySelectorAll(".jp-OutputArea-output")]
            .filter((area) => area.scrollWidth > area.clientWidth + 1)
            .map((area) => area.closest(".jp-Cell").querySelector(".jp-InputArea").innerText)"""
    )
    assert overflow == []
    edges = page.evaluate(
        """() => [...document.querySelectorAll(".jp-OutputArea-output > .mhnb > *")]
            .filter((part) => part.offsetWidth && part.tagName !== "STYLE")
            .map((part) => part.getBoundingClientRect().left + (part.matches(".mhnb-bar") ? 8 : 0)
                - part.parentElement.getBoundingClientRect().left)"""
    )
    assert set(edges) == {8.0}, "text begins where the text outputs of JupyterLab do, also beside a colored line"
    assert violations(page, ".mhnb") == []
    page.close()


def _take_pictures(page: Page, folder: Path) -> None:
    """Take a picture of each view, in a file that has its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for cell in page.locator(".jp-CodeCell").all():
        name = cell.locator(".jp-InputArea-editor").inner_text().strip().partition(": ")[2]
        cell.screenshot(path=folder / f"{name.replace(': ', ' ').replace(' ', '-')}.png")


def test_folds_have_triangles_in_classic_export(browser: Browser) -> None:
    """A page exported in nbconvert's classic style shows the triangle of each fold, although its own style hides triangles."""
    import nbformat
    from nbconvert import HTMLExporter

    outputs = [nbformat.v4.new_output("display_data", {"text/html": stored_views(4)["numbers differ"]})]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=outputs)])
    html, _ = HTMLExporter(template_name="classic").from_notebook_node(notebook)
    page = browser.new_page()
    page.route("**/*", lambda route: route.abort())
    page.set_content(html + "<details><summary>plain</summary></details>", wait_until="commit")
    page.wait_for_selector(".mhnb", state="attached")
    shown = page.locator("summary").evaluate_all("all => all.map((one) => getComputedStyle(one).display)")
    *of_views, plain = shown
    assert plain == "block"
    assert of_views
    assert set(of_views) == {"list-item"}
    page.close()
